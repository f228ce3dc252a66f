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
from dataclasses import replace
from pathlib import Path
from typing import Any

import zmq

from headrace_proto.clock import AwakeClock
from headrace_proto.messages import Snapshotted

from ..core.handover import (
    Answer,
    Claim,
    Finish,
    Freed,
    Leave,
    Release,
    Rewound,
    Save,
    Send,
    Taken,
    Unflushed,
    Want,
)
from ..core.rewinding import BEGINNING
from ..core.segment_dispatch import LANES_LOST
from .child import ParentPipe
from .config import RunConfig
from .connections import Connections
from .descriptors import divide, own, undivide
from .desk import Desk
from .exchange import SPARE, Exchange, TrainersExchange
from .gate import Gate
from .news import News
from .outbox import Outbox
from .reception import Reception
from .sessions import SessionTable
from .sockets import public_router, waits
from .telling import Teller
from .worker_messages import (
    FROM_ROUTER,
    FROM_WORKER,
    Claimed,
    Close,
    Copied,
    Dry,
    Failed,
    Finished,
    Flushed,
    Kept,
    Made,
    Opened,
    Removed,
    Retargeted,
    Sought,
    Starved,
    Up,
    Waiting,
)

__all__ = ["Router", "main"]

logger = logging.getLogger("headrace.router")

_TICK_S = 0.1
#: Messages taken from one socket before the others get their turn.
_BURST = 256


class _CanNotBind(ValueError):
    """An address that a user gave is taken, or is not this machine's."""


class Router:
    """One router."""

    def __init__(self, config: RunConfig, pipe: ParentPipe) -> None:
        self._config = config
        self._pipe = pipe
        self._clock = AwakeClock(2 * _TICK_S)
        self._directory = Path(config.directory)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._public = public_router(self._context)
        self._workers: Exchange | None = None
        self._desks = {feed.name: Desk(feed, config) for feed in config.feeds}
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
        self._sessions = SessionTable(self._directory, division.trainers, why)
        self._near = TrainersExchange(
            self._directory / "trainers",
            division.trainers,
            lambda identity: self._sessions.of_connection(identity) is not None,
        )
        self._outbox = Outbox(self._directory, self._public, self._sessions, self._near)
        self._reception = Reception(
            *(config, self._public, self._gate, self._desks),
            *(self._sessions, self._outbox, self._near, self._clock),
        )
        self._teller = Teller(
            *(config, self._desks, self._sessions, self._reception, pipe, self._clock)
        )
        self._buried: set[str] = set()  # prefixes of segments of dead workers
        self._next_tick = 0.0
        self._told_open = False
        self._told_over: set[str] = set()
        self._noted_over: set[str] = set()  # feeds whose end is in the log
        self._pausing = False
        self._stopping = False

    def bind(self) -> list[str]:
        """Bind all sockets; the addresses that trainers can use."""
        self._workers = Exchange(self._directory / "workers", 2 * self._config.workers + SPARE)
        addresses = []
        for bind in self._config.binds:
            try:
                self._public.bind(bind)
            except zmq.ZMQError as error:
                raise _CanNotBind(f"bind={bind!r}: {error}") from None
            endpoint = self._public.get_string(zmq.LAST_ENDPOINT)
            addresses.append(endpoint.rstrip("\0"))
        return addresses

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
            mine = {p for p in range(desk.partitions) if self._config.worker_of(p) == worker}
            for copy in desk.copies.of_a_new_worker(mine):
                self._tell_worker(worker, life, copy)
            for target in desk.retargets.of_a_new_worker():
                self._tell_worker(worker, life, target)
            if desk.closing is not None:
                self._tell_worker(worker, life, desk.closing)

    def _on_worker(self, worker: int, life: int, message: Any, payload: list[bytes]) -> None:
        if isinstance(message, Removed):
            for segment in message.segments:
                self._outbox.retire(segment)
            return
        desk = self._desks[message.feed]
        if desk.failure is not None:
            return
        if isinstance(message, Made):
            desk.on_made(message, payload[0], worker, life)
        elif isinstance(message, Opened):
            desk.on_opened(message)
        elif isinstance(message, Finished):
            desk.on_finished(message)
        elif isinstance(message, Failed):
            desk.on_failed(message)
        elif isinstance(message, Retargeted):
            desk.on_retargeted(message)
        elif isinstance(message, Waiting):
            desk.on_waiting(message)
        elif isinstance(message, (Kept, Starved, Dry)):
            desk.on_segments(message)
        elif isinstance(message, Claimed):
            desk.on_claimed(message)
        elif isinstance(message, Sought):
            self._teller.found(message)
        elif isinstance(message, Copied):
            desk.copies.answer(message)
        elif isinstance(message, Flushed):
            desk.on_flushed(message)
            self._outbox.flushed(message.session, message.request)

    def _tell_worker(self, worker: int, life: int, message: Any, *payload: bytes) -> None:
        # A worker that is gone is the supervisor's to notice; its successor gets all anew.
        assert self._workers is not None
        self._workers.tell(b"%d-%d" % (worker, life), [FROM_ROUTER.encode(message), *payload])

    # The supervisor

    def _obey(self, order: dict[str, Any]) -> None:
        kind = order["order"]
        if kind == "worker_died":
            # What it announced before its death still waits in our queue, and counts.
            self._hear_workers_out()
            self._bury(order["worker"], order["life"])
        elif kind == "fail":
            for desk in self._desks.values():
                if not desk.over and order.get("feed", desk.name) == desk.name:
                    desk.fail(order["code"], order["text"])
        elif kind == "pause":
            for desk in self._desks.values():
                desk.dispatcher.paused = True
            self._pausing = True
        elif kind == "stats":
            self._teller.tell(order["request"])
        elif kind == "inspect":
            seek = self._teller.seek(order, [worker for worker, _ in self._news])
            for worker, life in self._news:
                self._tell_worker(worker, life, seek)
        elif kind == "copy":
            self._copy(self._desks[order["feed"]], order["ticket"], order["directory"])
        elif kind == "snapshotted":
            told = [order[name] for name in ("session", "request", "token", "code", "text")]
            self._outbox.snapshotted(Snapshotted(*told))
        elif kind == "not_taken_back":
            desk = self._desks[order["feed"]]
            desk.rejoining.refuse(order["snapshot"], order["code"], order["text"])
        elif kind == "close":
            self._desks[order["feed"]].close(order["cancel"])
            self._pipe.tell("answer", request=order["request"])
        elif kind == "users":
            self._teller.tell_users(order["request"], order["feed"])
        elif kind == "begin_anew":
            self._begin_anew(order["feed"], order["generation"])
        elif kind == "stop":
            self._stopping = True

    def _begin_anew(self, feed: str, generation: int) -> None:
        """A feed in memory is as it was before its first batch.  All workers are replaced.

        Other feeds go on as after a worker's death; those with states have none yet, see
        ``Teller.tell_users``, and begin again, too.
        """
        self._hear_workers_out()
        for old in list(self._desks.values()):
            if old.name == feed:
                self._replace(old, generation)
                self._reception.send_away(old, self._desks[feed].rejoining.rewound())
            elif old.has_states_in_memory:
                self._replace(old, old.rejoining.generation)
                self._reception.send_away(old)
        for worker, life in list(self._news):
            self._bury(worker, life)

    def _replace(self, old: Desk, generation: int) -> None:
        """Another desk in place of one, whose tokens are larger."""
        config = next(one for one in self._config.feeds if one.name == old.name)
        if generation != config.generation:
            config = replace(config, generation=generation, snapshot=BEGINNING)
        desk = self._desks[old.name] = Desk(config, self._config, old.epoch + 1)
        desk.dispatcher.paused = old.dispatcher.paused
        self._told_over.discard(old.name)
        self._noted_over.discard(old.name)

    def _copy(self, desk: Desk, ticket: int, directory: str) -> None:
        """Have all stores of a feed copied."""
        for copy in desk.copies.begin(ticket, directory):
            for worker, life in self._news:
                if self._config.worker_of(copy.partition) == worker:
                    self._tell_worker(worker, life, copy)

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
                names = os.listdir(self._directory)
            for prefix in self._buried:
                for name in names:
                    if name.startswith(prefix):
                        self._retire(name)
            self._buried.clear()

    def _retire(self, segment: str) -> None:
        if not any(desk.uses(segment) for desk in self._desks.values()):
            self._outbox.retire(segment)

    # Effects

    def _act(self) -> None:
        for desk in self._desks.values():
            self._act_on(desk)
        for (worker, life), news in self._news.items():
            while (message := news.take()) is not None:
                self._tell_worker(worker, life, message)
            for turn, frames in news.take_turns() if news.turns else ():
                self._tell_worker(worker, life, turn, *frames)
        for feed, session, request in self._reception.snapshots:
            self._pipe.tell("snapshot", feed=feed, session=session, request=request)
        self._reception.snapshots.clear()
        self._teller.tell_found()
        self._outbox.flush()
        self._report()

    def _act_on(self, desk: Desk) -> None:
        effects = desk.dispatcher.take_effects()
        if desk.flight is not None:
            desk.flight.note(effects)
        for effect in effects:
            if isinstance(effect, Send):
                self._outbox.deliver(desk, effect)
            elif isinstance(effect, Answer):
                desk.counters.on_answer(effect)
                self._outbox.answer(effect)
            elif isinstance(effect, Taken):
                desk.on_taken(effect, self._news)
            elif isinstance(effect, Freed):
                desk.on_freed(effect, self._news)
            elif isinstance(effect, Finish):
                self._outbox.finish(effect.session)
            elif isinstance(effect, Save):
                desk.on_turn(effect, self._config.worker_of(effect.batch.partition), self._news)
            elif isinstance(effect, (Want, Leave, Claim, Release)):
                desk.on_turn(effect, self._config.worker_of(effect.partition), self._news)
            elif isinstance(effect, Rewound):
                self._reception.rewound(effect.session)
            elif isinstance(effect, Unflushed):
                self._outbox.flushed(effect.session, effect.request, "stale", LANES_LOST)
        for segment in desk.retired:
            self._retire(segment)  # of several feeds the last one's batch empties it
        desk.retired.clear()
        if desk.failure is not None:
            code, text = desk.failure
            for ticket in desk.copies.give_up():
                self._pipe.tell("copied", ticket=ticket, code=code, text=text)
        for ticket, fault in desk.copies.take_done():
            code = "server" if fault else ""
            self._pipe.tell("copied", ticket=ticket, code=code, text=fault)
        for snapshot in desk.rejoining.asks:
            self._pipe.tell("take_back", feed=desk.name, snapshot=snapshot)
        desk.rejoining.asks.clear()
        for target in desk.retargets.asked:
            for worker, life in self._news:
                self._tell_worker(worker, life, target)
        desk.retargets.asked.clear()
        for asked in desk.retargets.take_answered():
            self._outbox.retargeted(asked.session, asked.request, asked.since, asked.fault)
        if desk.closing is not None and not desk.closing_told:
            desk.closing_told = True
            for worker, life in self._news:
                self._tell_worker(worker, life, desk.closing)
        if desk.failure is not None and desk.name not in self._told_over:
            self._outbox.end(desk.name, *desk.failure)
            for worker, life in self._news:
                self._tell_worker(worker, life, Close(desk.name, abandon=True))
        if desk.over and desk.name not in self._noted_over:
            self._noted_over.add(desk.name)
            if desk.failure is None:
                logger.info("feed %r has ended after %d batches", desk.name, desk.usage().batches)
        if desk.over and desk.name not in self._told_over and self._has_said_goodbye(desk):
            self._told_over.add(desk.name)
            code, text = desk.failure or ("", "")
            self._pipe.tell(
                "over", feed=desk.name, code=code, text=text, dropped=desk.counters.dropped()
            )

    def _has_said_goodbye(self, desk: Desk) -> bool:
        """Whether trainers know of the end of a feed.  A failure is reported at once."""
        return desk.failure is not None or self._reception.all_heard(desk, self._clock())

    def _report(self) -> None:
        if not self._told_open and all(desk.opened for desk in self._desks.values()):
            self._told_open = True
            self._pipe.tell("open")
        if self._pausing and not any(d.dispatcher.leased for d in self._desks.values()):
            self._pausing = False
            self._pipe.tell("idle")


def main() -> None:
    """Entry of the process."""
    pipe = ParentPipe()
    config = RunConfig.from_plain(pipe.read_config()["run"])
    logging.basicConfig(level=config.log_level, format="%(name)s: %(message)s")
    try:
        router = Router(config, pipe)
        pipe.tell("ready", addresses=router.bind())
        try:
            router.run()
        finally:
            router.close()
    except BaseException as error:
        pipe.tell("dying", text=f"{error}", kind=type(error).__name__)
        if not isinstance(error, _CanNotBind):
            traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
