"""The front: the process with the public address, where workers own their partitions.

    trainer ══► CURVE ─► gate ─► front ─► relay ─► owner (a worker process) × n
            ◄═══════════════════       ◄─

It alone reads the secret key, and runs no user code.  It relays messages without reading them,
except greetings, which name their owner: while that owner is away, or opens its sources, the front
answers them itself.  It sends bytes of batches to other hosts from the owners' segments.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import select
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any

import zmq

from headrace_proto import messages
from headrace_proto.channel import Frame
from headrace_proto.clock import AwakeClock
from headrace_proto.errors import HeadraceError, ProtocolError, code_of
from headrace_proto.messages import Hello, ServedShare

from ..making.slab import map_segment
from ..pipeline.declaration import digest
from ..process import relay_messages
from ..process.channel_server import SPARE, ChannelServer, is_channel
from ..process.child import LOG_FORMAT, Pipe, perform
from ..process.config import FeedConfig, RunConfig
from ..process.descriptors import divide, own, undivide
from ..process.refusals import fault_of_message
from ..process.relay_messages import SendBlock, Sent, Unreachable
from ..process.sockets import AND_MORE, EXPECTED, NOBLOCK, bind_all, public_router, waits
from ..state.statedir import described
from .connections import Connections
from .front_owner import FrontOwner
from .key_gate import Gate
from .keyring import KeyRing

logger = logging.getLogger("headrace.front")


def digests(feed: FeedConfig) -> dict[str, str]:
    """Return a digest of each part of a feed that all its servers must have alike.

    Files count by name and size, since they may lie elsewhere on each host and be written there at
    another time.
    """
    plain = described(feed)
    pipeline: Mapping[str, Any] = plain["pipeline"]
    source = {name: value for name, value in pipeline["source"].items() if name != "paths"}
    files = [(str(path).rsplit("/", 1)[-1], size) for path, size, _ in plain["files"]]
    parts = {**pipeline, "source": source, "files": files}
    return {name: digest(part) for name, part in parts.items()}


class ServedShares:
    """The share of each feed that one server has.

        Hello for another share, or for none ─► ServedShare ─► the trainer finds the other servers

    A trainer compares the answers of all servers of a feed: they must have the same declaration.
    """

    def __init__(self, config: RunConfig) -> None:
        self._feeds = {feed.name: feed for feed in config.feeds}
        self._server = Path(config.directory).name
        self._digests: dict[str, dict[str, str]] = {}  # by feed, once a trainer has asked

    def answer(self, hello: Hello, sessions: Iterable[int]) -> ServedShare | None:
        """Answer a greeting that is for another share; None where it is for this one.

        ``sessions``: the number of sessions of each owner.
        """
        name = hello.feed or (next(iter(self._feeds)) if len(self._feeds) == 1 else "")
        feed = self._feeds.get(name)
        if feed is None or (hello.share, hello.shares) == feed.share:
            return None  # an owner answers that there is no such feed
        if name not in self._digests:
            self._digests[name] = digests(feed)
        return ServedShare(
            feed=name,
            share=feed.share[0],
            shares=feed.share[1],
            partitions=feed.partitions,
            server=self._server,
            sessions=sum(sessions),
            declaration=self._digests[name],
        )


class PublicSender:
    """The sending side of the public socket.  It never waits.

        Say         ─► header
        SendBlock   ─► header, bytes of a segment, which ZeroMQ's thread reads until they are sent

    The owner frees a block once the front does not read it any more (``Sent``).
    """

    def __init__(self, socket: zmq.Socket[bytes], directory: Path) -> None:
        self._socket = socket
        self._directory = directory  # of the segments

    def say(self, connection: bytes, header: bytes) -> bool:
        """Send a header; return False where the peer is gone, or does not read."""
        try:
            self._socket.send(connection, AND_MORE)
            self._socket.send(header, NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def send_block(self, owner: FrontOwner, block: SendBlock, header: bytes) -> None:
        """Send a batch from the memory of its segment."""
        try:
            memory = owner.segments.get(block.segment)
            if memory is None:
                with own():
                    memory = map_segment(self._directory / block.segment)
                owner.segments[block.segment] = memory
        except OSError as error:
            logger.warning("a batch is not sent before its lease has ended: %s", error)
            owner.tell(Sent(block.number))
            return
        payload = memory[block.offset : block.offset + block.nbytes].data
        try:
            self._socket.send(block.connection, AND_MORE)
            self._socket.send(header, AND_MORE)
            # A copy would be quicker, but trainers that do not read would fill this process.
            tracker = self._socket.send(payload, NOBLOCK, copy=False, track=True)
        except zmq.ZMQError:  # the peer is gone, or does not read
            owner.tell(Sent(block.number))
            owner.tell(Unreachable(block.connection))
            return
        owner.sending.append((tracker, block.number))


_TICK_S = 0.1
#: Interval at which trainers are told in which function an owner is that does not answer.
_EXPLAIN_S = 1.0
#: Maximum number of messages from the public socket before the owners get their turn.
_BURST = 256


class Front:
    """One public address."""

    def __init__(self, config: RunConfig, pipe: Pipe, ring: KeyRing | None) -> None:
        self._config = config
        self._pipe = pipe
        self._clock = AwakeClock(2 * _TICK_S)
        self._directory = Path(config.directory)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._public = public_router(self._context)
        self._sender = PublicSender(self._public, self._directory)
        self._say = self._sender.say
        others = 2 * config.workers + SPARE  # an owner that ends and its next life may overlap
        sessions = config.max_trainers * config.workers  # a trainer has one with each owner
        division = divide(others + SPARE + len(config.binds), sessions)
        if division.sessions < sessions:
            logger.warning(
                "the limit of open files (%d, RLIMIT_NOFILE) allows connections of %d trainers, "
                "and max_trainers=%d",
                division.limit,
                division.sessions // config.workers,
                config.max_trainers,
            )
        self._connections = Connections(self._context, self._public, division.connections)
        self._gate = Gate(self._context, self._public, ring, self._connections)
        workers = self._directory / "workers"
        self._alive: dict[bytes, FrontOwner] = {}  # by the name of the channel of its life
        self._channels = ChannelServer(workers, others, self._alive.__contains__, sys.maxsize)
        state = config.state_directory
        self._owners = [
            FrontOwner(n, self._channels, self._say, state) for n in range(config.workers)
        ]
        self._owner_of: dict[bytes, FrontOwner] = {}  # connections that have a session
        self._owners_of = {feed.name: config.owners_of(feed) for feed in config.feeds}
        self._served = ServedShares(config)
        self._failure: tuple[str, str] | None = None
        self._next_tick = self._explain_at = 0.0
        self._stopping = False
        self._frees_memory = False  # at the next tick
        self._handlers: dict[type, Callable[..., None]] = {
            relay_messages.Say: self._on_say,
            relay_messages.SendBlock: self._sender.send_block,
            relay_messages.Left: self._on_left,
            relay_messages.SegmentRetired: lambda owner, retired: owner.segments.pop(
                retired.segment, None
            ),
            relay_messages.Ready: lambda owner, ready: owner.open(self._clock()),
        }
        self._orders: dict[str, Callable[..., None]] = {
            "worker_died": self._end_life_of,
            "fail": self._fail,
            "stats": self._answer_stats,
            "stop": self._stop,
        }

    def bind(self) -> list[str]:
        """Bind the public socket; return the addresses for trainers."""
        return bind_all(self._public, self._config.binds)

    def run(self) -> None:
        """Serve until an order to stop."""
        questions = self._gate.questions
        by_zeromq = [self._public] if questions is None else [self._public, questions]
        numbers = [int(socket.getsockopt(zmq.FD)) for socket in by_zeromq]
        connections, owners, pipe = self._connections, self._channels, self._pipe
        monitor = connections.fileno()
        poller = select.epoll()
        for number in (owners.fileno(), pipe.fileno(), monitor, *numbers):
            poller.register(number, select.EPOLLIN)
        more = True  # whether messages of trainers may wait
        while not self._stopping:
            # ZeroMQ's descriptors signal changes only, so check a socket after each use.
            at_once = connections.more or bool(owners.unheard) or (more and not self._is_full)
            at_once = at_once or (questions is not None and waits(questions))
            ready = {number for number, _ in poller.poll(0.0 if at_once else _TICK_S)}
            self._hear_inside(ready)
            if connections.more or monitor in ready:
                connections.hear(self._clock())
                connections.end_surplus(self._clock())
            now = self._clock()
            if questions is not None:
                self._gate.answer(now)
            if now >= self._next_tick:  # it lets new keys in before their greetings come
                self._next_tick = now + _TICK_S
                self._tick(now)
            more = self._hear_trainers()
            for owner in self._owners:
                if owner.sending:
                    owner.sweep()
        self._public.linger = 300

    def _hear_inside(self, ready: Set[int]) -> None:
        """Handle messages of owners, and orders of the supervisor."""
        if self._channels.fileno() in ready or self._channels.unheard:
            for name, (header, *frames) in self._channels.hear():
                self._on_owner(name, relay_messages.FROM_OWNER.decode(header), frames)
        if self._pipe.fileno() in ready:
            for order in self._pipe.read_orders():
                perform(self._orders, order)

    def close(self) -> None:
        """Close all sockets."""
        self._gate.close()
        self._connections.close()
        self._public.close()
        self._channels.close()
        self._context.term()
        undivide()

    @property
    def _is_full(self) -> bool:
        """Whether an owner is busy and has a long queue: all owners share the public socket."""
        return any(owner.is_full for owner in self._owners)

    # Trainers

    def _hear_trainers(self) -> bool:
        """Relay messages of trainers; return whether more may wait."""
        if self._is_full:
            return True
        for _ in range(_BURST):
            if not waits(self._public):
                return False
            try:
                owner = self._hear_trainer()
            except Exception as error:  # no message ends the process
                self._end_sender(error)
                continue
            if owner is not None and owner.is_full:
                return True
        return True

    def _hear_trainer(self) -> FrontOwner | None:
        """Relay the next message; return the owner that it went to."""
        key, connection, frames = self._gate.receive()
        owner = self._owner_of.get(connection)
        if owner is None:
            return self._hear_stranger(connection, key, frames)
        owner.pass_on(connection, key, frames)
        return owner

    def _end_sender(self, error: Exception) -> None:
        """End the connection of the last message, which could not be handled."""
        connection, now = self._gate.last_from, self._clock()
        refused, reason, fault = error, "garbage", None
        if not isinstance(error, HeadraceError):
            refused, reason, fault = fault_of_message(error), "fault", error
        refusal = messages.Refused(code_of(refused), str(refused)[:1000])
        text = f"ended the connection of a trainer: {refusal.text}"
        self._gate.refusals.add(reason, connection.hex(), text, now, fault)
        self._frees_memory = True
        self._say(connection, messages.FROM_SERVER.encode(refusal))
        self._connections.end_soon(self._gate.last_came_by, now)

    def _hear_stranger(self, connection: bytes, key: str, frames: list[Frame]) -> FrontOwner | None:
        """Handle a message by a connection without a session; return the owner that it went to."""
        if is_channel(connection):  # ZeroMQ lets a peer choose its name
            raise ProtocolError("a connection has the name of another trainer's channel")
        greeting = _greeting_in(frames)
        hello = greeting if isinstance(greeting, messages.Hello) else None
        sessions = (len(owner.sessions) for owner in self._owners)
        served = None if hello is None else self._served.answer(hello, sessions)
        if served is not None:
            self._say(connection, messages.FROM_SERVER.encode(served))
            return None
        owner = self._greeted(connection, hello)
        if owner.ready and self._failure is None:
            owner.pass_greeting(connection, self._gate.last_came_by, key, frames)
        else:
            self._answer_greeting(owner, connection, key, frames, greeting)
        return owner

    def _greeted(self, connection: bytes, hello: messages.Hello | None) -> FrontOwner:
        """Return the owner for a message that comes by a connection without a session.

        A greeting that names no owner goes to the one with the fewest trainers, and its connection
        stays with that owner for repeats.  Any owner can refuse a message that is no greeting.
        """
        owners = self._owners
        if len(owners) == 1:
            return owners[0]
        chosen = next((owner for owner in owners if connection in owner), None)
        if hello is None:
            return chosen or next((owner for owner in owners if owner.ready), owners[0])
        if 0 <= hello.owner < len(owners):
            return owners[hello.owner]
        if chosen is None:
            of_feed = owners[: self._owners_of.get(hello.feed, len(owners))]
            chosen = min(of_feed, key=lambda owner: (owner.load, owner.number))
        return chosen

    def _answer_greeting(
        self,
        owner: FrontOwner,
        connection: bytes,
        key: str,
        frames: list[Frame],
        greeting: messages.Hello | HeadraceError | None,
    ) -> None:
        """Answer why there is no Welcome yet, and hold the greeting for the owner."""
        if isinstance(greeting, HeadraceError):
            text = str(greeting)[:1000]
            self._gate.refusals.add("garbage", connection.hex(), text, self._clock())
        if not isinstance(greeting, messages.Hello):
            return
        if self._failure is not None:
            self._say(connection, messages.FROM_SERVER.encode(messages.Refused(*self._failure)))
            return
        owner.hold(connection, self._gate.last_came_by, key, frames)
        opening = "the workers are opening the feed's source"
        text = "the worker is being started" if owner.name is None else opening
        self._say(connection, messages.FROM_SERVER.encode(messages.Pulse(0, 0, text)))

    # The owners

    def _on_owner(self, name: bytes, message: Any, frames: list[bytes]) -> None:
        owner = self._alive.get(name)
        if isinstance(message, relay_messages.Began):
            self._begin_life(name, message)
        elif owner is not None:  # else it is of an earlier life, and comes too late
            self._handlers[type(message)](owner, message, *frames)

    def _begin_life(self, name: bytes, began: relay_messages.Began) -> None:
        owner = self._owners[began.owner]
        if owner.name is None or owner.life < began.life:
            self._end_life(owner)
            self._alive[name] = owner
            owner.begin_life(began.life, name, relay_messages.Known(self._gate.names))

    def _on_left(self, owner: FrontOwner, left: relay_messages.Left) -> None:
        self._connections.left(left.session, self._clock())
        self._disown(owner, owner.left(left.session))

    def _disown(self, owner: FrontOwner, connection: bytes) -> None:
        if self._owner_of.get(connection) is owner and connection not in owner.sessions:
            del self._owner_of[connection]

    def _end_life(self, owner: FrontOwner) -> None:
        """End an owner's life, and all sessions with it."""
        now = self._clock()
        self._alive.pop(owner.name or b"", None)
        for connection in owner.sessions:
            self._owner_of.pop(connection, None)
        for session in owner.end_life():
            self._connections.left(session, now)

    def _on_say(self, owner: FrontOwner, say: relay_messages.Say, header: bytes) -> None:
        connection = say.connection
        if owner.greets(connection):
            self._see_answer(owner, connection, header)
        if not self._say(connection, header):
            owner.forget(connection)
            owner.tell(relay_messages.Unreachable(connection))

    def _see_answer(self, owner: FrontOwner, connection: bytes, header: bytes) -> None:
        """Note the session that the answer to a greeting opens or resumes."""
        message = messages.FROM_SERVER.decode(header)
        if isinstance(message, messages.Welcome):
            number = owner.forget(connection)
            self._connections.belongs(number, message.session, self._clock())
            other = self._owner_of.get(connection)
            if other is not None and other is not owner:  # the trainer has greeted this owner since
                other.tell(relay_messages.Unreachable(connection))
                other.left(other.sessions[connection])
            self._disown(owner, owner.opened(connection, message.session))
            self._owner_of[connection] = owner
        elif isinstance(message, messages.Refused):
            owner.forget(connection)
            owner.see_back(connection)

    # The supervisor, and time

    def _end_life_of(self, worker: int, life: int) -> None:
        owner = self._owners[worker]
        if owner.name is not None and owner.life == life:
            self._end_life(owner)

    def _fail(self, code: str, text: str) -> None:
        self._failure = code, text
        for owner in self._owners:
            for connection in owner.take_held():
                self._say(connection, messages.FROM_SERVER.encode(messages.Refused(code, text)))

    def _answer_stats(self, request: int) -> None:
        """Describe the keys, and what was refused; owners describe the trainers."""
        self._pipe.report("answer", request=request, access=self._gate.access())

    def _stop(self, unheard: list[int]) -> None:
        """End, and tell trainers of owners (``unheard``) that did not tell them."""
        text = "the server was stopped"
        returns = self._config.state_directory is not None
        for number in unheard:
            for connection, session in self._owners[number].sessions.items():
                ended = messages.Ended(session, "lost", text, returns)
                self._say(connection, messages.FROM_SERVER.encode(ended))
        self._stopping = True

    def _tick(self, now: float) -> None:
        self._connections.end_surplus(now)
        self._connections.end_refused(now)
        if self._frees_memory:
            self._frees_memory = False
            _free_memory()
        self._gate.tick(now)
        self._channels.tick()
        self._pipe.check_parent()
        known = relay_messages.Known(self._gate.names)
        explains = now >= self._explain_at
        if explains:
            self._explain_at = now + _EXPLAIN_S
        for owner in self._owners:
            owner.tick(now, known)
            if explains:
                owner.explain(self._directory)


def _free_memory() -> None:
    """Give free memory back to the kernel: the heap keeps that of refused messages, up to all."""
    with contextlib.suppress(AttributeError):  # not every C library has this function
        ctypes.CDLL(None).malloc_trim(0)


def _greeting_in(frames: list[Frame]) -> messages.Hello | HeadraceError | None:
    """Return the greeting that a message is, if it is one, or why it can not be read."""
    try:
        hello = messages.FROM_TRAINER.decode(frames[0]) if frames else None
    except HeadraceError as error:
        return error
    return hello if isinstance(hello, messages.Hello) else None


def serve(plain: Any, pipe: Pipe) -> None:
    """Run the front of a server, until an order to stop.

    It reads its keys before the server begins.  Where they can not be used, it reports why, and
    ends.
    """
    keys = plain["keys"]
    try:
        ring = None if keys is None else KeyRing(keys)
    except OSError as error:
        path = error.filename and str(error.filename)
        pipe.report("unusable", text=error.strerror, number=error.errno, path=path)
        return
    except ValueError as error:
        pipe.report("unusable", text=str(error))
        return
    if ring is not None and not ring.names:
        logger.warning("keys=%r: no trainer is let in yet: trainers/ has no keys", keys)
    pipe.report("keys_read")
    front = Front(RunConfig.from_plain(pipe.read_config()), pipe, ring)
    try:
        pipe.report("ready", addresses=front.bind())
        front.run()
    finally:
        front.close()


def main() -> None:
    """Run the process."""
    pipe = Pipe()
    plain = pipe.read_config()
    logging.basicConfig(level=plain["log_level"], format=LOG_FORMAT)
    try:
        serve(plain, pipe)
    except BaseException as error:
        pipe.report("dying", text=f"{error}")
        if not isinstance(error, EXPECTED):
            traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
