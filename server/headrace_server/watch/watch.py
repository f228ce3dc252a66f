"""Looks at a server on behalf of all that watch it.

    every 5 s ─► a look that rates count from
    a question ─► a look, or the one of just now ─► status()

However many ask, its workers are asked at most twice a second.  A server that has not started yet,
or has failed, has a status too, without feeds.  Rates are of the last 5 to 10 seconds; whoever
wants to see further back stores them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

from headrace_proto import __version__
from headrace_proto.errors import HeadraceError, ServerError
from headrace_proto.placement import WHOLE, Share

from ..pipeline.declaration import Plain
from .statuses import EventStatus, SeenServer, ServerStatus
from .verdict import add_rates, verdict

#: Time between the looks that rates count from.
_EVERY_S = 5.0
#: Time for which a look is fresh.
_FRESH_S = 0.5
#: Maximum time for an answer of the server before it counts as dead.
_PATIENCE_S = 5.0


class Server(Protocol):
    """A server as a watch and the answers to HTTP see it: see ``Supervisor``."""

    @property
    def addresses(self) -> Sequence[str]:
        """Its public addresses."""

    def look(self, timeout_s: float) -> SeenServer:
        """Return the status of the whole server, as of now."""

    def ask(self, order: str, timeout_s: float, **values: Plain) -> dict[str, Plain]:
        """Send an order to all workers; return their answers, joined to one."""

    def snapshot(
        self, feed: str | None, timeout_s: float, name: str, whole: bool
    ) -> dict[str, Plain]:
        """Take a snapshot of a feed."""

    def end(self, feed: str | None, cancel: bool) -> None:
        """Close a feed's input."""

    def restart(self, feed: str | None, force: bool) -> None:
        """Start a feed from its beginning."""

    def begin_drain(self) -> None:
        """Hand out nothing more."""


class Watch:
    """The watch of one server.  Any thread may ask."""

    def __init__(self, share: Share = WHOLE) -> None:
        self._server: Server | None = None
        self._share = share
        self._begun = time.monotonic()
        self._events: list[EventStatus] = []  # those of the last look
        self._earlier: deque[SeenServer] = deque(maxlen=2)
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-watching", daemon=True)

    def begin(self, server: Server) -> None:
        """Watch this server from now on."""
        self._server = server
        self.forget()
        self._thread.start()

    def status(self) -> ServerStatus:
        """Return the whole status of the server, as it is or was half a second ago."""
        with self._lock:
            if time.monotonic() - self._looked > _FRESH_S:
                self._status = self._look()
                self._looked = time.monotonic()
            return self._status

    def forget(self) -> None:
        """Look at the server again for the next question."""
        with self._lock:
            self._looked = float("-inf")

    def end(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            status = self.status()
            if status["state"] != "failed":
                self._earlier.append(status)

    @property
    def server(self) -> Server:
        """The server; ServerError before it has started."""
        if self._server is None:
            raise ServerError("the server is starting")
        return self._server

    def _look(self) -> ServerStatus:
        server = self._server
        if server is None:
            return self._nothing("starting", "the workers are opening the sources")
        try:
            seen = server.look(_PATIENCE_S)
        except HeadraceError as error:
            return self._nothing("failed", str(error))
        self._events = seen["events"]
        add_rates(self._earlier[0] if self._earlier else seen, seen)
        if not self._earlier:
            self._earlier.append(seen)
        for feed in seen["feeds"].values():
            feed["verdict"] = verdict(feed, seen)
        states = {feed["state"] for feed in seen["feeds"].values()}
        return self._whole("draining" if seen["draining"] else _state(states), "", seen)

    def _nothing(self, state: str, why: str) -> ServerStatus:
        mine = {"version": __version__, "at": time.time(), "share": list(self._share)}
        none = {"draining": False, "feeds": {}, "workers": [], "disk": None}
        access = {"keys": False, "known": [], "present": {}, "refused": {}}
        seen = {**mine, **none, "access": access, "events": self._events}
        return self._whole(state, why, cast(SeenServer, seen))

    def _whole(self, state: str, why: str, seen: SeenServer) -> ServerStatus:
        addresses = [] if self._server is None else list(self._server.addresses)
        up_s = round(time.monotonic() - self._begun, 1)
        mine = {"state": state, "why": why, "addresses": addresses, "uptime_s": up_s}
        return cast(ServerStatus, {**mine, **seen})


def _state(states: set[str]) -> str:
    """Sum up the states of all feeds: "serving" while one of them is not over."""
    if states <= {"ended"}:
        return "ended"
    return "serving" if states - {"ended", "failed"} else "feeds failed"
