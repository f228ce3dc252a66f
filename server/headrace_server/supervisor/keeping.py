"""What owners ask of the keeping of state: snapshots, and to go back to one.

    "snapshot"  ─► order "copy" to owners ─► checksums, disk, URL ─► "snapshotted"
    "take_back" ─► the snapshot is prepared ─► the supervisor begins a new start
                   or it can not be        ─► "not_taken_back"

Files, networks and whole starts of the server are waited for here, each on a thread of its own: who
reads their pipes goes on reading.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from headrace_proto.clock import Deadline
from headrace_proto.errors import HeadraceError, ServerError, code_of, from_code
from headrace_proto.token import Token

from ..core.rewinding import BEGINNING
from ..process.config import FeedConfig
from ..state.durable import Durable

__all__ = ["Keeping"]

logger = logging.getLogger("headrace.server")

#: Snapshots that are made at the same time; more have to wait their turn outside.
_MOST = 16

_Prepared = Callable[[FeedConfig], int]


class _Over(ServerError):
    """The start of the server that was asked for something has ended."""


class Keeping:
    """The threads of one start of the server."""

    def __init__(
        self,
        durable: Durable,
        term: Callable[[], int],
        ask: Callable[..., Mapping[int, Mapping[str, Any]]],
        order: Callable[..., None],
        note: Callable[[str, str], None],
        take_back: Callable[[str, _Prepared], None],
    ) -> None:
        """``term``: of the last start; ``ask``: the answers of all owners to an order."""
        self._durable = durable
        self._term = term
        self._ask = partial(ask, "copy", None, self._stopped)
        self._places = threading.BoundedSemaphore(_MOST)
        self._order = order
        self._note = note
        self._supervise = take_back
        self._over = False
        self._handlers: dict[str, Callable[..., Any]] = {
            "snapshot": self._snapshot,
            "take_back": self._take_back,
        }

    def hear(self, event: Mapping[str, Any], owner: int = 0) -> bool:
        """Whether a word of an owner was for here; it is seen to, soon."""
        handler = self._handlers.get(str(event.get("event")))
        if handler is None:
            return False
        values = {name: value for name, value in event.items() if name != "event"}
        values["owner"] = owner
        threading.Thread(
            target=handler, kwargs=values, name="headrace-keeping", daemon=True
        ).start()
        return True

    def snapshot(self, feed: str, timeout_s: float) -> dict[str, Any]:
        """Take one; its token."""
        making: Future[Token] = Future()

        def make() -> None:
            try:
                making.set_result(self._make(feed))
            except HeadraceError as error:
                making.set_exception(error)

        threading.Thread(target=make, name="headrace-keeping", daemon=True).start()
        if not Deadline(timeout_s).wait(lambda at_most_s: bool(wait([making], at_most_s).done)):
            raise ServerError(f"the snapshot of {feed!r} took longer than {timeout_s:g} s")
        return making.result().to_plain()

    def _make(self, feed: str) -> Token:
        """Make a snapshot.  An error has the code of its cause."""
        try:
            if not self._places.acquire(blocking=False):
                raise ServerError(f"{_MOST} snapshots are being made: ask again later")
            try:
                token = self._copied(feed)
            finally:
                self._places.release()
        except Exception as error:
            text = f"the snapshot was not made: {error}"
            logger.error("feed %r: %s", feed, text)
            raise from_code(code_of(error), text) from error
        logger.info("feed %r: snapshot %s is made", feed, token.snapshot)
        return token

    def _copied(self, feed: str) -> Token:
        shelf = self._durable.shelf
        name, directory = shelf.begin(feed)
        try:
            for told in self._ask(feed=feed, directory=str(directory)).values():
                if told["code"]:
                    raise from_code(told["code"], told["text"])
            return shelf.finish(feed, name, self._term())
        except BaseException:
            shelf.abandon(feed, name)
            raise

    def _stopped(self) -> ServerError | None:
        return _Over("the server was stopped") if self._over else None

    def _snapshot(self, feed: str, session: int, request: int, owner: int) -> None:
        """A trainer wants a snapshot."""
        answer: dict[str, Any] = {"token": None, "code": "", "text": ""}
        try:
            answer["token"] = self._make(feed).to_plain()
        except HeadraceError as error:
            answer |= {"code": code_of(error), "text": str(error)}
        if not self._over:  # else it asks the next start
            about = {"session": session, "request": request}
            self._order(owner, order="snapshotted", **about, **answer)

    def _take_back(self, feed: str, snapshot: str, generation: int, owner: int) -> None:
        """A trainer wants a feed to go on from a snapshot."""
        try:
            self.take_back(feed, snapshot)
        except _Over:
            return
        except Exception as error:
            refusal = {"code": code_of(error), "text": str(error)}
            self._order(owner, order="not_taken_back", feed=feed, snapshot=snapshot, **refusal)

    def take_back(self, feed: str, snapshot: str) -> None:
        """Have a feed go on from a snapshot, in the next start of the server."""

        def prepared(config: FeedConfig) -> int:
            if self._over:
                raise _Over(f"feed {feed!r} was not taken back: the server has restarted meanwhile")
            term = self._durable.prepare(config, snapshot)
            to = "its beginning" if snapshot == BEGINNING else f"snapshot {snapshot}"
            logger.warning("feed %r is taken back to %s", feed, to)
            self._note("taken back", f"feed {feed!r} to {to}")
            return term

        self._supervise(feed, prepared)

    def close(self) -> None:
        """End, because this start of the server ends.

        A feed that has not been taken back by now stays as it is: trainers ask the next start.
        """
        self._over = True
