"""Looks at a server on behalf of all that watch it.

    every 2 s ─► history          a question ─► a look, or the one of just now ─► status()

However many ask, its workers are asked at most twice a second.  A server that has not started yet,
or has failed, has a status too, without feeds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headrace_proto import __version__
from headrace_proto.errors import HeadraceError, ServerError

from .history import EVERY_S, History
from .verdict import verdict

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor

__all__ = ["Watch"]

#: Time for which a look is fresh.
_FRESH_S = 0.5
#: Maximum time for an answer of the server before it counts as dead.
_PATIENCE_S = 5.0


class Watch:
    """The watch of one server.  Any thread may ask."""

    def __init__(self) -> None:
        self._server: Supervisor | None = None
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._looked = float("-inf")
        self._status: dict[str, Any] = _nothing("starting", "the workers are opening the sources")
        self.history = History()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-watching", daemon=True)

    def begin(self, server: Supervisor) -> None:
        """Watch this server from now on."""
        self._server = server
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            with contextlib.suppress(Exception):  # a request reports a dead server itself
                self.history.add(self.status())

    @property
    def server(self) -> Supervisor:
        """The server; ServerError before it has started."""
        if self._server is None:
            raise ServerError("the server is starting")
        return self._server

    def status(self) -> dict[str, Any]:
        """Return the whole status; ``overview`` gives most of it."""
        with self._lock:
            server = self._server
            if server is not None and time.monotonic() - self._looked > _FRESH_S:
                self._status = self._look(server)
                self._looked = time.monotonic()
            return {**self._status, "uptime_s": round(time.monotonic() - self._begun, 1)}

    def _look(self, server: Supervisor) -> dict[str, Any]:
        try:
            seen = server.look(_PATIENCE_S)
        except HeadraceError as error:
            return {**_nothing("failed", str(error)), "events": self._status["events"]}
        rates = self.history.rates()
        workers = {str(w["worker"]): w for w in seen["workers"]}
        for name, worker in workers.items():
            worker["shares"] = rates["workers"].get(name, {})
        for name, feed in seen["feeds"].items():
            feed["rates"] = rates["feeds"].get(name, {})
            of_trainers = feed["rates"].pop("trainers", {})
            for trainer in feed["trainers"]:
                trainer["rates"] = of_trainers.get(str(trainer["trainer"]), {})
            numbers = {str(p["worker"]) for p in feed["partitions"]}
            shares = [workers[n]["shares"] for n in sorted(numbers) if workers[n]["shares"]]
            feed["verdict"] = asdict(verdict(feed, feed["rates"], shares, server.draining))
        state = "draining" if server.draining else _state(seen["feeds"])
        return {"state": state, "why": "", "addresses": list(server.addresses), **seen}


def _state(feeds: dict[str, Any]) -> str:
    """Sum up the states of all feeds: "serving" while one of them is not over."""
    states = {feed["state"] for feed in feeds.values()}
    if states <= {"ended"}:
        return "ended"
    return "serving" if states - {"ended", "failed"} else "feeds failed"


def _nothing(state: str, why: str) -> dict[str, Any]:
    return {
        "state": state,
        "why": why,
        "version": __version__,
        "at": time.time(),
        "addresses": [],
        "draining": False,
        "access": {"keys": False, "known": [], "present": {}, "refused": {}},
        "feeds": {},
        "workers": [],
        "events": [],
    }
