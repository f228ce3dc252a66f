"""The supervisor: starts locator and workers, restarts workers, ends everything in order.

    start ─► keys read ─► locator ready ─► workers bound ─► feeds open ─► … ─► stop
                              │               │
                           dies: the       dies, or hangs and is ended: reported to the locator,
                           server fails    started again with the next life, until the restart
                                           budget is spent; then feeds fail

A state directory does not change before the locator has read the keys.

A death with rows at hand that were at hand at the death before is no case for the budget but for
``deadly_rows.py``, which finds the row that kills.

It runs in the process that called ``hs.run`` or in ``headrace serve``.  The processes and
their terms are in ``crew.py``, the state of feeds in ``feeds.py``, and questions to owners in
``asks.py``.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from headrace_proto.clock import Deadline
from headrace_proto.errors import HeadraceError, ServerError
from headrace_proto.interrupts import interrupts_held

from ..journal.state_directory import StateDirectory
from ..pipeline.declaration import Plain
from ..process.child import Child, Message, perform
from ..process.config import BEGINNING, TOUCHED, USED, FeedConfig, RunConfig, in_use
from ..process.rundir import RunDirectory
from ..process.worker_diary import Entry
from ..watch.status import disk_of, overview
from ..watch.statuses import OwnersAnswer, SeenServer, described_batches, joined
from ..watch.watch import Watch
from .asks import LOCATOR, Asks
from .commands import Commands
from .crew import Crew, Starts
from .feeds import Feeds
from .liveness import Patience, Post
from .snapshot_requests import SnapshotRequests

logger = logging.getLogger("headrace.server")

#: Time after which a drain logs what it waits for, the interval of further such lines …
_FIRST_LOOK_S, _LOOK_S = 1.0, 5.0
#: … and the longest time that the workers have to tell it.
_ANSWER_S = 1.0


class Supervisor:
    """One running server."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        start_timeout_s: float,
        worker_timeout_s: float = 60.0,
        worker_memory_bytes: int = 0,
        durable: StateDirectory | None = None,
        begin: Callable[[RunConfig], RunConfig] = lambda config: config,
        watch: Watch | None = None,
    ) -> None:
        """``begin`` begins the state of the server, and returns the config with it.

        ``watch`` answers the commands that only ask.
        """
        self._pid = os.getpid()
        self.born: list[Child] = []  # those that may live, for an end without stop()
        self._finalizer = weakref.finalize(self, _abandon, directory, self.born, self._pid)
        self.starts = Starts(replace(config, directory=str(directory.path)), durable)
        self._worker_memory_bytes = worker_memory_bytes
        self.lock = threading.Condition()
        self.stopped = False  # whether ``stop`` was called
        self._starting = threading.RLock()  # held while a start of the server begins or ends
        self._start_timeout_s = start_timeout_s
        self.durable = durable
        self.addresses: list[str] = []
        self.draining = False  # whether nothing more is handed out
        longest_s = max(worker_timeout_s, start_timeout_s)
        self.crew = Crew(self, Patience(worker_timeout_s, longest_s))
        self.feeds = Feeds(self.lock, self.starts, self.crew.order)
        self.asks = Asks(self)
        feeds = self.feeds
        self._reports: dict[str, Callable[..., None]] = {
            "keys_read": feeds.has_read_keys,
            "ready": self._listens,
            "unusable": feeds.can_not_use_keys,
            "bound": self._bound,
            "not_bound": feeds.can_not_bind,
            "open": feeds.opened,
            USED: partial(feeds.marked, USED),
            TOUCHED: partial(feeds.marked, TOUCHED),
            "over": feeds.over,
            "bad": feeds.bad,
            "answer": self.asks.answer,
            "command": Commands(self, watch or Watch()).on_command,
            "snapshot": lambda owner, **of: self._requests.on_snapshot(owner, **of),
            "take_back": lambda owner, **of: self._requests.on_take_back(owner, **of),
        }
        try:
            self._start(begin)
        except BaseException:
            self.stop()
            raise

    @property
    def config(self) -> RunConfig:
        return self.starts.config

    @property
    def failure(self) -> HeadraceError | None:
        """Why the server has failed; None while it runs."""
        return self.feeds.failure

    # Start

    def _start(self, begin: Callable[[RunConfig], RunConfig]) -> None:
        feeds = self.feeds
        self._requests = SnapshotRequests(self)
        self.crew.begin_locator(self._start_timeout_s)
        if self.config.keys is not None:
            self.crew.wait_until(
                lambda: bool(feeds.keys_read or feeds.unusable), "the locator to read its keys"
            )
            if feeds.unusable is not None:
                raise feeds.unusable
        self.starts.config = begin(self.config)
        self.starts.begin_all()
        self.crew.begin()
        self.crew.wait_until(lambda: bool(feeds.addresses), "the locator to start")
        self.addresses = feeds.addresses
        opened, early = "the workers to open the sources", feeds.failed_early
        self.crew.wait_until(lambda: feeds.open or early() is not None, opened)
        failure = early()
        if failure is not None:
            raise failure

    def begun(self) -> dict[str, Any]:
        """Return the fields of a ``Life`` that concern feeds and memory."""
        return {
            "suspects": self.feeds.deadly_rows.suspects(),
            "memory_bytes": self._worker_memory_bytes,
            "begun": {"paused": self.draining, **self.feeds.begun()},
        }

    def _listens(self, locator: int, addresses: list[str]) -> None:
        """Note the public addresses, and tell the locator where the workers are."""
        self.feeds.addresses = addresses
        for post in self.crew.posts:
            self.crew.locate(post, addresses)

    def _bound(self, owner: int, addresses: list[str]) -> None:
        """Tell the locator where a worker is."""
        post = self.crew.posts[owner]
        post.addresses = addresses
        self.crew.locate(post, self.feeds.addresses)

    def on_event(self, child: Child, event: Message) -> None:
        """Take a report of a child."""
        with self.lock:
            owner = self.crew.number_of(child)
            if owner is not None:  # else its next life reports it again
                perform(self._reports, event, owner)
            self.lock.notify_all()

    def snapshot(
        self, feed: str | None, timeout_s: float, name: str = "", whole: bool = False
    ) -> dict[str, Plain]:
        """Take a snapshot of a feed, or of the only feed; return its token."""
        try:
            return self._requests.snapshot(self.feeds.named(feed), timeout_s, name, whole)
        except ServerError:
            if self.failure is not None:
                raise self.failure from None
            raise

    # The end of a feed, and its beginning

    def end(self, feed: str | None, cancel: bool = False) -> None:
        """Close a feed's input for good; with ``cancel`` drop rows that are in no batch yet."""
        self.ask("close", feed=self.feeds.named(feed), cancel=cancel)

    def restart(self, feed: str | None, force: bool = False) -> None:
        """Start a feed from its beginning.  FeedInUse where trainers use it, unless forced."""
        feed = self.feeds.named(feed)
        with self._starting:
            if self.stopped:
                raise ServerError("the server is stopping")
            users = self.ask("users", feed=feed)["users"]
            if users and not force:
                raise in_use(feed, f"it is used by {', '.join(users.values())}")
            self._requests.take_back(feed, BEGINNING)
            if self.failure is not None:
                raise self.failure

    def take_back(self, feed: str, prepared: Callable[[FeedConfig], int]) -> None:
        """Replace all workers; a feed begins as it was prepared, and others go on.

        An error of ``prepared`` is raised before any process is ended.
        """
        with self._starting:
            if self.stopped or self.failure is not None:
                return
            term = prepared(self.config.feed(feed))
            try:
                with interrupts_held():
                    self._close_requests()
                    self.crew.end_workers()
                    self.starts.take_back(feed, term)
                    with self.lock:
                        self.feeds.begin_anew(feed)
                    self._requests = SnapshotRequests(self)
                    self.crew.resume()
            except Exception as error:
                logger.exception("the workers could not be replaced")
                self.feeds.give_up(f"feed {feed!r} could not be taken back: {error}")

    def on_death(self, words: str, post: Post | None, entry: Entry | None) -> None:
        """Judge the death of a worker, or of the locator."""
        if post is not None and entry is not None:
            if self.feeds.died(words, post, entry, self.crew.clock()):
                self.crew.begin_next(post, words)
            return
        with self.lock:
            self.feeds.failure = ServerError(words)
            self._close_requests()

    # While it runs, and the end

    def ask(self, order: str, timeout_s: float = 10.0, **values: Plain) -> OwnersAnswer:
        """Send an order to all workers; return their answers, joined to one."""
        answers = self.ask_owners(order, timeout_s, **values)
        return joined(OwnersAnswer, [*answers.values()])

    def ask_owners(
        self,
        order: str,
        timeout_s: float | None,
        failure: Callable[[], HeadraceError | None] = lambda: None,
        /,
        **values: Plain,
    ) -> dict[int, Message]:
        return self.asks.ask(range(self.config.workers), order, timeout_s, failure, **values)

    def look(self, timeout_s: float = 10.0) -> SeenServer:
        """Return the status of the whole server, as of now."""
        owners = range(LOCATOR, self.config.workers)
        answers = [*self.asks.ask(owners, "stats", timeout_s).values()]
        more = {"disk": disk_of(self.config.state_directory), "draining": self.draining}
        with self.lock:
            events, posts = [*self.feeds.events], self.crew.posts
            workers = [
                {**post.status, "slab_limit_bytes": self.config.slab_bytes} for post in posts
            ]
            return overview(self.config, answers, workers=workers, events=events, **more)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every feed is over, or the server has failed."""
        with self.lock:
            return self.wait_for(
                lambda: (
                    len(self.feeds.outcome()) == len(self.feeds.names) or self.failure is not None
                ),
                timeout_s,
            )

    def pids(self) -> dict[str, int]:
        """Return the process numbers of the living children, by name."""
        return {child.name: child.pid for child in self.crew.children()}

    def begin_drain(self) -> None:
        """Hand out nothing more."""
        if not self.draining:
            self.draining = True
            logger.info("the server drains: it hands out nothing more, and waits for commits")
            self.crew.order(order="pause")

    def drain(self, timeout_s: float) -> bool:
        """Hand out nothing more and wait for commits; return whether all came."""
        self.begin_drain()
        deadline, look_s = Deadline(timeout_s), _FIRST_LOOK_S
        while True:
            try:
                self.ask_owners("pause", min(look_s, deadline.left_s))
            except HeadraceError:
                why = "; ".join(
                    filter(None, (self._uncommitted(), *(p.inside for p in self.crew.posts)))
                )
                if (ended := self.ended()) is None and deadline.left_s:
                    waits_for = f"commits: {why}" if why else "the answers of the workers"
                    logger.info("the drain waits for %s", waits_for)
                    look_s = _LOOK_S
                    continue
                end = str(ended or f"they were not within {timeout_s:g} s")
                text = "; ".join(filter(None, (end, why)))
                logger.warning("the drain ends while trainers hold batches: %s", text)
                return self.failure is not None
            logger.info("the drain has ended: no trainer holds a batch any more")
            return True

    def _uncommitted(self) -> str:
        """Return which trainers hold batches, for people; "" where no worker answers."""
        try:
            return described_batches(self.look(_ANSWER_S)["feeds"])
        except HeadraceError:
            return ""

    def ended(self) -> HeadraceError | None:
        """Return why the server answers no question any more."""
        stopped = ServerError("the server was stopped") if self.stopped else None
        return self.failure or stopped

    def wait_for(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait under the lock, for as long as it takes without a timeout."""
        if timeout_s is None:
            return self.lock.wait_for(done)
        return Deadline(timeout_s).wait(lambda at_most_s: self.lock.wait_for(done, at_most_s))

    def stop(self) -> None:
        """End all children and remove the shared memory.  Harmless when repeated.

        Nothing happens in a forked child of the process that started the server.
        """
        if os.getpid() != self._pid:
            return
        with interrupts_held():
            with self.lock:
                if self.stopped:
                    return
                self.stopped = True
                self.lock.notify_all()
            with self._starting:
                self._close_requests()
                self.crew.end()
                self.crew.close()
                self._finalizer()

    def _close_requests(self) -> None:
        with self.lock:
            self._requests.close()
            self.lock.notify_all()  # questions of its requests are over


def _abandon(directory: RunDirectory, children: list[Child], pid: int) -> None:
    """End the children, which use the directory, and then remove the directory."""
    if os.getpid() == pid:
        for child in children:
            child.kill()
    directory.close()
