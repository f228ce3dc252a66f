"""The router process: owns the public socket, and decides nothing itself.

    public socket   ─► reception (trainers) ─┐                                   ┌─► outbox
    channels        ─► of this host, too    ─┤                                   │
    channels        ─► workers' messages    ─┼─► desks (one per feed) ─► effects ─┴─► news
    supervisor      ─► orders               ─┤
    clock           ─► ticks                ─┘

One thread, one poll, no wait but the poll.  A message that can not be sent now means a trainer
that is gone or stuck: it is dropped, and the lease or the trainer's next Hello brings it again.
"""

from __future__ import annotations

import logging
import resource
import select
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import zmq

from headrace_proto.messages import Snapshotted

from ..core.handover import (
    Answer,
    Claim,
    Finish,
    Freed,
    Leave,
    Release,
    Save,
    Send,
    Taken,
    Want,
)
from .child import ParentPipe
from .config import RunConfig
from .desk import Desk
from .exchange import Exchange, TrainersExchange
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
        self._directory = Path(config.directory)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._public = public_router(self._context)
        self._workers: Exchange | None = None
        self._desks = {feed.name: Desk(feed, config) for feed in config.feeds}
        self._news: dict[tuple[int, int], News] = {}  # by worker and life
        self._gate = Gate(self._context, self._public, config.keys)
        self._sessions = SessionTable(self._directory, config.max_trainers)
        self._near = TrainersExchange(self._directory / "trainers", config.max_trainers)
        self._outbox = Outbox(self._directory, self._public, self._sessions, self._near)
        self._reception = Reception(
            *(config, self._public, self._gate, self._desks),
            *(self._sessions, self._outbox, self._near),
        )
        self._teller = Teller(config, self._desks, self._sessions, self._reception, pipe)
        self._next_tick = 0.0
        self._told_open = False
        self._told_over: set[str] = set()
        self._pausing = False
        self._stopping = False

    def bind(self) -> list[str]:
        """Bind all sockets; the addresses that trainers can use."""
        self._workers = Exchange(self._directory / "workers")
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
        poller = select.epoll()
        for number in (workers, near, pipe, *numbers):
            poller.register(number, select.EPOLLIN)
        look = True
        while not self._stopping:
            # ZeroMQ's file numbers tell of changes only, and not of those that came while a socket
            # was used: after that it is looked at.  A look costs as much as a small message.
            at_most_s = 0.0 if look and any(map(waits, by_zeromq)) else _TICK_S
            ready = {number for number, _ in poller.poll(at_most_s)}
            changed = not ready.isdisjoint(numbers)
            heard = 0
            if workers in ready:
                self._hear_workers()
            if questions is not None and (look or changed):
                self._gate.answer(time.monotonic())
            if near in ready:
                self._reception.hear_near()
            if look or changed:
                heard = self._reception.hear(_BURST)
            look = changed or bool(heard)
            if pipe in ready:
                for order in self._pipe.read_orders():
                    self._obey(order)
            now = time.monotonic()
            if now >= self._next_tick:
                self._next_tick = now + _TICK_S
                self._reception.tick(now)
                self._pipe.check_parent()
                look = True
            self._act()
            look = self._outbox.used_socket() or look

    def close(self) -> None:
        self._reception.close()
        self._gate.close()
        self._public.close()
        self._near.close()
        if self._workers is not None:
            self._workers.close()
        self._context.term()

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
        elif kind == "stop":
            self._stopping = True

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
        for path in self._directory.glob(f"slab-{worker}-{life}-*"):
            self._retire(path.name)

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
        if desk.over and desk.name not in self._told_over:
            self._told_over.add(desk.name)
            code, text = desk.failure or ("", "")
            self._pipe.tell(
                "over", feed=desk.name, code=code, text=text, dropped=desk.counters.dropped()
            )

    def _report(self) -> None:
        if not self._told_open and all(desk.opened for desk in self._desks.values()):
            self._told_open = True
            self._pipe.tell("open")
        if self._pausing and not any(d.dispatcher.leased for d in self._desks.values()):
            self._pausing = False
            self._pipe.tell("idle")


def _allow_files(number: int) -> None:
    """A connection is an open file: let there be so many, as far as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def main() -> None:
    """Entry of the process."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    pipe = ParentPipe()
    config = RunConfig.from_plain(pipe.read_config()["run"])
    try:
        _allow_files(2 * config.max_trainers + 512)
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
