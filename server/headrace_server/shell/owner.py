"""A worker that owns its feeds: it makes their batches, leases them, and takes commits and states.

    trainers of this host ══ channels ══► ┌─ reception ─► desks ─┐
    trainers elsewhere ══ front, relay ══► │                      ├─► outbox ─► trainers
    supervisor ── orders ────────────────► └─ partitions ◄────────┘

One thread, one poll, one loop: hear trainers, do what the desks decide, make the batch that is
wanted next.  So a save is judged, kept and answered in one place, and its answer goes out together
with the batch that it allows.

A step that takes long, in a function of the user or in a slow read, must not make the server deaf.
During a step the desks belong to nobody: a second thread, the *porter*, hears trainers and orders
when the step has taken 20 ms, hands out batches that are ready, and accepts commits.  Actions on
partitions wait until the step has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from headrace_proto.channel import Channel
from headrace_proto.clock import AwakeClock
from headrace_proto.codec import pack
from headrace_proto.cores import cores
from headrace_proto.spin import Spin

from ..core import segment_dispatch
from ..core.handover import Claim, Dealt, Freed, Leave, Release, Save, Send, Taken, Want
from ..core.keeping import KeepingDispatcher
from .child import ParentPipe
from .config import RunConfig
from .desk import Desk
from .exchange import TrainersExchange
from .house import House
from .partitions import Life, Partitions
from .relay import Began, FarOutbox, Ready, RelayDoor
from .sessions import SessionTable, remove_files
from .worker_messages import FROM_WORKER, Made, Turn

__all__ = ["Owner"]

_TICK_S = 0.1
#: The front starts at the same time.
_FRONT_S = 600.0
#: Messages by way of the front that are handled before those of this host get their turn.
_BURST = 256
#: Descriptors that one trainer needs: its session's file and its channel …
_OF_TRAINER = 2
#: … and those that files of data and everything else need, but no more than half of all.
_OTHERS = 256
#: A step that has taken so long is late …
_LATE_S = 0.02
#: … and the time between two looks whether one is.
_LOOK_S = 0.05
#: What trainers say to an answer is heard at once, for so many rounds of one look.
_ROUNDS = 8
#: A description with more columns is checked against the limit of a message's header.
_MANY_COLUMNS = 64


class Owner(House):
    """One life of the owner of a server's feeds."""

    def __init__(self, life: Life, pipe: ParentPipe, begun: Mapping[str, Any]) -> None:
        """``begun``: "paused", and by feed code and text of a failure that it begins with."""
        config = life.config
        logging.getLogger("headrace.router").setLevel(config.log_level)
        directory = Path(config.directory)
        _remove_traces(config, life)
        who = b"%d-%d" % (life.worker, life.number)
        self._door = RelayDoor(Channel.connect(directory / "workers", [who], _FRONT_S))
        trainers, why = _bound(config.max_trainers)
        sessions = SessionTable(directory, trainers, why, life.worker, config.workers)
        near = TrainersExchange(
            directory / f"trainers-{life.worker}",
            trainers,
            lambda identity: sessions.of_connection(identity) is not None,
        )
        outbox = FarOutbox(self._door, directory, None, sessions, near)
        clock = AwakeClock(2 * _TICK_S)
        super().__init__(config, pipe, clock, self._door, sessions, near, outbox, life.worker)
        self._life = life
        self._taken = dict.fromkeys(self._desks, 0)
        self._partitions = Partitions(life, self._hear_partition)
        self._next_tick = 0.0
        self._numbers = near.fileno(), self._door.fileno(), pipe.fileno()
        self._poller = select.epoll()
        self._spin = Spin(cores() - config.workers + 1)  # a core for each owner, and one
        self._lock = threading.RLock()  # of all but the partitions
        self._undealt: dict[str, list[Send]] = {}  # by feed: batches whose rounds are being stored
        self._working_since = 0.0  # when the step of now has begun
        self._deferred: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        for desk in self._desks.values():
            desk.await_others()
            if desk.name in begun["failed"]:
                desk.fail(*begun["failed"][desk.name])
        self._pausing = self._paused = bool(begun["paused"])
        self._all_back = False

    def filenos(self) -> Iterator[int]:
        """Numbers of files that a child of this process must not have."""
        yield self._door.fileno()
        yield from self._near.filenos()

    def run(self) -> None:
        """Open the feeds, and serve them until told to stop."""
        self._door.tell(Began())
        partitions, poller = self._partitions, self._poller
        stores = partitions.stores.fileno()
        for fileno in (*self._numbers, stores):
            if fileno >= 0:
                poller.register(fileno, select.EPOLLIN)
        threading.Thread(target=self._attend, name="headrace-porter", daemon=True).start()

        def rest(at_most_ms: int) -> list[tuple[int, int]]:
            # A thread that writes would wait for the interpreter while this one polls.
            expects = self._near.anybody and not partitions.stores.writing
            return self._spin.wait(poller.poll, at_most_ms / 1000, expects)

        with self._lock:
            for desk in self._desks.values():
                if desk.failure is None:
                    for assign, cursor in desk.open_partitions(self._life.worker):
                        self._step(partitions.obey, assign, [cursor])
            busy = True
            while not self._stopping:
                events = poller.poll(0) if busy else partitions.rest(rest, int(1000 * _TICK_S))
                ready = {fileno for fileno, _ in events}
                if stores in ready:
                    partitions.tell_committed()
                self._hear(ready)
                name = partitions.turn()
                busy = name is not None or self._door.waits()
                if name is not None:
                    if self._outbox.has_batches:  # the step may take long
                        self._outbox.flush()
                    self._step(partitions.work, name)
                partitions.keep()
                partitions.tell_kept(rests=name is None)
                self._act()
                if self._undealt:
                    self._deliver_dealt()
                self._outbox.flush()

    def _hear(self, ready: Set[int]) -> None:
        """Hear trainers and orders, and do what the desks decide."""
        near, door, pipe = self._numbers
        if near in ready:
            self._reception.hear_near()
        if door in ready:
            self._door.hear()
        self._reception.hear(_BURST)
        if pipe in ready:
            for order in self._pipe.read_orders():
                self._obey(order)
        now = self._clock()
        if now >= self._next_tick:
            self._next_tick = now + _TICK_S
            self._reception.tick(now)
            self._near.tick()
            self._pipe.check_parent()
        if self._door.all_back and not self._all_back:
            self._all_back = True
            for desk in self._desks.values():
                desk.all_are_back()
                desk.dispatcher.paused = self._paused
        self._act()

    def _step(self, step: Callable[..., None], *values: Any) -> None:
        """Let the partitions work; the porter may use everything else meanwhile."""
        self._working_since = time.monotonic()
        self._lock.release()
        try:
            step(*values)
        finally:
            self._lock.acquire()
            self._working_since = 0.0
        while self._deferred:
            action, arguments = self._deferred.popleft()
            action(*arguments)

    def _attend(self) -> None:
        """The porter: serve trainers while a step takes long."""
        try:
            while True:
                time.sleep(_LOOK_S)
                since = self._working_since
                if not since or time.monotonic() - since < _LATE_S:
                    continue
                with self._lock:
                    for _ in range(_ROUNDS):
                        ready = {fileno for fileno, _ in self._poller.poll(0)}
                        if self._working_since:
                            self._hear(ready)
                            self._outbox.flush()
                        if not ready:
                            break
                    if self._stopping:  # nobody knows when the step ends
                        self.close()
                        os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def close(self) -> None:
        """Tell all trainers that the server stops, and close what this process has open."""
        self._reception.close()
        self._near.close()
        self._sessions.close()

    def _obey(self, order: Mapping[str, Any]) -> None:
        self._paused = self._paused or order["order"] == "pause"
        super()._obey(order)

    def _report(self) -> None:
        if not self._told_open and all(desk.opened for desk in self._desks.values()):
            self._door.tell(Ready())  # before anybody learns the address
        super()._report()

    # The partitions, in this process

    def _hear_partition(self, message: Any, *payload: bytes) -> None:
        if isinstance(message, Made) and len(message.columns) > _MANY_COLUMNS:
            FROM_WORKER.encode(message)
        with self._lock:
            if isinstance(message, Made):
                self._on_made(message, payload[0], self._life.worker, self._life.number)
            else:
                self._on_message(message, list(payload))

    def _obey_soon(self, message: object, payload: list[bytes]) -> None:
        """Have the partitions do something, after the step of now."""
        self._do(self._partitions.obey, message, payload)

    def _do(self, action: Callable[..., object], *arguments: Any) -> None:
        if self._working_since:
            self._deferred.append((action, arguments))
        else:
            action(*arguments)

    def _workers_there(self) -> list[int]:
        return [self._life.worker]

    def _tell_all(self, message: object) -> None:
        self._obey_soon(message, [])

    def _tell_owner(self, feed: str, partition: int, message: object) -> None:
        self._obey_soon(message, [])

    def _on_taken(self, desk: Desk, effect: Taken) -> None:
        self._taken[desk.name] += 1
        self._do(self._partitions.taken, desk.name, self._taken[desk.name])

    def _on_freed(self, desk: Desk, effect: Freed) -> None:
        if desk.forget_block(effect.batch):
            batch = effect.batch
            self._do(self._partitions.free, desk.name, batch.partition, batch.number)

    def _on_dealt(self, desk: Desk, effect: Dealt) -> None:
        dispatcher = desk.dispatcher
        if isinstance(dispatcher, KeepingDispatcher):
            # In one store, so as a whole or not at all; it may be used while partitions work.
            told = pack(dispatcher.rounds_told())
            self._partitions.stores.note(self._rounds_store(desk), "rounds", told)
            if not self._partitions.stores.settled(self._rounds_store(desk)):
                self._undealt.setdefault(desk.name, [])

    def _rounds_store(self, desk: Desk) -> tuple[str, int]:
        return desk.name, desk.partitions[0]

    def _deliver(self, desk: Desk, effect: Send) -> None:
        """Hand a batch to its trainer, when the round that it is of is stored."""
        if desk.name in self._undealt:
            self._undealt[desk.name].append(effect)
        else:
            super()._deliver(desk, effect)

    def _deliver_dealt(self) -> None:
        """Hand out batches that waited for their rounds to be stored."""
        for name in list(self._undealt):
            desk = self._desks[name]
            if self._partitions.stores.settled(self._rounds_store(desk)):
                for effect in self._undealt.pop(name):
                    if desk.dispatcher.holds(effect.session, effect.token):
                        super()._deliver(desk, effect)

    def _on_turn(self, desk: Desk, effect: Save | Want | Leave | Claim | Release) -> None:
        feed, obey = desk.name, self._obey_soon
        if isinstance(effect, Save) and not desk.dispatcher.stateful:
            batch = effect.batch
            about = batch.partition, batch.number, batch.rows
            self._do(self._partitions.done, feed, *about, effect.token)
        elif isinstance(effect, segment_dispatch.Flush):
            message, block = effect.payload
            obey(message, [block])
        elif isinstance(effect, Save):
            batch, (columns, states) = effect.batch, effect.payload
            save = [batch.number, 0 if states is None else 1, columns, effect.token]
            obey(Turn(feed, batch.partition, [save]), [] if states is None else [states])
        elif isinstance(effect, Want):
            obey(Turn(feed, effect.partition, wants=[[effect.upto, effect.stripe]]), [])
        elif isinstance(effect, Leave):
            obey(Turn(feed, effect.partition, leaves=(effect.stripe,)), [])
        elif isinstance(effect, Claim):
            place = effect.place
            claim = [place.token, place.number, place.segments]
            obey(Turn(feed, effect.partition, claims=[claim]), [])
        else:
            obey(Turn(feed, effect.partition, releases=(effect.number,)), [])


def _bound(max_trainers: int) -> tuple[int, str]:
    """Trainers that there may be at once, and why where these are fewer than the option allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    fit = max(1, (limit - min(_OTHERS, limit // 2)) // _OF_TRAINER)
    if fit >= max_trainers:
        return max_trainers, ""
    return fit, (
        f"the limit of open files ({limit}, RLIMIT_NOFILE) allows {fit}, "
        f"and max_trainers={max_trainers}"
    )


def _remove_traces(config: RunConfig, life: Life) -> None:
    """Remove what earlier lives have left in shared memory; trainers' mappings stay valid."""
    if not life.number:
        return
    directory = Path(config.directory)
    for pattern in (f"slab-{life.worker}-*", f"trainers-{life.worker}"):
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)
    remove_files(directory, life.worker, config.workers)
