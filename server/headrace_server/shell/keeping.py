"""What owners ask of the keeping of state: snapshots, and to go back to one.

    "snapshot", "copied"  ─► Archive ─► "snapshotted"
    "take_back"           ─► the snapshot is prepared ─► the supervisor begins a next life
                             or it can not be        ─► "not_taken_back"

Files, networks and whole lives of the server are waited for here, each on a thread of its own: who
reads their pipes goes on reading.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from headrace_proto.errors import ServerError, code_of

from ..core.rewinding import BEGINNING
from .archive import Archive
from .config import FeedConfig
from .durable import Durable

__all__ = ["Keeping"]

logger = logging.getLogger("headrace.server")

_Prepared = Callable[[FeedConfig], int]


class _Over(ServerError):
    """The life of the server in which something was asked for has ended."""


class Keeping:
    """One life's."""

    def __init__(
        self,
        durable: Durable,
        epoch: int,
        order: Callable[..., None],
        note: Callable[[str, str], None],
        take_back: Callable[[str, _Prepared], None],
        owners: int = 1,
    ) -> None:
        self._durable = durable
        self._archive = Archive(durable.shelf, epoch, order, owners)
        self._order = order
        self._note = note
        self._supervise = take_back
        self._over = False
        self._handlers: dict[str, Callable[..., Any]] = {
            "snapshot": self._archive.ask,
            "copied": self._archive.copied,
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
        return self._archive.wait(self._archive.ask(feed), timeout_s)

    def begin_again(self, epoch: int, owner: int) -> None:
        """An owner has restarted: it is asked again for snapshots under way."""
        self._archive.begin_again(epoch, owner)

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
        """Have a feed go on from a snapshot, in the next life of the server."""

        def prepared(config: FeedConfig) -> int:
            if self._over:
                raise _Over(f"feed {feed!r} was not taken back: the server has restarted meanwhile")
            epoch = self._durable.prepare(config, snapshot)
            to = "its beginning" if snapshot == BEGINNING else f"snapshot {snapshot}"
            logger.warning("feed %r is taken back to %s", feed, to)
            self._note("taken back", f"feed {feed!r} to {to}")
            return epoch

        self._supervise(feed, prepared)

    def close(self) -> None:
        """This life ends: who waits for a snapshot is told.

        A feed that has not been taken back by now stays as it is: trainers ask the next life.
        """
        self._over = True
        self._archive.close()
