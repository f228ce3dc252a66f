"""Looks at a server on behalf of all that watch it.

    every 5 s ─► a look that rates count from
    a question ─► a look, or the one of just now ─► status()

However many ask, its workers are asked at most twice a second.  A server that has not started yet,
or has failed, has a status too, without feeds.  Rates are of the last 5 to 10 seconds; whoever
wants to see further back stores them.

    URL, status of share 0 ─► named() ─┐
    URL, status of share 1 ─► named() ─┼─► every() ─► verdict
    URL, why it is away ────► away() ──┘

A server numbers its workers and trainers.  In the status of all servers the name of a worker has
its share, too, and a trainer has its id.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from headrace_proto import __version__
from headrace_proto.errors import HeadraceError, ServerError
from headrace_proto.placement import WHOLE, Share

from ..process.statuses import (
    EventStatus,
    SeenServer,
    ServerStatus,
    ShareStatus,
    VerdictStatus,
    joined,
)
from .verdict import add_rates, verdict

if TYPE_CHECKING:
    from .supervisor import Supervisor

#: Time between the looks that rates count from.
_EVERY_S = 5.0
#: Time for which a look is fresh.
_FRESH_S = 0.5
#: Maximum time for an answer of the server before it counts as dead.
_PATIENCE_S = 5.0


class Watch:
    """The watch of one server.  Any thread may ask."""

    def __init__(self, share: Share = WHOLE) -> None:
        self._server: Supervisor | None = None
        self._share = share
        self._begun = time.monotonic()
        self._events: list[EventStatus] = []  # those of the last look
        self._earlier: deque[SeenServer] = deque(maxlen=2)
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-watching", daemon=True)

    def begin(self, server: Supervisor) -> None:
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
    def server(self) -> Supervisor:
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


def every(servers: Sequence[tuple[str, ServerStatus | str]]) -> ServerStatus:
    """Return the status of all servers of a feed.

    ``servers``: by share the URL of each, and its status or the reason why there is none.
    """
    seen = [
        (url, one if isinstance(one, str) or one["feeds"] else f"{one['state']}: {one['why']}")
        for url, one in servers
    ]
    there = [one for _, one in seen if not isinstance(one, str)]
    if not there:
        raise ServerError("no server answers: " + "; ".join(str(one) for _, one in seen))
    for index, (url, one) in enumerate(seen):
        if not isinstance(one, str) and (share := one["share"]) != [index, len(seen)]:
            raise ValueError(
                f"{url} has share {share[0]}/{share[1]}, and is the server {index} of {len(seen)} "
                "that were named: name all servers of one feed, by share"
            )
    parts = [
        _away((index, len(seen)), url, one, there[0]) if isinstance(one, str) else _named(url, one)
        for index, (url, one) in enumerate(seen)
    ]
    whole = joined(ServerStatus, parts)
    for feed in whole["feeds"].values():
        gone = [share["verdict"] for share in feed["shares"] if share["state"] == "away"]
        feed["verdict"] = gone[0] if gone else verdict(feed, whole)
    return whole


def _named(url: str, status: ServerStatus) -> ServerStatus:
    """Name what a server only numbers so that no other server has it."""
    named = copy.deepcopy(status)
    index, servers = named["share"]
    feeds = named["feeds"].values()
    for one in (*named["workers"], *(part for feed in feeds for part in feed["partitions"])):
        one["worker"] = f"{index}.{one['worker']}"
    for event in named["events"]:
        event["text"] = f"share {index}/{servers}: {event['text']}"
    for feed in feeds:
        feed["waiting"] = f"share {index}/{servers}: {feed['waiting']}"
        for trainer in feed["trainers"]:
            trainer["trainer"] = trainer["id"]
        share: ShareStatus = {
            "share": f"{index}/{servers}",
            "url": url,
            "state": feed["state"],
            "ready": feed["standing"]["ready"],
            "rates": feed["rates"],
            "verdict": feed["verdict"],
        }
        feed["shares"] = [share]
    return named


def _away(share: Share, url: str, why: str, other: ServerStatus) -> Any:
    """Return what is known of a server that is away, as a part of the status of all."""
    label = "{}/{}".format(*share)
    text = f"Share {label} at {url} is away: {why}"
    bad: VerdictStatus = {"level": "bad", "where": "", "text": text}
    gone = {"share": label, "url": url, "state": "away", "ready": 0, "rates": {}, "verdict": bad}
    return {"why": text, "feeds": {name: {"shares": [gone]} for name in other["feeds"]}}
