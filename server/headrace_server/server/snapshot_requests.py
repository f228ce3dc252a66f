"""Requests for a feed's state: to take a snapshot of it, and to take the feed back to one.

    snapshot   ─► order "copy" to owners ─► checksums, disk, URL ─► "snapshotted"
    take_back  ─► the snapshot is prepared ─► the supervisor replaces all workers
                  or it can not be         ─► "not_taken_back"

They wait for files, networks and whole lives of workers, so each that an owner reports gets a
thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

from headrace_proto.clock import Deadline
from headrace_proto.errors import HeadraceError, ServerError, code_of, from_code
from headrace_proto.token import Token

from ..journal.snapshots import Shelf
from ..pipeline.declaration import Plain
from ..process.config import BEGINNING, FeedConfig

if TYPE_CHECKING:
    from .supervisor import Supervisor

logger = logging.getLogger("headrace.server")

#: Snapshots that are made at the same time; more have to wait their turn outside.
_MOST = 16


class _Over(ServerError):
    """The workers to which something was requested have been replaced, or have ended."""


class SnapshotRequests:
    """Requests to the workers of a server, until all of them are replaced.

    ``snapshot`` and ``take_back`` are those of an operator, ``on_snapshot`` and ``on_take_back``
    those of a trainer, which an owner reports.  Without a state directory a feed can go back to its
    beginning alone.
    """

    def __init__(self, server: Supervisor) -> None:
        self._server, self._durable = server, server.durable
        self._places = threading.BoundedSemaphore(_MOST)
        self._over = False

    def snapshot(
        self, feed: str, timeout_s: float, name: str = "", whole: bool = False
    ) -> dict[str, Plain]:
        """Take a snapshot, or this share of one; ``whole`` settles one that all shares have."""
        if self._durable is None:
            text = f"feed {feed!r}: a snapshot needs a server with a state_dir (--state-dir)"
            raise ServerError(text)
        making: Future[Token] = Future()

        def make() -> None:
            try:
                making.set_result(self._make(feed, name, whole))
            except HeadraceError as error:
                making.set_exception(error)

        in_thread(make)
        if not Deadline(timeout_s).wait(lambda at_most_s: bool(wait([making], at_most_s).done)):
            raise ServerError(f"the snapshot of {feed!r} took longer than {timeout_s:g} s")
        return making.result().to_plain()

    def _make(self, feed: str, name: str = "", whole: bool = False) -> Token:
        """Make a snapshot, or settle one that is ``whole``.  An error has the code of its cause."""
        try:
            if not self._places.acquire(blocking=False):
                raise ServerError(f"{_MOST} snapshots are being made: ask again later")
            try:
                if whole:
                    self._shelf.settle(feed, name)
                token = self._shelf.token(feed, name) if whole else self._copied(feed, name)
            finally:
                self._places.release()
        except Exception as error:
            text = f"the snapshot was not made: {error}"
            logger.error("feed %r: %s", feed, text)
            raise from_code(code_of(error), text) from error
        logger.info(
            "feed %r: snapshot %s is %s", feed, token.snapshot, "settled" if whole else "made"
        )
        return token

    @property
    def _shelf(self) -> Shelf:
        assert self._durable is not None  # owners refuse snapshots of other servers themselves
        return self._durable.shelf

    def _copied(self, feed: str, name: str) -> Token:
        index, servers = self._server.config.share
        if servers > 1 and not name:
            raise ServerError(
                f"this server has share {index}/{servers} of the feed, and a snapshot of one share "
                "is none of the feed: take it by feed.snapshot() of a trainer, or of all "
                "servers: headrace snapshot --address A,B"
            )
        shelf = self._shelf
        if name and shelf.has(feed, name):  # a trainer asks again
            return shelf.token(feed, name)
        name, directory = shelf.begin(feed, name)
        try:
            answers = self._server.ask_owners(
                "copy", None, self._ended, feed=feed, directory=str(directory)
            )
            for answer in answers.values():
                if answer["code"]:
                    raise from_code(answer["code"], answer["text"])
            return shelf.finish(feed, name, self._server.config.term)
        except BaseException:
            shelf.abandon(feed, name)
            raise

    def _ended(self) -> ServerError | None:
        text = "the server was stopped, or all its workers were replaced"
        return _Over(text) if self._over else None

    def on_snapshot(
        self, owner: int, feed: str, session: int, request: int, name: str = "", whole: bool = False
    ) -> None:
        def answer() -> None:
            token, code, text = None, "", ""
            try:
                token = self._make(feed, name, whole).to_plain()
            except HeadraceError as error:
                code, text = code_of(error), str(error)
            if not self._over:  # else it asks the next lives
                answered = {"session": session, "request": request, "value": token}
                self._server.crew.order(
                    owner, order="snapshotted", code=code, text=text, **answered
                )

        in_thread(answer)

    def on_take_back(self, owner: int, feed: str, snapshot: str) -> None:
        """Take a feed back, or have the owner refuse it to the trainer that asked."""

        def take_back() -> None:
            try:
                self.take_back(feed, snapshot)
            except _Over:  # the trainer asks the next lives
                return
            except Exception as error:
                refusal = {"code": code_of(error), "text": str(error)}
                self._server.crew.order(
                    owner, order="not_taken_back", feed=feed, snapshot=snapshot, **refusal
                )

        in_thread(take_back)

    def take_back(self, feed: str, snapshot: str) -> None:
        """Let the next lives of all workers begin with a feed as a snapshot has it."""

        def prepared(config: FeedConfig) -> int:
            if self._over:
                raise _Over(
                    f"feed {feed!r} was not taken back: all workers were replaced meanwhile"
                )
            term = 0 if self._durable is None else self._durable.prepare(config, snapshot)
            to = "its beginning" if snapshot == BEGINNING else f"snapshot {snapshot}"
            logger.warning("feed %r is taken back to %s", feed, to)
            self._server.feeds.note("taken back", f"feed {feed!r} to {to}")
            return term

        self._server.take_back(feed, prepared)

    def close(self) -> None:
        self._over = True


def in_thread(action: Callable[[], None]) -> None:
    """Act in a thread that the end of the program does not wait for."""
    threading.Thread(target=action, name="headrace-state", daemon=True).start()
