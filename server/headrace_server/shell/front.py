"""The front: the process with the public address, where one worker owns all feeds.

    trainer ══► CURVE ─► gate ─► front ─► relay ─► owner (a worker process)
            ◄═══════════════════       ◄─

It alone reads the secret key, and runs no user code.  It passes messages on without reading them,
but for greetings: while the owner is away, or opens its sources, the front answers these itself.
Bytes of batches for other hosts go out from the owner's segments.
"""

from __future__ import annotations

import logging
import select
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from headrace_proto.clock import AwakeClock
from headrace_proto.errors import HeadraceError
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Ended,
    Hello,
    Pulse,
    Refused,
    Unknown,
    Welcome,
)

from ..core.farewell import RETURN_S
from ..feed.slab import map_segment
from .child import ParentPipe
from .config import RunConfig
from .connections import Connections
from .descriptors import divide, own, undivide
from .exchange import SPARE, Exchange
from .gate import Gate
from .relay import (
    FROM_FRONT,
    FROM_OWNER,
    AllBack,
    Block,
    Heard,
    Known,
    Left,
    Ready,
    Retired,
    Say,
    Sent,
    Unreachable,
)
from .sockets import bind_all, public_router, waits

__all__ = ["Front", "serve"]

logger = logging.getLogger("headrace.front")

_TICK_S = 0.1
#: Messages taken from the public socket before the owner gets its turn.
_BURST = 256
#: Bytes kept for an owner that is busy; beyond them trainers' messages wait in their sockets.
_MOST_KEPT = 64 << 20
#: Connections that have greeted and have no session yet; the oldest are forgotten.
_MOST_GREETING = 10_000


class Front:
    """One public address."""

    def __init__(self, config: RunConfig, pipe: ParentPipe) -> None:
        self._config = config
        self._pipe = pipe
        self._clock = AwakeClock(2 * _TICK_S)
        self._directory = Path(config.directory)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._public = public_router(self._context)
        division = divide(2 * SPARE + len(config.binds), config.max_trainers)
        self._connections = Connections(self._context, self._public, division.connections)
        self._gate = Gate(self._context, self._public, config.keys, self._connections)
        self._owners = Exchange(self._directory / "workers", 2 + SPARE)
        self._owner: bytes | None = None  # the living one
        self._ready = False  # whether it answers greetings
        self._failure: tuple[str, str] | None = None
        self._told: Known | None = None
        self._greeting: dict[bytes, int] = {}  # connections: their descriptors
        self._held: dict[bytes, tuple[int, str, list[bytes]]] = {}  # greetings, by connection
        self._sessions: dict[bytes, int] = {}  # by connection
        self._connection_of: dict[int, bytes] = {}  # by session
        self._awaited: set[bytes] = set()  # connections of the owner before: trainers that greet
        self._give_up_at = 0.0  # when they are waited for no longer
        self._segments: dict[str, np.ndarray] = {}
        self._sending: list[tuple[Any, int]] = []
        self._next_tick = 0.0
        self._stopping = False

    def bind(self) -> list[str]:
        """Bind the public socket; the addresses that trainers can use."""
        return bind_all(self._public, self._config.binds)

    def run(self) -> None:
        """Serve until told to stop."""
        questions = self._gate.questions
        by_zeromq = [self._public] if questions is None else [self._public, questions]
        numbers = [int(socket.getsockopt(zmq.FD)) for socket in by_zeromq]
        connections, owners, pipe = self._connections, self._owners, self._pipe
        poller = select.epoll()
        for number in (owners.fileno(), pipe.fileno(), connections.fileno(), *numbers):
            poller.register(number, select.EPOLLIN)
        while not self._stopping:
            # ZeroMQ's descriptors tell of changes only, so its sockets are looked at each time.
            at_once = connections.more or (any(map(waits, by_zeromq)) and not self._is_full)
            ready = {number for number, _ in poller.poll(0.0 if at_once else _TICK_S)}
            if owners.fileno() in ready:
                for owner, (header, *frames) in owners.hear():
                    self._on_owner(owner, FROM_OWNER.decode(header), frames)
            if connections.more or connections.fileno() in ready:
                connections.hear(self._clock())
                connections.end_surplus(self._clock())
            if questions is not None:
                self._gate.answer(self._clock())
            self._hear_trainers()
            if pipe.fileno() in ready:
                for order in pipe.read_orders():
                    self._obey(order)
            if self._sending:
                self._sweep()
            now = self._clock()
            if now >= self._next_tick:
                self._next_tick = now + _TICK_S
                self._tick(now)
        self._public.linger = 300

    def close(self) -> None:
        """Close all sockets."""
        self._gate.close()
        self._connections.close()
        self._public.close()
        self._owners.close()
        self._context.term()
        undivide()

    @property
    def _is_full(self) -> bool:
        """Whether an owner that is busy has enough to read."""
        return self._owner is not None and self._owners.unsent_bytes(self._owner) > _MOST_KEPT

    # Trainers

    def _hear_trainers(self) -> None:
        for _ in range(_BURST):
            if self._is_full or not waits(self._public):
                return
            key, connection, frames = self._gate.receive()
            if connection in self._sessions:
                self._tell(Heard(connection, key), frames)
            elif self._ready and self._failure is None:
                self._pass_greeting(connection, self._gate.last_came_by, key, frames)
            else:
                self._answer_greeting(connection, key, frames)

    def _pass_greeting(
        self, connection: bytes, came_by: int, key: str, frames: list[bytes]
    ) -> None:
        self._greeting[connection] = came_by
        if len(self._greeting) > _MOST_GREETING:
            del self._greeting[next(iter(self._greeting))]
        self._tell(Heard(connection, key), frames)

    def _answer_greeting(self, connection: bytes, key: str, frames: list[bytes]) -> None:
        """Say why there is no Welcome yet, and keep the greeting for the owner."""
        try:
            if not frames or not isinstance(FROM_TRAINER.decode(frames[0]), Hello):
                return
        except HeadraceError as error:
            self._gate.refusals.add("garbage", connection.hex(), str(error)[:1000], self._clock())
            return
        if self._failure is not None:
            self._say(connection, FROM_SERVER.encode(Refused(*self._failure)))
            return
        self._held[connection] = self._gate.last_came_by, key, frames
        if len(self._held) > _MOST_GREETING:
            del self._held[next(iter(self._held))]
        opening = "the workers are opening the feed's source"
        text = "the worker is being started" if self._owner is None else opening
        self._say(connection, FROM_SERVER.encode(Pulse(0, text)))

    def _say(self, connection: bytes, header: bytes) -> bool:
        try:
            self._public.send_multipart([connection, header], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    # The owner

    def _tell(self, message: object, frames: list[bytes]) -> None:
        """Say something to the owner; one that is gone has successors that know all they need."""
        if self._owner is not None:
            self._owners.tell(self._owner, [FROM_FRONT.encode(message), *frames])

    def _on_owner(self, owner: bytes, message: Any, frames: list[bytes]) -> None:
        if owner != self._owner:  # what a life before this one has said comes too late
            if self._owner is not None and _life(owner) < _life(self._owner):
                return
            self._begin_life(owner)
        if isinstance(message, Say):
            self._on_say(message.connection, frames[0])
        elif isinstance(message, Block):
            self._on_block(message, frames[0])
        elif isinstance(message, Left):
            self._connections.left(message.session, self._clock())
            connection = self._connection_of.pop(message.session, b"")
            if self._sessions.get(connection) == message.session:
                del self._sessions[connection]
        elif isinstance(message, Retired):
            self._segments.pop(message.segment, None)
        elif isinstance(message, Ready):
            self._ready = True
            self._give_up_at = self._clock() + RETURN_S
            held, self._held = self._held, {}
            for connection, (came_by, key, greeting) in held.items():
                self._pass_greeting(connection, came_by, key, greeting)

    def _begin_life(self, owner: bytes) -> None:
        """Another process owns the feeds."""
        self._end_life()
        self._owner = owner
        self._told = Known(self._gate.names, self._gate.told())
        self._tell(self._told, [])  # before any greeting
        if not self._awaited:
            self._tell(AllBack(), [])

    def _end_life(self) -> None:
        """The owner is gone, and all sessions with it: their trainers are to greet."""
        self._owner, self._ready = None, False
        now = self._clock()
        for connection, session in self._sessions.items():
            if self._say(connection, FROM_SERVER.encode(Unknown(session))):
                self._awaited.add(connection)
        for session in self._connection_of:
            self._connections.left(session, now)
        self._sessions.clear()
        self._connection_of.clear()
        self._greeting.clear()
        self._segments.clear()
        self._sending.clear()

    def _on_say(self, connection: bytes, header: bytes) -> None:
        if connection in self._greeting:
            self._see_welcome(connection, header)
        if not self._say(connection, header):
            self._greeting.pop(connection, None)
            self._tell(Unreachable(connection), [])

    def _see_welcome(self, connection: bytes, header: bytes) -> None:
        """Note the session that the answer to a greeting opens or resumes."""
        message = FROM_SERVER.decode(header)
        if isinstance(message, Welcome):
            number = self._greeting.pop(connection)
            self._connections.belongs(number, message.session, self._clock())
            before = self._connection_of.get(message.session, b"")
            if self._sessions.get(before) == message.session:
                del self._sessions[before]
            self._sessions[connection] = message.session
            self._connection_of[message.session] = connection
            self._see_back(connection)

    def _see_back(self, *connections: bytes) -> None:
        """These trainers of the owner before this one have greeted it, or never will."""
        if self._awaited:
            self._awaited.difference_update(connections)
            if not self._awaited:
                self._tell(AllBack(), [])

    def _on_block(self, block: Block, header: bytes) -> None:
        """Send a batch from the memory of its segment."""
        try:
            memory = self._segments.get(block.segment)
            if memory is None:
                with own():
                    memory = map_segment(self._directory / block.segment)
                self._segments[block.segment] = memory
        except OSError as error:
            logger.warning("a batch is not sent before its lease has ended: %s", error)
            self._tell(Sent(block.number), [])
            return
        payload = memory[block.offset : block.offset + block.nbytes]
        try:
            tracker = self._public.send_multipart(
                [block.connection, header, payload.data], zmq.NOBLOCK, copy=False, track=True
            )
        except zmq.ZMQError:  # gone, or stuck
            self._tell(Sent(block.number), [])
            self._tell(Unreachable(block.connection), [])
            return
        self._sending.append((tracker, block.number))

    def _sweep(self) -> None:
        """Tell the owner of blocks that are sent."""
        still = []
        for tracker, number in self._sending:
            if tracker.done:
                self._tell(Sent(number), [])
            else:
                still.append((tracker, number))
        self._sending = still

    # The supervisor, and time

    def _obey(self, order: dict[str, Any]) -> None:
        kind = order["order"]
        if kind == "worker_died":
            if self._owner is not None and _life(self._owner) == order["life"]:
                self._end_life()
        elif kind == "fail":
            self._failure = order["code"], order["text"]
            for connection in self._held:
                self._say(connection, FROM_SERVER.encode(Refused(*self._failure)))
            self._held.clear()
        elif kind == "stop":
            for connection, session in self._sessions.items() if order["unheard"] else ():
                text = "the server was stopped"
                ended = Ended(session, "lost", text, self._config.state_directory is not None)
                self._say(connection, FROM_SERVER.encode(ended))
            self._stopping = True

    def _tick(self, now: float) -> None:
        self._connections.end_surplus(now)
        self._gate.tick(now)
        self._owners.tick()
        if self._ready and now >= self._give_up_at:
            self._see_back(*self._awaited)
        self._pipe.check_parent()
        known = Known(self._gate.names, self._gate.told())
        if known != self._told and self._owner is not None:
            self._told = known
            self._tell(known, [])


def _life(owner: bytes) -> int:
    """The number of a worker's life, by its name."""
    return int(owner.partition(b"-")[2])


def serve(config: RunConfig, pipe: ParentPipe) -> None:
    """Run the front of a server in this process."""
    front = Front(config, pipe)
    pipe.tell("ready", addresses=front.bind())
    try:
        front.run()
    finally:
        front.close()
