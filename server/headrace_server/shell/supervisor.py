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

import collections
import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from headrace_proto.errors import HeadraceError, ServerError, from_code

from .casualties import Casualties, kills_for_memory
from .child import Child
from .config import RunConfig
from .diary import OPENING, STARTING, Notebook, Stillness
from .rundir import RunDirectory

__all__ = ["Supervisor"]

logger = logging.getLogger("headrace.server")

#: Deaths of one worker that are forgiven within the window; the next one fails the feeds.
_FORGIVEN = 3
_WINDOW_S = 60.0
_BACKOFF_S = 0.1
_STOP_S = 5.0
#: The longest time between two looks at the workers' diaries.
_LOOK_S = 1.0
#: How long a worker that hangs may take to say where, before it is killed.
_WORDS_S = 1.0


@dataclass
class _Slot:
    """One worker's place: who is in it, and how often it fell empty."""

    number: int
    life: int = 0
    child: Child | None = None
    deaths: collections.deque[float] | None = None
    notebook: Notebook | None = None
    stillness: Stillness = field(default_factory=Stillness)
    hung: str = ""  # what is said of a worker that is ended because it hangs
    killed_for_memory: int = 0  # processes of this machine, when the life began


class Supervisor:
    """One running server."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        start_timeout_s: float,
        worker_timeout_s: float = 60.0,
        worker_memory_bytes: int = 0,
    ) -> None:
        self._finalizer = weakref.finalize(self, directory.close)
        self._pid = os.getpid()
        self._config = replace(config, directory=str(directory.path))
        self._directory = directory
        self._worker_timeout_s = worker_timeout_s
        self._opening_timeout_s = max(worker_timeout_s, start_timeout_s)
        self._worker_memory_bytes = worker_memory_bytes
        self._look_s = min(_LOOK_S, worker_timeout_s / 4)
        self._casualties = Casualties(config)
        self._lock = threading.Condition()
        self._router: Child | None = None
        self._slots = [_Slot(i, deaths=collections.deque()) for i in range(config.workers)]
        self._ready = False
        self._open = False
        self._idle = False
        self._stopping = False
        self._dying: dict[str, str] = {}  # child's name → what it said before its end
        self._over: dict[str, tuple[str, str]] = {}
        self._dropped: dict[str, dict[str, int]] = {}
        self._requests = 0
        self._stats: tuple[int, dict[str, Any]] = (0, {})
        self._timers: list[threading.Timer] = []
        self.addresses: list[str] = []
        self.failure: HeadraceError | None = None
        self._wake_r, self._wake_w = os.pipe()
        self._watcher: threading.Thread | None = None
        try:
            self._start(time.monotonic() + start_timeout_s, start_timeout_s)
        except BaseException:
            self.stop()
            raise

    # Start

    def _start(self, deadline: float, timeout_s: float) -> None:
        self._router = self._spawn("router", "headrace_server.shell.router", {})
        self._watcher = threading.Thread(target=self._watch, name="headrace-watch", daemon=True)
        self._watcher.start()
        self._await(lambda: self._ready, deadline, timeout_s, "the router to start")
        for slot in self._slots:
            slot.notebook = Notebook(self._directory.path / f"diary-{slot.number}")
            self._fill(slot)
        self._await(
            lambda: self._open or self._failed_early() is not None,
            deadline,
            timeout_s,
            "the workers to open the sources",
        )
        early = self._failed_early()
        if early is not None:
            raise early

    def _failed_early(self) -> HeadraceError | None:
        """A feed that can not even be opened.  What is wrong with data is told to trainers."""
        for code, text in self._over.values():
            if code not in ("", "data"):
                return from_code(code, text)
        return None

    def _await(
        self, done: Callable[[], bool], deadline: float, timeout_s: float, what: str
    ) -> None:
        with self._lock:
            while not done():
                if self.failure is not None:
                    raise self.failure
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ServerError(
                        f"waited start_timeout_s={timeout_s:g} seconds in vain for {what}"
                    )
                self._lock.wait(left)

    def _spawn(self, name: str, module: str, extra: Mapping[str, Any]) -> Child:
        config = msgpack.packb({"run": self._config.to_plain(), **extra}, use_bin_type=True)
        environment = dict(os.environ)
        path = [os.getcwd() if entry == "" else entry for entry in sys.path]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        environment["PYTHONSAFEPATH"] = "1"
        return Child(module, name, config, self._on_event, environment)

    def _fill(self, slot: _Slot) -> None:
        with self._lock:
            if self._stopping:
                return
            assert slot.notebook is not None
            slot.notebook.clear()
            slot.stillness, slot.hung = Stillness(), ""
            slot.killed_for_memory = kills_for_memory()
            extra = {
                "worker": slot.number,
                "life": slot.life,
                "diary": slot.notebook.path,
                "marks": self._casualties.marks(),
                "memory_bytes": self._worker_memory_bytes,
            }
            name = f"worker-{slot.number}-{slot.life}"
            slot.child = self._spawn(name, "headrace_server.shell.worker", extra)
            self._wake()  # under the lock: after a stop the pipe's number may be another file's

    # Events

    def _on_event(self, child: Child, event: Mapping[str, Any]) -> None:
        with self._lock:
            kind = event.get("event")
            if kind == "dying":
                self._dying[child.name] = str(event["text"])
            elif kind == "ready" and child.name == "router":
                self.addresses = list(event["addresses"])
                self._ready = True
            elif kind == "open":
                self._open = True
            elif kind == "passed":
                self._casualties.passed(event["feed"], event["rows"])
            elif kind == "idle":
                self._idle = True
            elif kind == "stats":
                self._stats = (event["request"], dict(event["feeds"]))
            elif kind == "over":
                self._over[event["feed"]] = (event["code"], event["text"])
                self._dropped[event["feed"]] = dict(event["dropped"])
            self._lock.notify_all()

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
            readable = [fd for fd, _ in poller.poll(int(self._look_s * 1000))]
            if self._wake_r in readable:
                os.read(self._wake_r, 4096)
            with self._lock:
                if self._stopping:
                    return
            for fd in readable:
                if fd in children:
                    self._on_death(children[fd])
            for slot in self._slots:
                self._look_at(slot)

    def _look_at(self, slot: _Slot) -> None:
        """End a worker that has stopped to make progress."""
        child, notebook = slot.child, slot.notebook
        if child is None or notebook is None or slot.hung:
            return
        still_s = slot.stillness.look(notebook.beats(), time.monotonic(), self._look_s)
        entry = notebook.read()
        opens = entry.doing in (STARTING, OPENING)
        if still_s < (self._opening_timeout_s if opens else self._worker_timeout_s):
            return
        option = "start_timeout_s" if opens and still_s > self._worker_timeout_s else ""
        slot.hung = (
            f"made no progress for {still_s:.0f} s "
            f"({option or 'worker_timeout_s'} bounds that) and was ended; {entry.describe()}"
        )
        logger.warning("%s %s", child.name, slot.hung)
        child.kill(signal.SIGABRT)  # by which it says where it is, unless it is stopped
        if child.wait(_WORDS_S) is None:
            child.kill(signal.SIGKILL)

    def _children(self) -> list[Child]:
        with self._lock:
            every = [self._router, *(slot.child for slot in self._slots)]
        return [child for child in every if child is not None]

    def _on_death(self, child: Child) -> None:
        code = child.wait(_STOP_S)
        child.close()
        words = self._obituary(child, code)
        with self._lock:
            if child is self._router:
                self._router = None
                self.failure = ServerError(words)
                self._lock.notify_all()
                return
            slot = next(slot for slot in self._slots if slot.child is child)
            slot.child = None
            life, slot.life = slot.life, slot.life + 1
            assert slot.notebook is not None
            verdict = self._casualties.died(slot.notebook.read(), words)
        logger.warning("%s", words)
        self._order(order="worker_died", worker=slot.number, life=life)
        if verdict.failure is not None:
            feed, why = verdict.failure
            self._order(order="fail", feed=feed, code="data", text=why)
        if verdict.quarantined:
            logger.warning("skipped from now on: %s", verdict.quarantined)
        if verdict.quarantined or verdict.failure is not None:
            slot.deaths = collections.deque()  # they are explained
        if verdict.expected or self._forgiven(slot):
            timer = threading.Timer(_BACKOFF_S, self._fill, (slot,))
            timer.daemon = True
            self._timers.append(timer)
            timer.start()
            return
        text = f"{words}\nIt died {_FORGIVEN + 1} times within {_WINDOW_S:.0f} s and is given up."
        with self._lock:  # before a feed's end can wake somebody who waits
            self.failure = ServerError(text)
            self._lock.notify_all()
        self._order(order="fail", code="server", text=text)

    def _forgiven(self, slot: _Slot) -> bool:
        now = time.monotonic()
        assert slot.deaths is not None
        slot.deaths.append(now)
        while slot.deaths[0] < now - _WINDOW_S:
            slot.deaths.popleft()
        return len(slot.deaths) <= _FORGIVEN

    def _obituary(self, child: Child, code: int | None) -> str:
        slot = next((slot for slot in self._slots if slot.child is child), None)
        if slot is not None and slot.hung:
            end = slot.hung
        elif code is not None and code < 0:
            end = f"was killed by {_signal_name(-code)}"
            if slot is not None and code == -signal.SIGKILL:
                n = kills_for_memory() - slot.killed_for_memory
                if n > 0:
                    end += f", and the kernel killed {n} while it lived because memory had run out"
        else:
            end = f"ended with exit code {code}"
        with self._lock:
            said = self._dying.pop(child.name, None)
        last = child.words()
        text = f"{child.name} {end}"
        if said:
            text += f": {said}"
        return f"{text}; its last words were:\n{last}" if last and not said else text

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
            return len(self._over) == len(self._config.feeds)

    def outcome(self) -> dict[str, tuple[str, str, dict[str, int]]]:
        """Of each feed that is over: error code (empty = well), text, rows dropped by reason."""
        with self._lock:
            return {f: (*end, self._dropped.get(f, {})) for f, end in self._over.items()}

    def stats(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """Counters of every feed, fresh from the router."""
        with self._lock:
            self._requests += 1
            request = self._requests
        self._order(order="stats", request=request)
        with self._lock:
            answered = self._lock.wait_for(
                lambda: self._stats[0] >= request or self.failure is not None, timeout_s
            )
            if self.failure is not None:
                raise self.failure
            if not answered:
                raise ServerError(f"the router gave no counters within {timeout_s:g} s")
            return self._stats[1]

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every feed is over, or the server has failed."""
        with self._lock:
            return self._lock.wait_for(
                lambda: len(self._over) == len(self._config.feeds) or self.failure is not None,
                timeout_s,
            )

    def pids(self) -> dict[str, int]:
        """The living children by name."""
        return {child.name: child.pid for child in self._children()}

    def drain(self, timeout_s: float) -> bool:
        """Hand out nothing more and wait for the commits of what is out.  Whether all came."""
        self._order(order="pause")
        with self._lock:
            return self._lock.wait_for(lambda: self._idle or self.failure is not None, timeout_s)

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
        for child in workers:
            child.kill(signal.SIGKILL)  # they hold nothing that a kill could hurt
        if router is not None:
            router.order(order="stop")
        for child in [*workers, *([router] if router else [])]:
            if child.wait(_STOP_S) is None:
                child.kill(signal.SIGKILL)
                child.wait(_STOP_S)
            child.close()
        os.close(self._wake_r)
        os.close(self._wake_w)
        self._finalizer()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
