"""The supervisor: starts router and workers, restarts workers, ends everything in order.

    start ─► router ready ─► workers ready ─► feeds open ─► … ─► stop
                 │                │
              dies: the        dies, or hangs and is ended: told to the router, started again with
              server fails     the next life, until the restart budget is spent; then feeds fail

A death with rows in hand that were in hand at a death before is no case for the budget but for the
quarantine, which finds the row that kills.

It runs in the process that called ``hs.run`` or in ``headrace serve``: one thread that waits for
the deaths of children, and a few that read their pipes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgpack

from headrace_proto.errors import HeadraceError, ServerError, UnknownFeed

from .casualties import Casualties
from .child import Child, end, environment
from .chronicle import Chronicle
from .config import FeedConfig, RunConfig
from .durable import Durable
from .keeping import Keeping
from .overview import overview
from .reports import Reports
from .rundir import RunDirectory
from .slots import FORGIVEN, WINDOW_S, Openings, Patience, Slot, end_of, obituary

__all__ = ["Supervisor"]

logger = logging.getLogger("headrace.server")

_BACKOFF_S = 0.1
_STOP_S = 5.0


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
        self._config = replace(config, directory=str(directory.path))
        self._directory = directory
        self._patience = Patience(worker_timeout_s, max(worker_timeout_s, start_timeout_s))
        self._worker_memory_bytes = worker_memory_bytes
        self._casualties = Casualties(config)
        self._lock = threading.Condition()
        self._router: Child | None = None
        self._slots: list[Slot] = []
        self._reports = Reports()
        self._stopping = False
        self._changing = False  # one life of the server ends, and the next is to begin
        self._lives = threading.RLock()  # of whoever begins or ends one
        self._start_timeout_s = start_timeout_s
        self._durable = durable
        self._keeping: Keeping | None = None
        self._requests = 0
        self._timers: list[threading.Timer] = []
        self.addresses: list[str] = []
        self.failure: HeadraceError | None = None
        self.draining = False  # whether nothing more is handed out
        self._chronicle = Chronicle()
        self._wake_r, self._wake_w = os.pipe()
        self._watcher: threading.Thread | None = None
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    # Start

    def _start(self) -> None:
        timeout_s = self._start_timeout_s
        deadline = time.monotonic() + timeout_s
        if self._durable is not None:
            told = self._order, self._chronicle.note, self.take_back
            self._keeping = Keeping(self._durable, self._config.epoch, *told)
        self._router = self._spawn("router", "headrace_server.shell.router", {})
        self._watcher = threading.Thread(target=self._watch, name="headrace-watch", daemon=True)
        self._watcher.start()
        diaries = [self._directory.path / f"diary-{i}" for i in range(self._config.workers)]
        partitions = sum(feed.partitions for feed in self._config.feeds)
        self._slots = [Slot(i, d, self._patience, partitions) for i, d in enumerate(diaries)]
        for slot in self._slots:  # they wait for the router where they are ready first
            self._fill(slot)
        self._await(lambda: self._reports.ready, deadline, timeout_s, "the router to start")
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
        deadline: float,
        timeout_s: float,
        what: str,
        openings: Openings | None = None,
    ) -> None:
        with self._lock:
            while not done():
                if self.failure is not None:
                    raise self.failure
                if self._stopping:
                    raise ServerError("the server was stopped while it started")
                left = deadline - time.monotonic()
                if left <= 0 and openings is not None and openings.further():
                    deadline += timeout_s
                    continue
                if left <= 0:
                    at = "".join(f"; of worker {s.number}: {s.doing}" for s in self._slots[:4])
                    raise ServerError(
                        f"waited start_timeout_s={timeout_s:g} seconds in vain for {what}{at}"
                    )
                self._lock.wait(left)

    def _spawn(self, name: str, module: str, extra: Mapping[str, Any]) -> Child:
        config = msgpack.packb({"run": self._config.to_plain(), **extra}, use_bin_type=True)
        child = Child(module, name, config, self._on_event, environment())
        self._born[:] = [one for one in self._born if one.exit_code() is None] + [child]
        return child

    def _fill(self, slot: Slot) -> None:
        with self._lock:
            if self._stopping or slot not in self._slots:
                return
            slot.begin()
            extra = {
                "worker": slot.number,
                "life": slot.life,
                "diary": slot.diary,
                "sheet": slot.sheet.path,
                "marks": self._casualties.marks(),
                "memory_bytes": self._worker_memory_bytes,
            }
            slot.child = self._spawn(slot.name, "headrace_server.shell.worker", extra)
            self._wake()  # under the lock: after a stop the pipe's number may be another file's

    # Events

    def _on_event(self, child: Child, event: Mapping[str, Any]) -> None:
        with self._lock:
            kind = event.get("event")
            if kind == "passed":
                self._casualties.passed(event["feed"], event["rows"])
            elif self._keeping is None or not self._keeping.hear(event):
                self._reports.hear(child.name, event)
                if kind == "over" and event["code"]:
                    self._chronicle.note("feed failed", f"{event['feed']}: {event['text']}")
            self._lock.notify_all()

    # Snapshots

    def snapshot(self, feed: str | None, timeout_s: float) -> dict[str, Any]:
        """Take one; its token.  No name is that of the only feed."""
        feeds = [one.name for one in self._config.feeds]
        if feed is None and len(feeds) == 1:
            feed = feeds[0]
        if feed is None:
            raise UnknownFeed(f"feed= is needed; this server has {', '.join(map(repr, feeds))}")
        if feed not in feeds:
            raise UnknownFeed(f"feed={feed!r:.120} is none of {', '.join(feeds)}")
        if self._keeping is None:
            raise ServerError(
                f"feed {feed!r} has no state_dir: there is nothing to take a snapshot of"
            )
        return self._keeping.snapshot(feed, timeout_s)

    def take_back(self, feed: str, prepared: Callable[[FeedConfig], int]) -> None:
        """Begin the next life of the server, with a feed as it was prepared.

        What ``prepared`` raises comes before anything was ended.
        """
        assert self._durable is not None
        with self._lives:
            if self._stopping or self.failure is not None:
                return
            epoch = prepared(next(one for one in self._config.feeds if one.name == feed))
            try:
                self._end_life()
                self._config = self._durable.take_back(self._config, feed, epoch)
                self._begin_life()
            except Exception as error:
                logger.exception("the server could not begin anew")
                with self._lock:
                    self.failure = self.failure or ServerError(
                        f"feed {feed!r} could not be taken back: {error}"
                    )
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
        """Start router and workers again, at the same addresses and in new shared memory."""
        parent = str(self._directory.path.parent)
        self._finalizer()
        self._directory = RunDirectory(parent)
        self._born = []
        args = self._directory, self._born, self._pid
        self._finalizer = weakref.finalize(self, _abandon, *args)
        path, binds = str(self._directory.path), tuple(self.addresses)
        self._config = replace(self._config, directory=path, binds=binds)
        with self._lock:
            self._reports = Reports()
        self._start()
        if self.draining:
            self.begin_drain()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"x")

    def _watch(self) -> None:
        """Wait for children to die, and look for workers that hang."""
        while True:
            children = {c.pidfd: c for c in self._children()}
            poller = select.poll()  # select takes no number beyond 1023
            for fd in (self._wake_r, *children):
                poller.register(fd, select.POLLIN)
            readable = [fd for fd, _ in poller.poll(int(self._patience.look_s * 1000))]
            if self._wake_r in readable:
                os.read(self._wake_r, 4096)
            with self._lock:
                if self._stopping or self._changing:
                    return
            for fd in readable:
                if fd in children:
                    self._on_death(children[fd])
            for slot in self._slots:
                slot.look(time.monotonic())

    def _children(self) -> list[Child]:
        with self._lock:
            every = [self._router, *(slot.child for slot in self._slots)]
        return [child for child in every if child is not None]

    def _on_death(self, child: Child) -> None:
        code = child.wait(_STOP_S)
        child.close()
        slot = next((slot for slot in self._slots if slot.child is child), None)
        end = end_of(code) if slot is None else slot.end(code)
        with self._lock:
            words = obituary(child, end, self._reports.take_dying(child.name))
            if slot is None:
                self._router = None
                self.failure = ServerError(words)
                self._lock.notify_all()
                return
            life, entry = slot.vacate()
            verdict = self._casualties.died(entry, words)
        logger.warning("%s", words)
        self._chronicle.note("worker died", words)
        self._order(order="worker_died", worker=slot.number, life=life)
        if verdict.failure is not None:
            feed, why = verdict.failure
            self._order(order="fail", feed=feed, code="data", text=why)
        if verdict.quarantined:
            logger.warning("skipped from now on: %s", verdict.quarantined)
            self._chronicle.note("row left out", verdict.quarantined)
        if verdict.quarantined or verdict.failure is not None:
            slot.explain()
        if verdict.expected or slot.forgiven(time.monotonic()):
            timer = threading.Timer(_BACKOFF_S, self._fill, (slot,))
            timer.daemon = True
            self._timers.append(timer)
            timer.start()
            return
        text = f"{words}\nIt died {FORGIVEN + 1} times within {WINDOW_S:.0f} s and is given up."
        with self._lock:  # before a feed's end can wake somebody who waits
            self.failure = ServerError(text)
            self._lock.notify_all()
        self._order(order="fail", code="server", text=text)

    def _order(self, **values: Any) -> None:
        with self._lock:
            router = self._router
        if router is not None:
            router.order(**values)

    # While it runs, and the end

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
        """The router's answer to an order that has one."""
        with self._lock:
            self._requests += 1
            request, reports = self._requests, self._reports
            reports.expect(request)
        self._order(order=order, request=request, **values)
        with self._lock:
            self._lock.wait_for(
                lambda: reports.answered(request) or self.failure is not None, timeout_s
            )
            answer = reports.take_answer(request)
            if self.failure is not None:
                raise self.failure
            if answer is None:
                raise ServerError(f"the router gave no answer ({order}) within {timeout_s:g} s")
            return answer

    def look(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """All that is known of the server, as of now."""
        answer = self.ask("stats", timeout_s)
        with self._lock:
            seen = overview(self._config, answer, self._slots, self._casualties.out())
            return {**seen, "draining": self.draining, "events": self._chronicle.told()}

    def access(self) -> dict[str, Any]:
        """Who is let in and who was refused, fresh from the router."""
        return dict(self.ask("stats")["access"])

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every feed is over, or the server has failed."""
        with self._lock:
            return self._lock.wait_for(lambda: self.over or self.failure is not None, timeout_s)

    def pids(self) -> dict[str, int]:
        """The living children by name."""
        return {child.name: child.pid for child in self._children()}

    def begin_drain(self) -> None:
        """Hand out nothing more."""
        self.draining = True
        self._order(order="pause")

    def drain(self, timeout_s: float) -> bool:
        """Hand out nothing more and wait for the commits of what is out.  Whether all came."""
        self.begin_drain()
        with self._lock:
            return self._lock.wait_for(
                lambda: self._reports.idle or self.failure is not None, timeout_s
            )

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
            os.close(self._wake_r)
            os.close(self._wake_w)
            self._finalizer()

    def _end_children(self, abruptly: bool = False) -> None:
        """End the watcher, and then all that it watched.

        Where that is abrupt trainers are told nothing: they look for the next life of the server.
        """
        if self._keeping is not None:
            self._keeping.close()
        self._wake()
        for timer in self._timers:
            timer.cancel()
        if self._watcher is not None:
            self._watcher.join()
        with self._lock:
            router, self._router = self._router, None
            workers = [slot.child for slot in self._slots if slot.child is not None]
            for slot in self._slots:
                slot.child = None
        end(workers, 0.0)  # they hold nothing that a kill could hurt
        if router is not None:
            if not abruptly:
                router.order(order="stop")
            end([router], 0.0 if abruptly else _STOP_S)


def _abandon(directory: RunDirectory, children: list[Child], pid: int) -> None:
    """The program ends: its children first, for they use what goes with the directory."""
    if os.getpid() == pid:
        for child in children:
            child.kill()
    directory.close()
