"""The feeds of a server: how far each is, by reports of owners and by deaths of workers.

    an owner reports ─► opened(), over(), bad() … ─┐                      ┌─► all owners: fail
    a worker dies    ─► died() ────────────────────┼─► state of each feed ┼─► failure of the server
    no next life     ─► give_up() ─────────────────┘                      └─► events, log

Each owner leases the batches of its partitions.  A feed is open, or has ended well, when the last
owner reports it, and fails at all owners when it fails at one.  The lock is the supervisor's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace_proto.errors import HeadraceError, ServerError, UnknownFeed, from_code

from ..process.config import TOUCHED, USED
from ..process.worker_diary import Entry
from ..watch.statuses import EventStatus, added
from .asks import LOCATOR
from .crew import Starts
from .deadly_rows import DeadlyRows
from .liveness import FORGIVEN, WINDOW_S, Post

logger = logging.getLogger("headrace.server")

#: Events that status shows, and the length of the text of one.
_MOST_EVENTS = 50
_LONGEST_TEXT = 4000


@dataclass(slots=True)
class _Feed:
    """One feed."""

    end: tuple[str, str] | None = None  # code (empty: well) and text
    failed: tuple[str, str] | None = None  # lives of owners begin with it as failed
    well: set[int] = field(default_factory=set)  # owners at which it has ended well
    # by owner: number of bad examples, by fault
    bad: dict[int, dict[str, int]] = field(default_factory=dict)


@dataclass(eq=False)
class Feeds:
    """All feeds of one server."""

    lock: threading.Condition
    starts: Starts
    order: Callable[..., None]

    def __post_init__(self) -> None:
        self.events: deque[EventStatus] = deque(maxlen=_MOST_EVENTS)  # the newest first
        self.failure: HeadraceError | None = None  # of the server
        self.addresses: list[str] = []  # on which the locator listens; none before it does
        self.keys_read = False  # whether the locator has read its keys …
        self.unusable: OSError | ValueError | None = None  # … or why it can not use them
        self._feeds = {name: _Feed() for name in self.names}
        self._opened: set[int] = set()  # owners
        self.deadly_rows = DeadlyRows(self.names)
        self._marked: dict[str, list[list[object]]] = {USED: [], TOUCHED: []}  # feeds, generations

    def begin_anew(self, feed: str) -> None:
        """Forget the reports of a feed that is taken back, and failures: all workers are new."""
        for name, state in self._feeds.items():
            if name == feed or state.failed is not None or (state.end is not None and state.end[0]):
                self._feeds[name] = _Feed()

    @property
    def names(self) -> list[str]:
        return [feed.name for feed in self.starts.config.feeds]

    def named(self, feed: str | None) -> str:
        """Return the feed of a name, or the only feed where no name is given."""
        if feed is None and len(self.names) == 1:
            feed = self.names[0]
        if feed is None:
            listed = ", ".join(map(repr, self.names))
            raise UnknownFeed(f"feed= is needed (--feed of a command); this server has {listed}")
        if feed not in self.names:
            raise UnknownFeed(f"feed={feed!r:.120} is none of {', '.join(self.names)}")
        return feed

    # Events, for people

    def note(self, kind: str, text: str) -> None:
        """Add an event, with the time of the wall clock: it is read beside other logs."""
        self.events.appendleft({"at": time.time(), "kind": kind, "text": text[:_LONGEST_TEXT]})

    # Reports

    def has_read_keys(self, owner: int) -> None:
        """Note that the locator can use its keys."""
        self.keys_read = True

    def can_not_use_keys(
        self, owner: int, text: str, number: int | None = None, path: str | None = None
    ) -> None:
        """Note that the locator can not use its keys: why, and which file the system refused."""
        self.unusable = ValueError(text) if number is None else OSError(number, text, path)

    def can_not_bind(self, owner: int, text: str) -> None:
        """Note that a worker can not have its address: the server fails."""
        self.failure = self.failure or ServerError(f"worker {owner}: {text}")

    def opened(self, owner: int) -> None:
        """Note that an owner has opened the sources of all feeds."""
        self._opened.add(owner)
        self._order_all_opened()

    def marked(self, mark: str, owner: int, feed: str, generation: int) -> None:
        """Note that an owner knows that trainers use a feed, or that its state was touched."""
        self._marked[mark].append([feed, generation])
        self._order_all_opened()

    def _order_all_opened(self) -> None:
        if self.open and self._several:
            self.order(order="all_opened", **self._marked)

    def over(self, owner: int, feed: str, code: str, text: str) -> None:
        """Note that a feed has ended at one owner, or has failed there."""
        state = self._feeds[feed]
        if code:
            if state.end is None:
                state.end = code, text
                logger.error("feed %r failed: %s", feed, text)
                self.note("feed failed", f"{feed}: {text}")
                if self._several:
                    self.fail(feed, code, text)
            return
        state.well.add(owner)
        if len(state.well) == self.starts.config.workers and state.end is None:
            logger.info("feed %r has ended", feed)
            state.end = "", ""

    def bad(self, owner: int, feed: str, bad: Mapping[str, int]) -> None:
        """Note an owner's bad examples; fail the feed where those of all owners are too many."""
        state = self._feeds[feed]
        state.bad[owner] = dict(bad)
        if state.failed is None:
            policy = self.starts.config.feed(feed).declaration.policy
            if text := policy.too_bad(added(state.bad.values())):
                state.failed = "data", text
                self.over(owner, feed, "data", text)

    @property
    def _several(self) -> bool:
        """Whether there are other owners, which an owner's report concerns."""
        return self.starts.config.workers > 1

    # Deaths

    def died(self, words: str, post: Post, entry: Entry, now: float) -> bool:
        """Judge the death of a worker; return whether to begin its next life."""
        with self.lock:
            failure = self.deadly_rows.died(entry, words)
        logger.warning("%s", words)
        self.note("worker died", words)
        if self.failure is not None:  # workers end because the locator has ended
            return False
        if failure:
            self.fail(entry.feed, "data", failure)
            post.explain()
        if failure is not None or post.forgives(now):
            return True
        times = f"It died {FORGIVEN + 1} times within {WINDOW_S:.0f} s and is given up."
        self.give_up(f"{words}\n{times}")
        return False

    def give_up(self, text: str) -> None:
        """Let the server fail: a worker is not started again."""
        with self.lock:  # before the end of a feed can wake a waiting thread
            self.failure = self.failure or ServerError(text)
            for state in self._feeds.values():
                state.end = state.end or ("server", text)
            self.lock.notify_all()
        self.order(LOCATOR, order="fail", code="server", text=text)

    def fail(self, feed: str, code: str, text: str) -> None:
        """Let a feed fail at every owner, and in lives of owners that begin."""
        state = self._feeds[feed]
        state.failed = state.failed or (code, text)
        self.order(order="fail", feed=feed, code=code, text=text)

    # Queries

    @property
    def open(self) -> bool:
        """Whether all owners have opened the sources of all feeds."""
        return len(self._opened) == self.starts.config.workers

    def failed_early(self) -> HeadraceError | None:
        """Return why a feed can not even be opened; faults of data are reported to trainers."""
        ends = (state.end for state in self._feeds.values() if state.end is not None)
        return next((from_code(*end) for end in ends if end[0] not in ("", "data")), None)

    def outcome(self) -> dict[str, tuple[str, str]]:
        """Return by feed that is over: error code (empty: well) and text."""
        return {name: state.end for name, state in self._feeds.items() if state.end is not None}

    def begun(self) -> dict[str, object]:
        """Return the facts on feeds that ``Switchboard.begin`` needs in a new life of an owner."""
        failed = {
            name: state.failed for name, state in self._feeds.items() if state.failed is not None
        }
        return {"failed": failed, "all_opened": self._marked if self.open else None}
