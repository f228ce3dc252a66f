"""The supervisor: starts front and workers, restarts workers, ends everything in order.

    start ─► front ready ─► workers ready ─► feeds open ─► … ─► stop
                 │               │
              dies: the       dies, or hangs and is ended: told to the front, started again with
              server fails    the next life, until the restart budget is spent; then feeds fail

A death with rows in hand that were in hand at a death before is no case for the budget but for the
quarantine, which finds the row that kills.

It runs in the process that called ``hs.run`` or in ``headrace serve``: one thread that waits for
the deaths of children, and a few that read their pipes.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any

import msgpack

from headrace_proto.clock import AwakeClock, Deadline
from headrace_proto.errors import HeadraceError, ServerError, UnknownFeed, code_of

from ..core.rewinding import BEGINNING
from ..pipeline.by_source import write_sources
from .asks import FRONT, Asks
from .casualties import Casualties
from .child import Child, end, environment
from .chronicle import Chronicle
from .config import FeedConfig, RunConfig
from .counters import too_bad
from .deaths import DeathWatch
from .durable import Durable
from .functions import Heard
from .gathering import gathered
from .keeping import Keeping
from .overview import overview
from .rejoining import TOUCHED, USED, in_use
from .reports import Reports
from .rundir import RunDirectory, forget_journals
from .slots import FORGIVEN, WINDOW_S, Openings, Patience, Slot, end_of, obituary

__all__ = ["Supervisor"]

logger = logging.getLogger("headrace.server")

#: Name of the process with the public address.
_FRONT = "front"
_BACKOFF_S = 0.1
#: Between two attempts to start a worker that the system refuses: it has no process to spare, say.
_RETRY_S = 1.0
_STOP_S = 5.0
#: How long an owner may take to tell its trainers that the server stops; user code may hold it up.
_WORDS_S = 2.0


class Supervisor:
    """One running server."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        start_timeout_s: float,
        worker_timeout_s: float = 60.0,
        worker_memory_bytes: int = 0,
        durable: Durable | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._born: list[Child] = []  # those that may live, for an end without stop()
        self._finalizer = weakref.finalize(self, _abandon, directory, self._born, self._pid)
        if not config.epoch:  # tokens of its lives must differ
            config = replace(config, epoch=secrets.randbits(30) + 1)
        self._config = replace(config, directory=str(directory.path))
        self._directory = directory
        self._patience = Patience(worker_timeout_s, max(worker_timeout_s, start_timeout_s))
        self._clock = AwakeClock(2 * self._patience.look_s)  # of the watcher
        self._worker_memory_bytes = worker_memory_bytes
        self._casualties = Casualties(config)
        self._lock = threading.Condition()
        self._front: Child | None = None
        self._slots: list[Slot] = []
        self._reports = Reports(self._config.workers)
        self._stopping = False
        self._changing = False  # one life of the server ends, and the next is to begin
        self._lives = threading.RLock()  # of whoever begins or ends one
        self._start_timeout_s = start_timeout_s
        self._durable = durable
        self._keeping: Keeping | None = None
        self._failed: dict[str, tuple[str, str]] = {}  # feeds, for owners that begin
        self._marked: dict[str, list[list[Any]]] = {USED: [], TOUCHED: []}  # feeds, generations
        self._begun: dict[int, RunConfig] = {}  # of owners, each with an epoch of its own
        self._before: dict[int, Any] = {}  # by owner: what earlier servers saw committed
        self._timers: list[threading.Timer] = []
        self._starting = threading.Lock()  # a start of a worker is being stored
        self.addresses: list[str] = []
        self.failure: HeadraceError | None = None
        self.draining = False  # whether nothing more is handed out
        self._chronicle = Chronicle()
        self._functions: dict[str, Heard] = {}  # by feed
        self._deaths = DeathWatch(
            self._children, self._on_death, self._look_for_hung, self._patience.look_s
        )
        self._asks = Asks(self._lock, self._wait_for, self._order, self._ended)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    # Start

    def _start(self) -> None:
        timeout_s = self._start_timeout_s
        deadline = Deadline(timeout_s)
        diaries = [self._directory.path / f"diary-{i}" for i in range(self._config.workers)]
        partitions = sum(feed.partitions for feed in self._config.feeds)
        slots = [Slot(i, d, self._patience, partitions) for i, d in enumerate(diaries)]
        self._begin_owners()
        if self._durable is not None:
            told = self._ask_owners, self._order, self._chronicle.note, self.take_back
            self._keeping = Keeping(self._durable, lambda: self._config.epoch, *told)
        declarations = [feed.declaration for feed in self._config.feeds]
        write_sources(declarations, self._directory.path)
        self._front = self._spawn(_FRONT, "headrace_server.shell.front", {})
        self._deaths.begin()
        self._slots = slots
        for slot in self._slots:  # they wait for the front where they are ready first
            self._fill(slot)
        self._await(lambda: self._reports.ready, deadline, timeout_s, "the front to start")
        self.addresses = self._reports.addresses
        self._await(
            lambda: self._reports.open or self._reports.failed_early() is not None,
            deadline,
            timeout_s,
            "the workers to open the sources",
            Openings(self._slots),
        )
        early = self._reports.failed_early()
        if early is not None:
            raise early

    def _await(
        self,
        done: Callable[[], bool],
        deadline: Deadline,
        timeout_s: float,
        what: str,
        openings: Openings | None = None,
    ) -> None:

        def over() -> bool:
            return done() or self.failure is not None or self._stopping

        with self._lock:
            while True:
                deadline.wait(lambda at_most_s: self._lock.wait_for(over, at_most_s))
                if done():
                    return
                if self.failure is not None:
                    raise self.failure
                if self._stopping:
                    raise ServerError("the server was stopped while it started")
                if openings is None or not openings.further():
                    at = "".join(f"; of worker {s.number}: {s.doing}" for s in self._slots[:4])
                    raise ServerError(
                        f"waited start_timeout_s={timeout_s:g} seconds in vain for {what}{at}"
                    )
                deadline = Deadline(timeout_s)

    def _begin_owners(self) -> None:
        """Give each owner of a start an epoch of its own: the first that of the start."""
        for number in range(self._config.workers):
            if number:
                self._config = self._next_epoch()
            self._begun[number] = self._config

    def _next_epoch(self) -> RunConfig:
        if self._durable is not None:
            return self._durable.next_epoch(self._config)
        return replace(self._config, epoch=self._config.epoch + 1)

    def _spawn(
        self, name: str, module: str, extra: Mapping[str, Any], owner: int | None = None
    ) -> Child:
        run = self._config if owner is None else self._begun.get(owner, self._config)
        config = msgpack.packb({"run": run.to_plain(), **extra}, use_bin_type=True)
        child = Child(module, name, config, self._on_event, environment())
        self._born[:] = [one for one in self._born if one.exit_code() is None] + [child]
        return child

    def _fill(self, slot: Slot) -> None:
        with self._lock:
            if self._stopping or self._changing:
                return
            if slot not in self._slots or slot.child is not None:
                return
            slot.begin()
            extra = {
                "worker": slot.number,
                "life": slot.life,
                "diary": slot.diary,
                "sheet": slot.sheet.path,
                "marks": self._casualties.marks(),
                "memory_bytes": self._worker_memory_bytes,
                "begun": {
                    "paused": self.draining,
                    "failed": self._failed,
                    "all_opened": self._marked if self._reports.open else None,
                    "before": self._before.get(slot.number, {}),
                },
            }
            module = "headrace_server.shell.worker"
            child = slot.child = self._spawn(slot.name, module, extra, slot.number)
            self._deaths.wake()
            asked = self._asks.unanswered(slot.number)
        for values in asked:  # the life before may have died with them
            child.order(**values)

    # Events

    def _on_event(self, child: Child, event: Mapping[str, Any]) -> None:
        with self._lock:
            kind, owner = event.get("event"), self._owner_of(child)
            if kind == "passed":
                self._casualties.passed(event["feed"], event["rows"])
            elif kind == "functions":
                self._hear_functions(child.name, event["feed"], event["functions"])
            elif owner is None and kind != "dying":
                pass  # its next life says it again
            elif kind == "answer":
                self._asks.hear(FRONT if child.name == _FRONT else owner or 0, event)
            elif kind == "take_back" and self._keeping is None:  # its beginning: else it is refused
                asked = event["feed"], event["generation"], owner
                target = self._restart_for_trainer
                threading.Thread(target=target, args=asked, daemon=True).start()
            elif self._keeping is None or not self._keeping.hear(event, owner or 0):
                self._hear(child, event, owner or 0)
            self._lock.notify_all()

    def _owner_of(self, child: Child) -> int | None:
        """The number of a worker, 0 of the front; None: it is not there any more."""
        if child.name == _FRONT:
            return 0
        return next((slot.number for slot in self._slots if slot.child is child), None)

    def _hear(self, child: Child, event: Mapping[str, Any], owner: int) -> None:
        """Note a report, and have a feed fail at all owners where it fails at one."""
        kind, feed = event.get("event"), event.get("feed", "")
        failed = feed in self._reports.over
        self._reports.hear(child.name, event, owner)
        if kind == "open":
            self._before.setdefault(owner, event["before"])
        if kind in self._marked:
            self._marked[kind].append([feed, event["generation"]])
        if kind in (*self._marked, "open") and self._reports.open:
            self._soon(self._order, order="all_opened", **self._marked)
        if kind == "over" and event["code"] and not failed:
            self._chronicle.note("feed failed", f"{feed}: {event['text']}")
            self._soon(self._fail, feed, event["code"], event["text"])
        elif kind == "bad" and feed not in self._failed:
            limit, bad = self._most_bad(feed), self._reports.bad(feed)
            if sum(bad.values()) > limit:
                self._reports.fail(feed, "data", too_bad(limit, bad))
                self._soon(self._fail, feed, "data", too_bad(limit, bad))

    def _most_bad(self, feed: str) -> float:
        declared = (one.declaration for one in self._config.feeds if one.name == feed)
        limit = next(declared).policy.max_bad_examples
        return inf if limit is None else limit

    def _soon(self, action: Callable[..., None], *arguments: Any, **named: Any) -> None:
        """Tell the owners something, where there are several; one may take its time to read it."""
        if self._config.workers > 1:
            copied = {name: copy.copy(value) for name, value in named.items()}
            threading.Thread(target=action, args=arguments, kwargs=copied, daemon=True).start()

    def _hear_functions(self, worker: str, feed: str, functions: dict[str, Any]) -> None:
        heard = self._functions.setdefault(feed, Heard(functions))
        changed = heard.again(functions)
        if changed:
            text = f"{worker} runs other functions of feed {feed!r} than those before it: {changed}"
            logger.warning("%s", text)
            self._chronicle.note("functions changed", text)
        elif self._durable is not None:
            try:
                self._durable.note_functions(feed, heard)
            except OSError as error:
                logger.warning("a later start can not compare the functions of %r: %s", feed, error)

    # Snapshots

    def snapshot(self, feed: str | None, timeout_s: float) -> dict[str, Any]:
        """Take one; its token.  No name is that of the only feed."""
        feed = self._named(feed)
        if self._keeping is None:
            raise ServerError(
                f"feed {feed!r} has no state_dir: there is nothing to take a snapshot of"
            )
        try:
            return self._keeping.snapshot(feed, timeout_s)
        except ServerError:
            if self.failure is not None:
                raise self.failure from None
            raise

    def _named(self, feed: str | None) -> str:
        """The feed of a name; no name is that of the only feed."""
        feeds = [one.name for one in self._config.feeds]
        if feed is None and len(feeds) == 1:
            feed = feeds[0]
        if feed is None:
            raise UnknownFeed(f"feed= is needed; this server has {', '.join(map(repr, feeds))}")
        if feed not in feeds:
            raise UnknownFeed(f"feed={feed!r:.120} is none of {', '.join(feeds)}")
        return feed

    # The end of a feed, and its beginning

    def end(self, feed: str | None, cancel: bool = False) -> None:
        """Close a feed's input for good; with ``cancel`` drop rows that are in no batch yet."""
        self.ask("close", feed=self._named(feed), cancel=cancel)

    def restart(self, feed: str | None, force: bool = False) -> None:
        """Start a feed from its beginning.  FeedInUse where trainers use it, unless forced."""
        feed = self._named(feed)
        with self._lives:
            if self._stopping:
                raise ServerError("the server is stopping")
            users = self.ask("users", feed=feed)["users"]
            if users and not force:
                raise in_use(feed, f"it is used by {', '.join(users)}")
            if self._keeping is not None:
                self._keeping.take_back(feed, BEGINNING)
            else:
                self._restart_in_memory(feed)
            if self.failure is not None:
                raise self.failure

    def _restart_for_trainer(self, feed: str, generation: int, owner: int) -> None:
        """A trainer has asked for it, and an owner has found that none uses the feed."""
        try:
            with self._lives:
                if any(f.name == feed and f.generation == generation for f in self._config.feeds):
                    self._restart_in_memory(feed)
        except HeadraceError as error:
            refusal = {"code": code_of(error), "text": str(error)}
            self._order(owner, order="not_taken_back", feed=feed, snapshot=BEGINNING, **refusal)

    def _restart_in_memory(self, feed: str) -> None:
        """Forget what is done of a feed, and replace all workers.

        Other feeds go on as after the death of a worker.
        """
        if self._stopping or self.failure is not None:
            return
        logger.warning("feed %r is taken back to its beginning", feed)
        self._chronicle.note("taken back", f"feed {feed!r} to its beginning")
        anew = {
            one.name: replace(one, generation=one.generation + 1, snapshot=BEGINNING)
            for one in self._config.feeds
            if one.name == feed
        }
        feeds = tuple(anew.get(one.name, one) for one in self._config.feeds)
        self._config = replace(self._config, feeds=feeds)
        with self._or_fail(feed):
            with self._lock:
                self._reports.begin_anew(feed)
                self._changing = True
            try:
                self._end_watch()
                with self._lock:
                    workers = [slot.child for slot in self._slots if slot.child is not None]
                    lives = {slot.number: slot.vacate()[0] for slot in self._slots}
                end(workers, 0.0)
                forget_journals(self._config.directory, feed)
                self._failed.clear()
                self._config = self._next_epoch()
                self._begin_owners()
                for number, life in lives.items():
                    self._order(FRONT, order="worker_died", worker=number, life=life)
            finally:
                with self._lock:
                    self._changing = False
            self._deaths.begin()
            for slot in self._slots:
                self._fill(slot)

    def take_back(self, feed: str, prepared: Callable[[FeedConfig], int]) -> None:
        """Begin the next life of the server, with a feed as it was prepared.

        What ``prepared`` raises comes before anything was ended.
        """
        assert self._durable is not None
        with self._lives:
            if self._stopping or self.failure is not None:
                return
            epoch = prepared(next(one for one in self._config.feeds if one.name == feed))
            with self._or_fail(feed):
                self._end_life()
                self._config = self._durable.take_back(self._config, feed, epoch)
                self._begin_life()

    @contextlib.contextmanager
    def _or_fail(self, feed: str) -> Iterator[None]:
        """Let the server fail where an error leaves it between two lives."""
        try:
            yield
        except Exception as error:
            logger.exception("the server could not begin anew")
            with self._lock:
                if not self._stopping:
                    text = f"feed {feed!r} could not be taken back: {error}"
                    self.failure = self.failure or ServerError(text)
                self._lock.notify_all()
            self._end_life()

    def _end_life(self) -> None:
        with self._lock:
            self._changing = True
        try:
            self._end_children(abruptly=True)
        finally:
            with self._lock:
                self._changing = False

    def _begin_life(self) -> None:
        """Start front and workers again, at the same addresses and in new shared memory."""
        parent = str(self._directory.path.parent)
        self._finalizer()
        self._directory = RunDirectory(parent)
        self._born = []
        args = self._directory, self._born, self._pid
        self._finalizer = weakref.finalize(self, _abandon, *args)
        path, binds = str(self._directory.path), tuple(self.addresses)
        self._config = replace(self._config, directory=path, binds=binds)
        with self._lock:
            self._reports = Reports(self._config.workers)
        self._failed.clear()
        self._marked = {USED: [], TOUCHED: []}
        self._before.clear()
        self._start()

    def _end_watch(self) -> None:
        """No child's death is noticed from now on, and none is started again."""
        self._deaths.end()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _look_for_hung(self) -> None:
        for slot in self._slots:
            slot.look(self._clock())

    def _children(self) -> list[Child]:
        with self._lock:
            every = [self._front, *(slot.child for slot in self._slots)]
        return [child for child in every if child is not None]

    def _on_death(self, child: Child) -> None:
        code = child.wait(_STOP_S)
        child.close()
        slot = next((slot for slot in self._slots if slot.child is child), None)
        end = end_of(code) if slot is None else slot.end(code)
        with self._lock:
            words = obituary(child, end, self._reports.take_dying(child.name))
            if slot is None:
                self._front = None
                self.failure = ServerError(words)
                if self._keeping is not None:
                    self._keeping.close()
                self._lock.notify_all()
                return
            life, entry = slot.vacate()
            verdict = self._casualties.died(entry, words)
        logger.warning("%s", words)
        self._chronicle.note("worker died", words)
        self._order(FRONT, order="worker_died", worker=slot.number, life=life)
        if verdict.failure is not None:
            feed, why = verdict.failure
            self._fail(feed, "data", why)
        if self._config.replay is not None:
            for one in self._config.feeds:
                if one.stateful:  # of others the next life goes on after what is done
                    text = f"{words}\nWith it went the place of the replay: start it again"
                    self._fail(one.name, "server", text)
        if verdict.quarantined:
            logger.warning("skipped from now on: %s", verdict.quarantined)
            self._chronicle.note("row left out", verdict.quarantined)
        if verdict.quarantined or verdict.failure is not None:
            slot.explain()
        if verdict.expected or slot.forgiven(self._clock()):
            self._begin_next(slot, words)
            return
        times = f"It died {FORGIVEN + 1} times within {WINDOW_S:.0f} s and is given up."
        self._give_up(f"{words}\n{times}")

    def _begin_next(self, slot: Slot, words: str) -> None:
        """Begin a worker's next life; where its start can not be stored now, try again later."""
        try:
            self._begin_start(slot.number)
        except OSError as error:  # the disk is full: commits wait for room, too
            logger.warning("%s can not be started now: %s", slot.name, error)
            self._later(_RETRY_S, lambda: self._begin_next(slot, words))
        except HeadraceError as error:
            self._give_up(f"{words}\nThe next life can not begin: {error}")
        else:
            self._fill_later(slot, _BACKOFF_S)

    def _give_up(self, text: str) -> None:
        with self._lock:  # before a feed's end can wake somebody who waits
            self.failure = ServerError(text)
            self._reports.give_up(self.feeds, text)
            self._lock.notify_all()
        self._order(FRONT, order="fail", code="server", text=text)

    def _fail(self, feed: str, code: str, text: str) -> None:
        """A feed can not go on after the death of a worker."""
        self._failed.setdefault(feed, (code, text))  # for lives that begin
        self._order(order="fail", feed=feed, code=code, text=text)

    def _begin_start(self, owner: int) -> None:
        """An owner has died: its next life goes on as after a start of the server."""
        with self._starting:
            if self._stopping or self._changing:
                return
            if self._durable is not None:
                self._config = self._durable.next_start(self._config)
            else:
                self._config = self._next_epoch()
            self._begun[owner] = self._config

    def _fill_later(self, slot: Slot, after_s: float) -> None:
        def fill() -> None:
            try:
                self._fill(slot)
            except OSError as error:
                logger.warning("%s can not be started now: %s", slot.name, error)
                self._fill_later(slot, _RETRY_S)

        self._later(after_s, fill)

    def _later(self, after_s: float, action: Callable[[], None]) -> None:
        timer = threading.Timer(after_s, action)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _order(self, number: int | None = None, /, **values: Any) -> None:
        """Order something of all workers, or of one of them, or of the front."""
        with self._lock:
            owners = {slot.number: slot.child for slot in self._slots}
            children = (
                owners.values() if number is None else [{**owners, FRONT: self._front}.get(number)]
            )
        for child in children:
            if child is not None:
                child.order(**values)

    # While it runs, and the end

    @property
    def feeds(self) -> list[str]:
        """The names of its feeds."""
        return [feed.name for feed in self._config.feeds]

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stopping

    @property
    def over(self) -> bool:
        """Whether every feed has ended or failed."""
        with self._lock:
            return len(self._reports.over) == len(self._config.feeds)

    def outcome(self) -> dict[str, tuple[str, str, dict[str, int]]]:
        """Of each feed that is over: error code (empty = well), text, rows dropped by reason."""
        with self._lock:
            return self._reports.outcome()

    def ask(self, order: str, timeout_s: float = 10.0, **values: Any) -> dict[str, Any]:
        """The answer to an order that has one, of all workers together."""
        return gathered(order, [*self._ask_owners(order, timeout_s, **values).values()])

    def _ask_owners(
        self, order: str, timeout_s: float | None, *failure: Any, **values: Any
    ) -> dict[int, Mapping[str, Any]]:
        return self._asks.ask(range(self._config.workers), order, timeout_s, *failure, **values)

    def _stats(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """The answer of all that have leases or trainers: so it is seen whether they live."""
        told = self._asks.ask(range(FRONT, self._config.workers), "stats", timeout_s)
        told.pop(FRONT)
        return gathered("stats", self._reports.lasting(told))

    def look(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """All that is known of the server, as of now."""
        answer = self._stats(timeout_s)
        with self._lock:
            seen = overview(self._config, answer, self._slots, self._casualties.out())
            return {**seen, "draining": self.draining, "events": self._chronicle.told()}

    def access(self) -> dict[str, Any]:
        """Who is let in and who was refused, as of now."""
        return dict(self._stats()["access"])

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every feed is over, or the server has failed."""
        with self._lock:
            return self._wait_for(lambda: self.over or self.failure is not None, timeout_s)

    def pids(self) -> dict[str, int]:
        """The living children by name."""
        return {child.name: child.pid for child in self._children()}

    def begin_drain(self) -> None:
        """Hand out nothing more."""
        self.draining = True
        self._order(order="pause")

    def drain(self, timeout_s: float) -> bool:
        """Hand out nothing more and wait for the commits of what is out.  Whether all came."""
        self.draining = True
        try:
            self._ask_owners("pause", timeout_s)
        except HeadraceError:
            return self.failure is not None
        return True

    def _ended(self) -> HeadraceError | None:
        """Why the server answers nothing any more."""
        stopped = ServerError("the server was stopped") if self._stopping else None
        return self.failure or stopped

    def _wait_for(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait under the lock, for as long as it takes without a timeout."""
        if timeout_s is None:
            return self._lock.wait_for(done)
        return Deadline(timeout_s).wait(lambda at_most_s: self._lock.wait_for(done, at_most_s))

    def stop(self) -> None:
        """End all children and remove the shared memory.  Harmless when repeated.

        Nothing happens in a forked child of the process that started the server.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            self._lock.notify_all()
        with self._lives:
            self._end_children()
            self._deaths.close()
            self._finalizer()

    def _end_children(self, abruptly: bool = False) -> None:
        """End the watch, and then all that was watched.

        Where that is abrupt trainers are told nothing: they look for the next life of the server.
        """
        if self._keeping is not None:
            self._keeping.close()
        self._end_watch()
        with self._lock:
            self._lock.notify_all()  # what was asked by this life's keeping is over
            front, self._front = self._front, None
            workers = {slot.number: slot.child for slot in self._slots if slot.child is not None}
            self._slots = []  # a timer that has fired already finds no place to fill
        unheard = []
        if not abruptly:
            for owner in workers.values():
                owner.order(order="stop")
            words = Deadline(_WORDS_S)
            unheard = [n for n, owner in workers.items() if owner.wait(words.left_s) is None]
        end(list(workers.values()), 0.0)  # they hold nothing that a kill could hurt
        if front is not None:
            if not abruptly:
                front.order(order="stop", unheard=unheard)
            end([front], 0.0 if abruptly else _STOP_S)


def _abandon(directory: RunDirectory, children: list[Child], pid: int) -> None:
    """The program ends: its children first, for they use what goes with the directory."""
    if os.getpid() == pid:
        for child in children:
            child.kill()
    directory.close()
