"""The processes of a server, its front and its workers: started, given orders, replaced, ended.

    begin() ─► front, workers ─► order(), ask() ─► … ─► end()
                    │ die
                    └─► on_death ─► begin_next() ─► the next life, once it can be started

One thread waits for deaths, and a few read the pipes of the children.  The lock is the
supervisor's, who decides what a death means.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgpack

from headrace_proto.clock import AwakeClock, Deadline
from headrace_proto.errors import HeadraceError, ServerError

from ..process.child import Child, end, environment
from ..process.diary import Entry
from .asks import FRONT
from .deaths import DeathWatch
from .posts import Openings, Patience, Slot, end_of, obituary
from .starts import Starts

__all__ = ["Crew"]

logger = logging.getLogger("headrace.server")

#: Name of the process with the public address.
_FRONT = "front"
_BACKOFF_S = 0.1
#: Between two attempts to start a worker that the system refuses: it has no process to spare, say.
_RETRY_S = 1.0
_STOP_S = 5.0
#: How long an owner may take to tell its trainers that the server stops; user code may hold it up.
_WORDS_S = 2.0


class Crew:
    """All children of one server."""

    def __init__(
        self,
        lock: threading.Condition,
        patience: Patience,
        starts: Starts,
        born: list[Child],
        begun: Callable[[int], Mapping[str, Any]],
        asked: Callable[[int], Iterable[Mapping[str, Any]]],
        on_event: Callable[[Child, Mapping[str, Any]], None],
        on_death: Callable[[str, Slot | None, Entry | None], None],
        give_up: Callable[[str], None],
    ) -> None:
        """``begun``: what a worker's life begins with; ``asked``: orders that it must answer.

        Those that may live are in ``born``, for an end without ``end``.  ``on_death`` has words on
        it; of a worker its slot and its diary.  ``give_up``: no next life can begin.
        """
        self._lock = lock
        self._patience = patience
        self.clock = AwakeClock(2 * patience.look_s)  # of the watcher
        self._starts = starts
        self._born = born
        self._begun = begun
        self._asked = asked
        self._on_event = on_event
        self._on_death = on_death
        self._give_up = give_up
        self._closed = True  # whether a server's start has ended, and no next one has begun
        self._timers: list[threading.Timer] = []
        self._timeout_s, self._deadline = 0.0, Deadline(0.0)  # of a begin
        self._front: Child | None = None
        self.slots: list[Slot] = []
        self._deaths = DeathWatch(self.children, self._bury, self._look_for_hung, patience.look_s)

    def begin(self, timeout_s: float) -> None:
        """Start the front and all workers, which wait for it where they are ready first.

        Nobody waits longer for them than ``timeout_s``, but while workers get further.
        """
        self._timeout_s, self._deadline = timeout_s, Deadline(timeout_s)
        config = self._starts.config
        diaries = [Path(config.directory) / f"diary-{i}" for i in range(config.workers)]
        partitions = sum(feed.partitions for feed in config.feeds)
        slots = [Slot(i, d, self._patience, partitions) for i, d in enumerate(diaries)]
        front = self._spawn(_FRONT, "headrace_server.front.front", {})
        with self._lock:
            self._front, self.slots = front, slots
        self.resume()

    def wait_until(
        self, done: Callable[[], bool], ended: Callable[[], HeadraceError | None], what: str
    ) -> None:
        """Wait for something that children that begin do; an error where the server has ended."""
        openings = Openings(self.slots)
        with self._lock:
            while True:
                self._deadline.wait(
                    lambda at_most_s: self._lock.wait_for(lambda: done() or ended(), at_most_s)
                )
                error = ended()
                if done():
                    return
                if error is not None:
                    raise error
                if not openings.further():
                    at = "".join(f"; of worker {s.number}: {s.doing}" for s in self.slots[:4])
                    raise ServerError(
                        f"waited start_timeout_s={self._timeout_s:g} seconds in vain for {what}{at}"
                    )
                self._deadline = Deadline(self._timeout_s)

    def resume(self) -> None:
        """Watch the children, and start the workers that are not there."""
        with self._lock:
            self._closed = False
        self._deaths.begin()
        for slot in self.slots:
            self._fill(slot)

    def _spawn(
        self, name: str, module: str, extra: Mapping[str, Any], owner: int | None = None
    ) -> Child:
        run = self._starts.of(owner).to_plain()
        config = msgpack.packb({"run": run, **extra}, use_bin_type=True)
        child = Child(module, name, config, self._on_event, environment())
        self._born[:] = [one for one in self._born if one.exit_code() is None] + [child]
        return child

    def _fill(self, slot: Slot) -> None:
        with self._lock:
            if self._closed or slot not in self.slots or slot.child is not None:
                return
            slot.begin()
            extra = {
                "worker": slot.number,
                "life": slot.life,
                "diary": slot.diary,
                "sheet": slot.sheet.path,
                **self._begun(slot.number),
            }
            module = "headrace_server.worker.worker"
            child = slot.child = self._spawn(slot.name, module, extra, slot.number)
            self._deaths.wake()
            asked = list(self._asked(slot.number))
        for values in asked:  # the life before may have died with them
            child.order(**values)

    # Deaths

    def _look_for_hung(self) -> None:
        for slot in self.slots:
            slot.look(self.clock())

    def _bury(self, child: Child) -> None:
        code = child.wait(_STOP_S)
        child.close()
        slot = next((slot for slot in self.slots if slot.child is child), None)
        words = obituary(child, end_of(code) if slot is None else slot.end(code))
        with self._lock:
            if slot is None:
                self._front = None
                self._on_death(words, None, None)
                return
            life, entry = slot.vacate()
        self.order(FRONT, order="worker_died", worker=slot.number, life=life)
        self._on_death(words, slot, entry)

    def begin_next(self, slot: Slot, words: str) -> None:
        """Begin a worker's next life; where its start can not be stored now, try again later."""
        if self._closed:
            return
        try:
            self._starts.begin(slot.number)
        except OSError as error:  # the disk is full: commits wait for room, too
            logger.warning("%s can not be started now: %s", slot.name, error)
            self._later(_RETRY_S, lambda: self.begin_next(slot, words))
        except HeadraceError as error:
            self._give_up(f"{words}\nThe next life can not begin: {error}")
        else:
            self._fill_later(slot, _BACKOFF_S)

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

    # Processes, by name

    def by_number(self) -> dict[int, Child | None]:
        """The front and all workers; None of those that are dead."""
        with self._lock:
            return {FRONT: self._front, **{slot.number: slot.child for slot in self.slots}}

    def children(self) -> list[Child]:
        """Those that live."""
        return [child for child in self.by_number().values() if child is not None]

    def number_of(self, child: Child) -> int | None:
        """Which worker a child is, or FRONT; None: it is not there any more."""
        if child.name == _FRONT:
            return FRONT
        return next((slot.number for slot in self.slots if slot.child is child), None)

    def order(self, number: int | None = None, /, **values: Any) -> None:
        """Order something of all workers, or of one of them, or of the front."""
        for one, child in self.by_number().items():
            if child is not None and (one == number or (number is None and one != FRONT)):
                child.order(**values)

    # The end

    def _close(self) -> None:
        """No child's death is noticed from now on, and none is started again."""
        with self._lock:
            self._closed = True
        self._deaths.end()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def end_workers(self) -> None:
        """End all workers; ``resume`` starts their next lives."""
        self._close()
        with self._lock:
            workers = [slot.child for slot in self.slots if slot.child is not None]
            lives = {slot.number: slot.vacate()[0] for slot in self.slots}
        end(workers, 0.0)
        for number, life in lives.items():
            self.order(FRONT, order="worker_died", worker=number, life=life)

    def end(self, abruptly: bool = False) -> None:
        """End all; where that is abrupt trainers are told nothing: they look for the next life."""
        self._close()
        with self._lock:
            front, self._front = self._front, None
            workers = {slot.number: slot.child for slot in self.slots if slot.child is not None}
            self.slots = []  # a timer that has fired already finds no place to fill
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

    def close(self) -> None:
        """End the watch for good."""
        self._deaths.close()
