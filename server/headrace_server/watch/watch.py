"""Looks at a server on behalf of all that watch it.

    every 5 s ─► a look that rates count from
    a question ─► a look, or the one of just now ─► status()
                  its peers are asked, too ───────► every()

However many ask, its workers are asked at most twice a second.  A server that has not started yet,
or has failed, has a status too, without feeds.  Rates are of the last 5 to 10 seconds; whoever
wants to see further back stores them.

    URL, status of share 0 ─► named() ─┐
    URL, status of share 1 ─► named() ─┴─► joined() ─► the slowest share ─► verdict
    URL, why it is away ───────────────────────────► a share that is away ──┘

A server numbers its workers and trainers.  In the status of all servers the name of a worker has
its share, too, and a trainer has its id.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

from headrace_proto import __version__
from headrace_proto.errors import HeadraceError, ServerError
from headrace_proto.placement import WHOLE, Share

from ..process.statuses import (
    FeedStatus,
    SeenServer,
    ServerStatus,
    ShareStatus,
    VerdictStatus,
    joined,
)
from .http_client import AT_ONCE, HttpClient
from .verdict import add_rates, verdict

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor

#: Time between the looks that rates count from.
_EVERY_S = 5.0
#: Time for which a look is fresh.
_FRESH_S = 0.5
#: Maximum time for an answer of the server before it counts as dead.
_PATIENCE_S = 5.0
#: Maximum time for an answer of a peer before it counts as away.
_PEER_S = 2.0


class Watch:
    """The watch of one server.  Any thread may ask."""

    def __init__(self, share: Share = WHOLE, peers: Sequence[str] = ()) -> None:
        """``peers``: by share, the URLs of all servers of the feed."""
        self._server: Supervisor | None = None
        self._share = share
        self._peers = peers
        self._every: ServerStatus | None = None
        self._every_looked = float("-inf")
        self._every_lock = threading.Lock()
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._looked = float("-inf")
        self._status = self._nothing("starting", "the workers are opening the sources")
        self._earlier: deque[SeenServer] = deque(maxlen=2)
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

    def status(self) -> ServerStatus:
        """Return the whole status; ``overview`` gives most of it."""
        with self._lock:
            server = self._server
            if server is not None and time.monotonic() - self._looked > _FRESH_S:
                self._status = self._look(server)
                self._looked = time.monotonic()
            return {**self._status, "uptime_s": round(time.monotonic() - self._begun, 1)}

    def forget_look(self) -> None:
        """Look again for the next status: a change is not in the last one."""
        with self._lock:
            self._looked = float("-inf")

    def every(self) -> ServerStatus:
        """Return the status of all servers of the feed.  ServerError where no peers are known."""
        index, servers = self._share
        if servers == 1:
            return self.status()
        if not self._peers:
            raise ServerError(
                f"this server has share {index}/{servers} of its feeds, and knows no other server: "
                "start all of them with peers=, their HTTP addresses by share"
            )
        with self._every_lock:
            if self._every is None or time.monotonic() - self._every_looked > _FRESH_S:
                with ThreadPoolExecutor(min(servers, AT_ONCE), "headrace-peers") as pool:
                    self._every = every([*pool.map(self._ask, range(servers))])
                self._every_looked = time.monotonic()
            return self._every

    def _ask(self, share: int) -> tuple[str, ServerStatus | str]:
        """Return the URL of a server, and its status or why it has none."""
        url = self._peers[share]
        if share == self._share[0]:
            return url, self.status()
        return HttpClient(url).seen(_PEER_S)

    def _look(self, server: Supervisor) -> ServerStatus:
        try:
            seen = server.look(_PATIENCE_S)
        except HeadraceError as error:
            return {**self._nothing("failed", str(error)), "events": self._status["events"]}
        add_rates(self._earlier[0] if self._earlier else seen, seen)
        if not self._earlier:
            self._earlier.append(seen)
        times = {worker["worker"]: worker["shares"] for worker in seen["workers"]}
        fault = _disk_fault(seen)
        for feed in seen["feeds"].values():
            numbers = {part["worker"] for part in feed["partitions"]}
            shares = [times[n] for n in sorted(numbers, key=str) if times[n]]
            feed["verdict"] = verdict(feed, feed["rates"], shares, server.draining, disk=fault)
            feed["shares"] = [self._share_of(feed)]
        state = "draining" if server.draining else _state(seen["feeds"])
        mine = {"state": state, "why": "", "addresses": list(server.addresses), "uptime_s": 0.0}
        return cast(ServerStatus, {**mine, **seen})

    def _share_of(self, feed: FeedStatus) -> ShareStatus:
        """Return this server's part of a feed, which distinguishes it from others' parts."""
        standing = feed["standing"]
        return {
            "share": "{}/{}".format(*self._share),
            "url": "",
            "state": feed["state"],
            "made": feed["made"]["rows"],
            "rows": feed["rows"],
            "ready": standing["ready"] + standing["returned"],
            "rates": feed["rates"],
            "verdict": feed["verdict"],
        }

    def _nothing(self, state: str, why: str) -> ServerStatus:
        return {
            "state": state,
            "why": why,
            "version": __version__,
            "at": time.time(),
            "addresses": [],
            "uptime_s": 0.0,
            "draining": False,
            "share": list(self._share),
            "access": {"keys": False, "known": [], "present": {}, "refused": {}},
            "feeds": {},
            "workers": [],
            "disk": None,
            "events": [],
        }


def _disk_fault(status: SeenServer) -> str:
    return status["disk"]["fault"] if status["disk"] is not None else ""


def _state(feeds: Mapping[str, FeedStatus]) -> str:
    """Sum up the states of all feeds: "serving" while one of them is not over."""
    states = {feed["state"] for feed in feeds.values()}
    if states <= {"ended"}:
        return "ended"
    return "serving" if states - {"ended", "failed"} else "feeds failed"


def every(servers: Sequence[tuple[str, ServerStatus | str]]) -> ServerStatus:
    """Return the status of all servers.

    ``servers``: by share the URL of each, and its status or the reason why there is none.
    """
    there = {url: one for url, one in servers if not isinstance(one, str) and one["feeds"]}
    reasons = {
        url: one if isinstance(one, str) else f"{one['state']}: {one['why']}"
        for url, one in servers
        if url not in there
    }
    if not there:
        raise ServerError("no server answers: " + "; ".join(reasons.values()))
    whole = joined(ServerStatus, [_named(url, status) for url, status in there.items()])
    servers_of_feed = whole["share"][1]
    away: list[ShareStatus] = []
    for index, (url, _) in enumerate(servers):
        if url in reasons:
            away.append(_away(f"{index}/{servers_of_feed}", url, reasons[url]))
    whole["why"] = "; ".join(one["verdict"]["text"] for one in away)
    for feed in whole["feeds"].values():
        feed["shares"] = sorted(
            [*feed["shares"], *away], key=lambda one: int(one["share"].partition("/")[0])
        )
        feed["verdict"] = away[0]["verdict"] if away else _verdict(feed, whole)
    return whole


def _named(url: str, status: ServerStatus) -> ServerStatus:
    """Name what a server only numbers so that no other server has it."""
    index, servers = status["share"]
    share = f"share {index}/{servers}"
    return {
        **status,
        "workers": [{**one, "worker": f"{index}.{one['worker']}"} for one in status["workers"]],
        "events": [{**one, "text": f"{share}: {one['text']}"} for one in status["events"]],
        "feeds": {
            name: {
                **feed,
                "waiting": f"{share}: {feed['waiting']}",
                "shares": [{**one, "url": url} for one in feed["shares"]],
                "trainers": [{**one, "trainer": one["id"]} for one in feed["trainers"]],
                "partitions": [
                    {**one, "worker": f"{index}.{one['worker']}"} for one in feed["partitions"]
                ],
            }
            for name, feed in status["feeds"].items()
        },
    }


def _away(share: str, url: str, why: str) -> ShareStatus:
    text = f"Share {share} at {url} is away: {why}"
    return {
        "share": share,
        "url": url,
        "state": "away",
        "made": 0,
        "rows": 0,
        "ready": 0,
        "rates": {},
        "verdict": {"level": "bad", "where": "", "text": text},
    }


def _verdict(feed: FeedStatus, whole: ServerStatus) -> VerdictStatus:
    """Judge a feed by the share that trainers wait for longest."""
    awaited = feed["rates"].get("awaited") or {"": 0.0}
    slowest = max(awaited, key=lambda share: awaited[share])
    workers, of = whole["workers"], ""
    if len(feed["shares"]) > 1 and 2 * awaited[slowest] > sum(awaited.values()):
        url = next((one["url"] for one in feed["shares"] if one["share"] == slowest), "")
        of = f", most of it for share {slowest} at {url}"
        mine = f"{slowest.partition('/')[0]}."
        workers = [one for one in workers if str(one["worker"]).startswith(mine)]
    times = [one["shares"] for one in workers if one["shares"]]
    return verdict(feed, feed["rates"], times, whole["draining"], of, _disk_fault(whole))
