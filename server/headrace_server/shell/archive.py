"""Snapshots that are being made: what the supervisor does of them.

    owner  ── "snapshot" ──► begin ── order "copy" ──► owners: workers copy their stores
    owners ── "copied"   ──► finish (checksums, disk, URL) ── order "snapshotted" ──► the trainer

Each worker owns the leases of its partitions.

Whoever calls lends a thread: disks and networks take their time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
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
    owner: int = 0  # … and whose trainer that is
    directory: str = ""
    waiting: set[int] = field(default_factory=set)  # owners that have not copied their stores
    fault: tuple[str, str] = ("", "")  # code and text of the first that could not
    token: Token | None = None
    code: str = ""
    text: str = ""

    @property
    def done(self) -> bool:
        return self.token is not None or bool(self.code)


class Archive:
    """The snapshots of one server.

    ``order`` orders something of all who have the leases, or of one of these ``owners``.
    """

    def __init__(
        self, shelf: Shelf, epoch: int, order: Callable[..., None], owners: int = 1
    ) -> None:
        self._owners = range(owners)
        self._shelf = shelf
        self._epoch = epoch
        self._order = order
        self._changed = threading.Condition()
        self._tickets = 0
        self._making: dict[int, _Making] = {}
        self._closed = False

    def ask(self, feed: str, session: int = 0, request: int = 0, owner: int = 0) -> int:
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
                making = self._making[ticket] = _Making(feed, "", session, request, owner)
                self._end(ticket, making, error=error)
                return ticket
            self._making[ticket] = _Making(feed, name, session, request, owner)
            self._making[ticket].directory = str(directory)
            self._making[ticket].waiting = set(self._owners)
        self._order_copy(ticket, self._making[ticket])
        return ticket

    def _order_copy(self, ticket: int, making: _Making, owner: int | None = None) -> None:
        where = making.directory
        self._order(owner, order="copy", ticket=ticket, feed=making.feed, directory=where)

    def begin_again(self, epoch: int, owner: int = 0) -> None:
        """Another process has an owner's stores from now on: it is asked for what is under way."""
        with self._changed:
            self._epoch = epoch
            asked = {t: making for t, making in self._making.items() if owner in making.waiting}
        for ticket, making in asked.items():
            self._order_copy(ticket, making, owner)

    def copied(self, ticket: int, code: str, text: str, owner: int = 0) -> None:
        """An owner has copied all its partitions, or could not.  Takes as long as disks do."""
        with self._changed:
            making = self._making.get(ticket)
            if making is None or making.done or owner not in making.waiting:
                return
            making.waiting.discard(owner)
            if code and not making.fault[0]:
                making.fault = code, text
            if making.waiting:
                return
        token: Token | None = None
        error: BaseException | None = None
        try:
            if making.fault[0]:
                raise from_code(*making.fault)
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
                making.owner,
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
