"""The router process: owns the public socket, and decides nothing itself.

    public socket   ─► reception (trainers) ─┐                                   ┌─► outbox
    channels        ─► of this host, too    ─┤                                   │
    channels        ─► workers' messages    ─┼─► desks (one per feed) ─► effects ─┴─► news
    supervisor      ─► orders               ─┤
    clock           ─► ticks                ─┘

Time is that of one clock, which stands still while this process is suspended, so leases do not end
because the server slept; and a round hears before it ticks.

One thread, one poll, no wait but the poll.  A message that can not be sent now means a trainer
that is gone or stuck: it is dropped, and the lease or the trainer's next Hello brings it again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zmq

from headrace_proto.clock import AwakeClock

from ..core.handover import (
    Claim,
    Dealt,
    Freed,
    Leave,
    Release,
    Save,
    Taken,
    Want,
)
from .child import ParentPipe
from .config import RunConfig
from .connections import Connections
from .descriptors import divide, own, undivide
from .desk import Desk
from .exchange import SPARE, Exchange, TrainersExchange
from .front import serve as serve_front
from .gate import Gate
from .house import House
from .news import News
from .outbox import Outbox
from .sessions import SessionTable
from .sockets import CanNotBind, bind_all, public_router, waits
from .worker_messages import (
    FROM_ROUTER,
    FROM_WORKER,
    Made,
    Up,
)

__all__ = ["Router", "main"]

logger = logging.getLogger("headrace.router")

_TICK_S = 0.1
#: Messages taken from one socket before the others get their turn.
_BURST = 256


class Router(House):
    """One router."""

    def __init__(self, config: RunConfig, pipe: ParentPipe) -> None:
        directory = Path(config.directory)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._public = public_router(self._context)
        self._workers: Exchange | None = None
        self._news: dict[tuple[int, int], News] = {}  # by worker and life
        others = 2 * (config.workers + SPARE) + len(config.binds)
        division = divide(others, config.max_trainers)
        why = ""
        if division.trainers < config.max_trainers:
            why = (
                f"the limit of open files ({division.limit}, RLIMIT_NOFILE) allows "
                f"{division.trainers}, and max_trainers={config.max_trainers}"
            )
            logger.warning("%s: raise it (ulimit -n, LimitNOFILE=, ulimits: nofile)", why)
        self._connections = Connections(self._context, self._public, division.connections)
        self._gate = Gate(self._context, self._public, config.keys, self._connections)
        sessions = SessionTable(directory, division.trainers, why)
        near = TrainersExchange(
            directory / "trainers",
            division.trainers,
            lambda identity: sessions.of_connection(identity) is not None,
        )
        outbox = Outbox(directory, self._public, sessions, near)
        clock = AwakeClock(2 * _TICK_S)
        super().__init__(config, pipe, clock, self._gate, sessions, near, outbox)
        self._buried: set[str] = set()  # prefixes of segments of dead workers
        self._next_tick = 0.0

    def bind(self) -> list[str]:
        """Bind all sockets; the addresses that trainers can use."""
        self._workers = Exchange(self.directory / "workers", 2 * self._config.workers + SPARE)
        return bind_all(self._public, self._config.binds)

    def run(self) -> None:
        """Serve until told to stop."""
        assert self._workers is not None
        workers, near, pipe = self._workers.fileno(), self._near.fileno(), self._pipe.fileno()
        questions = self._gate.questions
        by_zeromq = [self._public] if questions is None else [self._public, questions]
        numbers = [int(socket.getsockopt(zmq.FD)) for socket in by_zeromq]
        connections = self._connections
        poller = select.epoll()
        for number in (workers, near, pipe, connections.fileno(), *numbers):
            poller.register(number, select.EPOLLIN)
        look = True
        while not self._stopping:
            # ZeroMQ's file numbers tell of changes only, and not of those that came while a socket
            # was used: after that it is looked at.  A look costs as much as a small message.
            at_most_s = 0.0 if look and any(map(waits, by_zeromq)) else _TICK_S
            if connections.more:
                at_most_s = 0.0
            ready = {number for number, _ in poller.poll(at_most_s)}
            changed = not ready.isdisjoint(numbers)
            heard = 0
            if workers in ready:
                self._hear_workers()
            if connections.more or connections.fileno() in ready:
                connections.hear(self._clock())
                connections.end_surplus(self._clock())
            if questions is not None and (look or changed):
                self._gate.answer(self._clock())
            if near in ready:
                self._reception.hear_near()
            if look or changed:
                heard = self._reception.hear(_BURST)
            look = changed or bool(heard)
            if pipe in ready:
                for order in self._pipe.read_orders():
                    self._obey(order)
            now = self._clock()
            if now >= self._next_tick:
                self._next_tick = now + _TICK_S
                connections.end_surplus(now)
                self._reception.tick(now)
                for exchange in (self._workers, self._near):
                    exchange.tick()
                self._retire_buried()
                self._pipe.check_parent()
                look = True
            self._act()
            look = self._outbox.used_socket() or look

    def close(self) -> None:
        self._reception.close()
        self._public.linger = 300  # the words of the end get a moment to leave
        self._gate.close()
        self._connections.close()
        self._public.close()
        self._near.close()
        self._sessions.close()
        if self._workers is not None:
            self._workers.close()
        self._context.term()
        undivide()

    # Workers

    def _hear_workers(self) -> None:
        assert self._workers is not None
        for identity, (header, *payload) in self._workers.hear():
            worker, life = map(int, identity.split(b"-"))
            message = FROM_WORKER.decode(header)
            if isinstance(message, Up):
                self._on_up(worker, life)
            elif (worker, life) in self._news:
                self._on_worker(worker, life, message, payload)

    def _on_up(self, worker: int, life: int) -> None:
        # Where we were held up the supervisor's word may still wait in its pipe, and announcements
        # of the life before in another queue.  They come too late: the batches are made again.
        for earlier in [name for name in self._news if name[0] == worker]:
            self._bury(*earlier)
        self._news[worker, life] = News()
        for desk in self._desks.values():
            if desk.failure is not None:
                continue
            for order, cursor in desk.open_partitions(worker):
                self._tell_worker(worker, life, order, cursor)
            mine = {p for p in desk.partitions if self._config.worker_of(p) == worker}
            for copy in desk.copies.of_a_new_worker(mine):
                self._tell_worker(worker, life, copy)
            for target in desk.retargets.of_a_new_worker():
                self._tell_worker(worker, life, target)
            if desk.closing is not None:
                self._tell_worker(worker, life, desk.closing)

    def _on_worker(self, worker: int, life: int, message: Any, payload: list[bytes]) -> None:
        if isinstance(message, Made):
            self._on_made(message, payload[0], worker, life)
        else:
            self._on_message(message, payload)

    def _tell_worker(self, worker: int, life: int, message: Any, *payload: bytes) -> None:
        # A worker that is gone is the supervisor's to notice; its successor gets all anew.
        assert self._workers is not None
        self._workers.tell(b"%d-%d" % (worker, life), [FROM_ROUTER.encode(message), *payload])

    def _workers_there(self) -> list[int]:
        return [worker for worker, _ in self._news]

    def _tell_all(self, message: object) -> None:
        for worker, life in self._news:
            self._tell_worker(worker, life, message)

    def _tell_owner(self, feed: str, partition: int, message: object) -> None:
        for worker, life in self._news:
            if self._config.worker_of(partition) == worker:
                self._tell_worker(worker, life, message)

    def _on_taken(self, desk: Desk, effect: Taken) -> None:
        desk.on_taken(effect, self._news)

    def _on_freed(self, desk: Desk, effect: Freed) -> None:
        desk.on_freed(effect, self._news)

    def _on_dealt(self, desk: Desk, effect: Dealt) -> None:
        """Nothing is to be stored: rounds live as long as the router does."""

    def _on_turn(self, desk: Desk, effect: Save | Want | Leave | Claim | Release) -> None:
        of = effect.batch.partition if isinstance(effect, Save) else effect.partition
        desk.on_turn(effect, self._config.worker_of(of), self._news)

    # The supervisor

    def _obey(self, order: Mapping[str, Any]) -> None:
        kind = order["order"]
        if kind == "worker_died":
            # What it announced before its death still waits in our queue, and counts.
            self._hear_workers_out()
            self._bury(order["worker"], order["life"])
        elif kind == "begin_anew":
            self._hear_workers_out()
            self._begin_anew(order["feed"], order["generation"])
            for worker, life in list(self._news):
                self._bury(worker, life)
        else:
            super()._obey(order)

    def _hear_workers_out(self) -> None:
        assert self._workers is not None
        while select.select((self._workers,), (), (), 0)[0]:
            self._hear_workers()

    def _bury(self, worker: int, life: int) -> None:
        """Listen to a dead worker no more.  Its segments go where no batch of theirs is out."""
        if self._news.pop((worker, life), None) is not None:
            for desk in self._desks.values():
                desk.died(worker)
        self._buried.add(f"slab-{worker}-{life}-")
        self._retire_buried()

    def _retire_buried(self) -> None:
        """Retire the segments of dead workers; later, where their directory can not be read now."""
        if not self._buried:
            return
        with contextlib.suppress(OSError):
            with own():
                names = os.listdir(self.directory)
            for prefix in self._buried:
                for name in names:
                    if name.startswith(prefix):
                        self._retire(name)
            self._buried.clear()

    def _act(self) -> None:
        super()._act()
        for (worker, life), news in self._news.items():
            while (message := news.take()) is not None:
                self._tell_worker(worker, life, message)
            for turn, frames in news.take_turns() if news.turns else ():
                self._tell_worker(worker, life, turn, *frames)
        self._outbox.flush()


def serve(config: RunConfig, pipe: ParentPipe) -> None:
    """Run the router of a server in this process."""
    router = Router(config, pipe)
    pipe.tell("ready", addresses=router.bind())
    try:
        router.run()
    finally:
        router.close()


def main() -> None:
    """Entry of the process: a front where one worker owns all feeds, a router otherwise."""
    pipe = ParentPipe()
    config = RunConfig.from_plain(pipe.read_config()["run"])
    logging.basicConfig(level=config.log_level, format="%(name)s: %(message)s")
    try:
        if config.has_owner:
            serve_front(config, pipe)
        else:
            serve(config, pipe)
    except BaseException as error:
        pipe.tell("dying", text=f"{error}", kind=type(error).__name__)
        if not isinstance(error, CanNotBind):
            traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
