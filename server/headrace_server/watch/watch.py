"""Looks at a server on behalf of all that watch it.

    every 5 s ─► a look that rates count from
    a question ─► a look, or the one of just now ─► status()

Without HTTP nobody looks until a command asks: the first question waits a second for rates, and so
does one after 10 seconds without a look to count from.  However many ask, it asks the workers at
most twice a second.  A server that has not started yet, or has failed, has a status too, without
feeds.  Rates are of the last 5 to 10 seconds; whoever wants to see further back stores them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

from headrace_proto import __version__
from headrace_proto.errors import HeadraceError, ServerError, UnknownFeed
from headrace_proto.placement import WHOLE, Share

from ..pipeline.declaration import Plain
from ..watch.statuses import OwnersAnswer
from .statuses import EventStatus, SeenServer, ServerStatus
from .verdict import add_rates, verdict

#: Time between the looks that rates count from.
_EVERY_S = 5.0
#: Time that the rates of the first answer count, where nobody has looked before.
_FIRST_S = 1.0
#: Time for which a look is fresh.
_FRESH_S = 0.5
#: Maximum time for an answer of the server before it counts as dead.
_PATIENCE_S = 5.0
_LONGEST_KEY = 4096


class Server(Protocol):
    """A server as a watch sees it: see ``Supervisor``."""

    @property
    def addresses(self) -> Sequence[str]:
        """Its public addresses."""

    def look(self, timeout_s: float) -> SeenServer:
        """Return the status of the whole server, as of now."""

    def ask(self, order: str, timeout_s: float, **values: Plain) -> OwnersAnswer:
        """Send an order to all workers; return their answers, joined to one."""


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
        self._looking = True  # whether it looks before anybody asks …
        self._since = float("-inf")  # … else when the look was that rates count from
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-watching", daemon=True)

    def begin(self, server: Server, looking: bool = True) -> None:
        """Watch this server from now on; ``looking``: before anybody asks."""
        self._server, self._looking = server, looking
        self.forget()
        if looking:
            self._thread.start()

    def status(self) -> ServerStatus:
        """Return the whole status of the server, as it is or was half a second ago."""
        with self._lock:
            if not self._looking and time.monotonic() - self._since > 2 * _EVERY_S:
                self._since = time.monotonic()
                self._earlier.clear()
                self._look()
                self._stopping.wait(_FIRST_S)
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

    def check_started(self) -> Server:
        """Return the server; ServerError before it has started."""
        if self._server is None:
            raise ServerError("the server is starting")
        return self._server

    def inspect(self, key: bytes, feed: str | None) -> dict[str, object]:
        """Return where the sequence of a key is; ``feed`` may be None where one has sequences.

        UnknownFeed or ValueError: that can not be asked.
        """
        if not 0 < len(key) <= _LONGEST_KEY:
            raise ValueError(f"a key has 1 to {_LONGEST_KEY} bytes, not {len(key)}")
        status = self.status()
        if not status["feeds"]:  # it is starting, or has failed
            raise ServerError(status["why"])
        shapes = {name: feed["pipeline"]["shape"] for name, feed in status["feeds"].items()}
        keyed = [name for name, shape in shapes.items() if shape == "sequences"]
        feed = keyed[0] if feed is None and len(keyed) == 1 else feed
        if feed not in keyed:
            fault = "feed= is needed: one" if feed is None else f"feed={feed!r:.120} is none"
            raise UnknownFeed(f"{fault} of the feeds of segments: {', '.join(keyed) or 'none'}")
        answer = self.check_started().ask("inspect", 10.0, feed=feed, key=key.hex())
        shown = key.decode(errors="backslashreplace")
        return {"feed": feed, "key": shown, "found": answer["found"]}

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
