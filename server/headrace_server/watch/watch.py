"""Looks at a server on behalf of all that watch it.

    every 2 s ─► history          a question ─► a look, or the one of just now ─► status()
                                       its peers are asked, too ─────────────────► every()

However many ask, its workers are asked at most twice a second.  A server that has not started yet,
or has failed, has a status too, without feeds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

from headrace_proto import __version__
from headrace_proto.errors import HeadraceError, ServerError
from headrace_proto.placement import WHOLE, Share

from ..process.statuses import FeedStatus, ServerStatus, ShareStatus
from .every import every
from .history import EVERY_S, History
from .http_client import AT_ONCE, HttpClient
from .verdict import verdict

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor

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

    def status(self) -> ServerStatus:
        """Return the whole status; ``overview`` gives most of it."""
        with self._lock:
            server = self._server
            if server is not None and time.monotonic() - self._looked > _FRESH_S:
                self._status = self._look(server)
                self._looked = time.monotonic()
            return {**self._status, "uptime_s": round(time.monotonic() - self._begun, 1)}

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
        rates = self.history.rates()
        workers = {str(w["worker"]): w for w in seen["workers"]}
        for name, worker in workers.items():
            worker["shares"] = rates["workers"].get(name, {})
        for name, feed in seen["feeds"].items():
            known = rates["feeds"].get(name, {})
            of_trainers = known.pop("trainers", {})
            feed["rates"] = known
            for trainer in feed["trainers"]:
                trainer["rates"] = of_trainers.get(str(trainer["trainer"]), {})
            numbers = {str(p["worker"]) for p in feed["partitions"]}
            shares = [workers[n]["shares"] for n in sorted(numbers) if workers[n]["shares"]]
            feed["verdict"] = verdict(feed, feed["rates"], shares, server.draining)
            feed["shares"] = [self._share_of(feed)]
        state = "draining" if server.draining else _state(seen["feeds"])
        mine = {"state": state, "why": "", "addresses": list(server.addresses), "uptime_s": 0.0}
        return cast(ServerStatus, {**mine, **seen})

    def _share_of(self, feed: FeedStatus) -> ShareStatus:
        """Return this server's part of a feed, to be told from those of others."""
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
            "events": [],
        }


def _state(feeds: Mapping[str, FeedStatus]) -> str:
    """Sum up the states of all feeds: "serving" while one of them is not over."""
    states = {feed["state"] for feed in feeds.values()}
    if states <= {"ended"}:
        return "ended"
    return "serving" if states - {"ended", "failed"} else "feeds failed"
