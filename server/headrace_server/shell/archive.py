"""Snapshots that are being made: what the supervisor does of them.

    router ── "snapshot" ──► begin ── order "copy" ──► router ──► workers copy their stores
    router ── "copied"   ──► finish (checksums, disk, URL) ── order "snapshotted" ──► the trainer

Whoever calls lends a thread: disks and networks take their time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace_proto.clock import Deadline
from headrace_proto.errors import HeadraceError, ServerError, code_of, from_code
from headrace_proto.token import Token

from .snapshots import Shelf

__all__ = ["Archive"]

logger = logging.getLogger("headrace.server")

#: Snapshots that are made at the same time; more have to wait their turn outside.
_MOST = 16
_STOPPED = "the server was stopped"


@dataclass(slots=True, eq=False)
class _Making:
    """One snapshot on its way."""

    feed: str
    name: str
    session: int = 0  # of the trainer that asked; 0: nobody's
    request: int = 0
    directory: str = ""
    token: Token | None = None
    code: str = ""
    text: str = ""

    @property
    def done(self) -> bool:
        return self.token is not None or bool(self.code)


class Archive:
    """The snapshots of one server.  ``order`` says something to its router."""

    def __init__(self, shelf: Shelf, epoch: int, order: Callable[..., None]) -> None:
        self._shelf = shelf
        self._epoch = epoch
        self._order = order
        self._changed = threading.Condition()
        self._tickets = 0
        self._making: dict[int, _Making] = {}
        self._closed = False

    def ask(self, feed: str, session: int = 0, request: int = 0) -> int:
        """Begin a snapshot; its ticket.  A fault is answered as such."""
        with self._changed:
            self._tickets += 1
            ticket = self._tickets
            try:
                if self._closed:
                    raise ServerError(_STOPPED)
                if len(self._making) >= _MOST:
                    raise ServerError(f"{_MOST} snapshots are being made: ask again later")
                name, directory = self._shelf.begin(feed)
            except (OSError, HeadraceError) as error:
                making = self._making[ticket] = _Making(feed, "", session, request)
                self._end(ticket, making, error=error)
                return ticket
            self._making[ticket] = _Making(feed, name, session, request)
            self._making[ticket].directory = str(directory)
        self._order_copy(ticket)
        return ticket

    def _order_copy(self, ticket: int) -> None:
        making = self._making[ticket]
        self._order(order="copy", ticket=ticket, feed=making.feed, directory=making.directory)

    def begin_again(self, epoch: int) -> None:
        """Another process has the stores from now on: it is asked for what is under way."""
        with self._changed:
            self._epoch = epoch
            asked = [ticket for ticket, making in self._making.items() if not making.done]
        for ticket in asked:
            self._order_copy(ticket)

    def copied(self, ticket: int, code: str, text: str) -> None:
        """All partitions were copied, or one could not be.  Takes as long as disks do."""
        making = self._making.get(ticket)
        if making is None or making.done:
            return
        token: Token | None = None
        error: BaseException | None = None
        try:
            if code:
                raise from_code(code, text)
            token = self._shelf.finish(making.feed, making.name, self._epoch)
        except Exception as caught:
            error = caught
            self._shelf.abandon(making.feed, making.name)
        with self._changed:
            self._end(ticket, making, token, error)

    def _end(
        self,
        ticket: int,
        making: _Making,
        token: Token | None = None,
        error: BaseException | None = None,
    ) -> None:
        making.token = token
        if error is not None:
            making.code, making.text = code_of(error), f"the snapshot was not made: {error}"
            logger.error("feed %r: %s", making.feed, making.text)
        else:
            logger.info("feed %r: snapshot %s is made", making.feed, making.name)
        self._changed.notify_all()
        if making.session:
            del self._making[ticket]
            self._order(
                order="snapshotted",
                session=making.session,
                request=making.request,
                token=None if token is None else token.to_plain(),
                code=making.code,
                text=making.text,
            )

    def wait(self, ticket: int, timeout_s: float) -> dict[str, Any]:
        """The token of a snapshot that was asked for here."""
        with self._changed:
            making = self._making[ticket]
            done = Deadline(timeout_s).wait(
                lambda at_most_s: self._changed.wait_for(lambda: making.done, at_most_s)
            )
            del self._making[ticket]
        if not done:
            raise ServerError(f"the snapshot of {making.feed!r} took longer than {timeout_s:g} s")
        if making.token is None:
            raise from_code(making.code, making.text)
        return making.token.to_plain()

    def close(self) -> None:
        """The server stops: every wait ends, and nothing more is begun."""
        with self._changed:
            self._closed = True
            for making in self._making.values():
                if not making.done:
                    making.code, making.text = "server", _STOPPED
            self._changed.notify_all()
