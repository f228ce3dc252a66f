"""Producers push sequences and examples to a log, which feeds of a server read.

    user's threads ─► open, append, end ─► lane of the key's partition ── Append ──► owner
                          ▲                items, until they are durable ◄── Appended
                          └─ wait for a place, for credit, for what is durable
    a thread of its own ─► looks for owners, greets, receives, sends what waited

Each partition of the log has a *lane*: a connection to its owner, and items with numbers of their
own.  An item stays in its lane until the owner has stored it.  After a lost connection the lane
greets, drops what the owner has stored meanwhile, and sends the rest again: the owner takes each
number once.  A key stays in one partition, and so do the whole examples of a producer.

While two messages of a lane have no answer its items gather, and the next steps of a sequence join
those of its item that was not sent yet: so a fast producer sends few large messages of few items,
and a slow one sends each step at once.  An item that was ever sent stays as it is, since the owner
may have stored it.
"""

from __future__ import annotations

import os
import select
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import zmq

from headrace_proto import __version__, dtypes, errors, limits
from headrace_proto import log_messages as wire
from headrace_proto.address import check_addresses
from headrace_proto.clock import AwakeClock, Deadline
from headrace_proto.credentials import Keys, load_keys
from headrace_proto.errors import DataError, HeadraceError
from headrace_proto.handshakes import connecting
from headrace_proto.interrupts import start
from headrace_proto.keys import check_name
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Bye, Pulse, Refused, Unknown
from headrace_proto.placement import owner_of
from headrace_proto.schema import Field, schema_from_wire

from .connection.connection import check_files, nonsense
from .connection.finding import Lookup
from .connection.places import Server, arranged, missing_shares, shares_there

#: Maximum bytes of the items of a lane that are not durable: beyond that an append waits.
_MOST_BYTES = 4 << 20
#: Messages of a lane without an answer, beyond which its items gather.
_UNANSWERED = 2
#: Steps join the item of the steps before up to so many pieces, and bytes; every so many of them
#: the lane has a look at what has come.
_JOINED, _JOINED_BYTES, _LOOKS = 512, 64 << 10, 8
#: Time between two greetings, and two questions where owners are.
_AGAIN_S = 1.0
#: Silence of an owner after which its lane greets again: it sends something every 3 s.
_SILENT_S = 8.0
_LOOK_S, _AWAY_S, _CLOSE_S, _LINGER_MS = 0.05, 1.5, 5.0, 500
_ENDS = wire.END, wire.ABORT
#: As numbers: operations of their enumerations take longer than the calls.
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
_NOBLOCK, _AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


_Columns = list[wire.Packed]


@dataclass(slots=True, eq=False)
class _Queued:
    """An item of a lane that is not durable."""

    item: wire.Item
    pieces: list[_Columns]
    key: bytes = b""
    of: OpenSequence | None = None
    number: int = 0


@dataclass(slots=True, eq=False)
class _Lane:
    """One partition of the log, as its producer knows it.  The producer's lock guards it."""

    server: Server
    hello: wire.Produce  # of its next connection
    place: str = ""  # to which the socket connects
    socket: Any = None
    handshakes: Any = None
    open: bool = False  # whether its greeting was answered, and the connection is not lost since
    known: bool = False  # whether one ever was
    said_at: float = -1e9  # when it greeted …
    heard_at: float = 0.0  # … and when it was answered
    of_steps: Mapping[str, Field] = field(default_factory=dict)
    of_context: Mapping[str, Field] = field(default_factory=dict)
    items: deque[_Queued] = field(default_factory=deque)
    nbytes: int = 0  # of these
    last: int = 0  # number of the last item, …
    stored: int = 0  # … of the last durable one, …
    passed: int = 0  # … of the last one that was ever sent, …
    sent: int = 0  # … and of the last one sent by this connection, …
    spent: int = 0  # … by which so much credit was spent …
    granted: int = 0  # … of so much
    unanswered: deque[int] = field(default_factory=deque)  # the last numbers of messages
    places: int = 0
    wants: int = 0  # openings that wait for a place
    closes: bool = False  # the log is to be closed …
    closed: bool = False  # … and is
    wanted: tuple[int, bool] = (0, False)  # what the owner knows of these
    sequences: dict[str, int] = field(default_factory=dict)  # open ones, and their durable steps
    handles: dict[str, OpenSequence] = field(default_factory=dict)
    faults: list[HeadraceError] = field(default_factory=list)  # refusals that nobody has seen

    @property
    def address(self) -> str:
        """Where its owner is."""
        served, owners = self.server.served, self.server.owners
        assert served is not None
        share = served.share, served.shares
        return owners[owner_of(self.hello.partition, len(owners), share)]

    @property
    def opening(self) -> int:
        """Number of openings that are not durable."""
        return sum(one.item.kind == wire.OPEN for one in self.items)

    def connect(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys | None) -> None:
        """Connect to where the owner is now."""
        self.close()
        self.place = self.address
        self.socket, self.handshakes = connecting(context, keys, self.server.address, self.place)
        self.greet()

    def greet(self) -> None:
        """Greet at the next look."""
        self.hello = replace(self.hello, connection=self.hello.connection + 1)
        # The places of the connection before end with it: ``reopens`` tells what needs one.
        self.open, self.said_at, self.places = False, -1e9, 0

    def look(self, now: float) -> bool:
        """Receive what has come, and send what is due; return whether anything has changed."""
        lost = self.handshakes.look(now) and self.open
        heard = self.receive(now)
        if self.open and (lost or now - self.heard_at >= _SILENT_S):
            self.greet()
        # The server has let this process in: its owner may be restarting behind a proxy.
        if not self.open and (fault := self.handshakes.fault(now, known=True)) is not None:
            raise fault
        if not self.open and now - self.said_at >= _AGAIN_S:
            self.said_at = now
            self.send(replace(self.hello, heard=self.stored, reopens=self.opening))
        self.send_items(now)
        # ZeroMQ's descriptor does not report what comes while a message is sent.
        return self.receive(now) or heard or lost

    def send_items(self, now: float) -> None:
        """Send items, as far as credit goes, unless earlier ones have no answer yet."""
        while self.open and len(self.unanswered) < _UNANSWERED:
            some, nbytes = list[_Queued](), 0
            for one in islice(self.items, len(self.items) - self.last + self.sent, None):
                full = len(some) == wire.MAX_ITEMS or nbytes + one.item.cost > wire.MAX_ITEM_BYTES
                if self.spent + one.item.cost > self.granted or (some and full):
                    break
                some.append(one)
                nbytes += one.item.cost
                self.spent += one.item.cost
            self.sent = some[-1].number if some else self.sent
            wants = self.wants, self.closes and self.sent == self.last
            if not some and wants == self.wanted:
                return
            self.wanted = wants
            numbers = tuple(chain.from_iterable(one.item for one in some))
            first, partition = self.sent - len(some) + 1, self.hello.partition
            keys = b"".join(one.key for one in some)
            bodies = b"".join(wire.body_of(one.pieces) for one in some)
            self.passed = max(self.passed, self.sent)
            self.send(wire.Append(partition, first, numbers, self.stored, *wants), keys, bodies)
            if some:
                self.heard_at = self.heard_at if self.unanswered else now  # silence begins here
                self.unanswered.append(self.sent)

    def joins(self, last: _Queued, item: wire.Item) -> bool:
        """Return whether steps join those before them, which were never sent."""
        return (
            last.number > max(self.passed, self.stored)
            and last.item.version == item.version
            and last.item.nbytes + item.nbytes <= _JOINED_BYTES
            and len(last.pieces) < _JOINED
        )

    def send(self, message: object, *frames: bytes) -> None:
        *first, last = FROM_TRAINER.encode(message), *frames
        try:
            for frame in first:
                self.socket.send(frame, _AND_MORE)
            self.socket.send(last, _NOBLOCK)
        except zmq.Again:  # the handshake shows why
            self.greet()

    def receive(self, now: float) -> bool:
        """Handle messages that have arrived; return whether there were some."""
        heard = False
        while int(self.socket.getsockopt(_EVENTS)) & _READABLE:
            header, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            try:
                message = FROM_SERVER.decode(header)
            except HeadraceError as error:
                raise nonsense(self.place, error) from None
            heard = True
            if not (self.unanswered and isinstance(message, Pulse)):
                self.heard_at = now
            self._receive(message, frames)
        return heard

    def _receive(self, message: Any, frames: list[bytes]) -> None:
        if isinstance(message, Refused):
            raise errors.from_code(message.code, message.text)
        if isinstance(message, Pulse):
            self.server.waiting = errors.one_line(message.waiting)
        elif isinstance(message, Unknown) and self.open:
            self.greet()
        elif isinstance(message, wire.Appended) and message.connection == self.hello.connection:
            if message.schema is not None:
                self._welcome(message, b"".join(frames))
            self._take(message)

    def _welcome(self, answer: wire.Appended, opened: bytes) -> None:
        schema, stored = schema_from_wire(answer.schema), answer.stored
        before = {**self.of_context, **self.of_steps}
        if self.known and (schema != before or stored < self.stored):
            raise errors.ServerError(
                f"log {self.hello.log!r} at {self.server.where} has other columns than before, or "
                f"lacks items that it had stored ({stored} of {self.stored}): a server without a "
                "state_dir loses its logs when it ends"
            )
        self.of_steps = {name: one for name, one in schema.items() if one.ragged_dims}
        self.of_context = {name: one for name, one in schema.items() if not one.ragged_dims}
        stands = wire.unpack_open(opened).items()
        self.sequences = {key.decode(errors="replace"): steps for key, steps in stands}
        self.known = self.open = True
        self.last, self.sent, self.spent = max(self.last, stored), stored, 0
        self.wanted = 0, False
        self.unanswered.clear()

    def _take(self, answer: wire.Appended) -> None:
        """Take what is durable, and what may be sent."""
        reasons = dict(zip(answer.refused, answer.reasons, strict=False))
        while self.items and self.items[0].number <= answer.stored:
            one = self.items.popleft()
            item, key, one.pieces = one.item, one.key.decode(), []
            self.nbytes -= item.cost
            if (reason := reasons.get(one.number)) is not None:
                what = f"sequence {key!r}" if key else "an example"
                text = f"log {self.hello.log!r} refuses {what}: {errors.one_line(reason)}"
                if one.of is None or one.of.fault is None:
                    self.faults.append(DataError(text))
                if one.of is not None:
                    one.of.fault = one.of.fault or DataError(text)
            elif answer.schema is None and item.kind in (wire.OPEN, wire.STEPS):
                self.sequences[key] = item.first + item.steps
            elif answer.schema is None:  # else it says how all of them stand
                self.sequences.pop(key, None)
        while self.unanswered and self.unanswered[0] <= answer.stored:
            self.unanswered.popleft()
        self.stored = max(self.stored, answer.stored)
        self.granted, self.places, self.closed = answer.granted, answer.places, answer.closed

    def close(self) -> None:
        if self.handshakes is not None:
            self.handshakes.close()
            self.socket = self.handshakes = None


class OpenSequence:
    """A sequence that its producer has not ended.  One thread at a time uses it."""

    def __init__(self, producer: Producer, lane: _Lane, key: str, steps: int, version: int) -> None:
        self._producer, self._lane = producer, lane
        self.key, self.steps = key, steps  # the number of the next step
        self.version = version  # of the policy that acts from here on
        self.fault: HeadraceError | None = None  # why the server has refused it
        self._last: _Queued | None = None  # the item of its last steps

    def append(self, step: Mapping[str, Any], *, timeout: float | None = None) -> int:
        """Append a step; return its number."""
        columns, _ = _packed(self._lane.of_steps, step, one=True)
        return self._put(wire.STEPS, 1, columns, timeout)

    def extend(self, columns: Mapping[str, Any], *, timeout: float | None = None) -> int:
        """Append many steps, as columns; return the number of the first one.

        More than 4 MB go as several items.  If a wait for one fails, ``steps`` shows which went.
        """
        packed, entries = _packed(self._lane.of_steps, columns)
        if len({*entries}) != 1:
            raise DataError(f"the columns have {entries} steps: give as many in each")
        first, half = self.steps, entries[0] // 2
        if wire.bytes_of(packed) > _MOST_BYTES and half:
            for part in (slice(half), slice(half, None)):
                self.extend({name: of[part] for name, of in columns.items()}, timeout=timeout)
            return first
        return self._put(wire.STEPS, entries[0], packed, timeout) if entries[0] else first

    def end(self, *, timeout: float | None = None) -> None:
        """End the sequence: no step follows."""
        self._put(wire.END, 0, [], timeout)

    def abort(self, *, timeout: float | None = None) -> None:
        """End the sequence, and drop the steps that no trainer has."""
        self._put(wire.ABORT, 0, [], timeout)

    def _put(self, kind: int, steps: int, columns: _Columns, timeout: float | None) -> int:
        lane, first = self._lane, self.steps
        with self._producer._changed:
            if self.fault is None and lane.handles.get(self.key) is not self:
                raise DataError(f"sequence {self.key!r} was ended by this producer")
            if self.fault is not None or kind in _ENDS:
                lane.handles.pop(self.key, None)
            if self.fault is not None:
                raise DataError(*self.fault.args)
            item = wire.Item(kind, 0, first, steps, self.version, 0)
            one = _Queued(item, [columns], self.key.encode(), self)
            self._producer._give(lane, one, timeout, self._last if steps else None)
            if steps and one.number:
                self._last = one
            self.steps += steps
        return first


class Producer:
    """A producer of one log, see ``produce``.  Several threads may use it."""

    def __init__(
        self, servers: list[Server], hello: wire.Produce, timeout_s: float, keys: Keys | None
    ) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._servers, self._hello, self._timeout_s, self._keys = servers, hello, timeout_s, keys
        self._lanes: list[_Lane] = []  # by partition, once all owners are found
        self._failure: Exception | None = None
        self._closing, self._pid = False, os.getpid()
        self._lookups: dict[Server, Lookup] = {}
        self._asked_at, self._clock = -1e9, AwakeClock()
        self._thread = threading.Thread(target=self._run, name="headrace-produce", daemon=True)
        start(self._thread, self._end)
        try:
            with self._changed:
                self._wait(
                    None,
                    lambda _: self._lanes and all(one.known for one in self._lanes),
                    "the log to open",
                )
        except BaseException:
            self._end()
            raise

    def open(
        self,
        key: str,
        context: Mapping[str, Any] | None = None,
        *,
        version: int = 0,
        timeout: float | None = None,
    ) -> OpenSequence:
        """Open a sequence; where this name has it open, return it at its next step.

        It waits while the log has ``max_open`` open sequences.
        """
        if not isinstance(key, str) or not 0 < len(name := key.encode()) <= wire.MAX_KEY_BYTES:
            raise ValueError(f"key={key!r:.80} is not a text of 1 to {wire.MAX_KEY_BYTES} bytes")
        with self._changed:
            lane = self._lane_of(name)
            if key in lane.handles:
                return lane.handles[key]
            ends = any(one.key == name and one.item.kind in _ENDS for one in lane.items)
            steps = None if ends else lane.sequences.get(key)
            made = OpenSequence(self, lane, key, steps or 0, version)
            if steps is None:
                columns, _ = _packed(lane.of_context, context or {})
                lane.wants += 1
                try:
                    self._look(lane)
                    self._wait(lane, lambda of: of.places > of.opening, "a place", timeout)
                finally:
                    lane.wants -= 1
                item = wire.Item(wire.OPEN, 0, 0, 0, version, 0)
                self._give(lane, _Queued(item, [columns], name, made), timeout)
            lane.handles[key] = made
            return made

    def append(
        self, example: Mapping[str, Any], *, version: int = 0, timeout: float | None = None
    ) -> None:
        """Append a whole example.  Those of one producer go to one partition, in their order."""
        with self._changed:
            lane = self._lane_of(self._hello.name.encode())
            columns, entries = _packed({**lane.of_context, **lane.of_steps}, example)
            steps = {*entries[len(lane.of_context) :]}
            item = wire.Item(wire.WHOLE, 0, 0, max(steps) if len(steps) == 1 else 0, version, 0)
            self._give(lane, _Queued(item, [columns]), timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was given is durable, and raise the first refusal of it."""
        with self._changed:
            for lane in self._lanes:
                self._wait(lane, lambda of: not of.items, "answers", timeout)
            for lane in self._lanes:
                if lane.faults:
                    raise lane.faults.pop(0)

    @property
    def sequences(self) -> dict[str, int]:
        """The next step of each open sequence of this name, as it is durable."""
        with self._changed:
            return {key: steps for lane in self._lanes for key, steps in lane.sequences.items()}

    @property
    def stored(self) -> int:
        """The number of durable items of this name, in all its lives; refused ones count.

        Whole examples are an item each; steps of a sequence may share one.
        """
        with self._changed:
            return sum(lane.stored for lane in self._lanes)

    def close_log(self, timeout: float | None = None) -> None:
        """Let no more come: feeds end once all of the log is trained."""
        self.flush(timeout)
        with self._changed:
            for lane in self._lanes:
                lane.closes = True
                self._look(lane)
            for lane in self._lanes:
                self._wait(lane, lambda of: of.closed, "the end of the log", timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, and leave: the server forgets the name unless it has open sequences."""
        try:
            if not self._closing:
                self.flush(timeout)
                with self._changed:
                    for lane in self._lanes:
                        lane.send(Bye(0))
        finally:
            self._end()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close() if kind is None else self._end()

    # Items, and waits for them.  The caller holds the lock.

    def _lane_of(self, key: bytes) -> _Lane:
        self._check_usable()
        return self._lanes[zlib.crc32(key) % len(self._lanes)]

    def _give(
        self, lane: _Lane, one: _Queued, timeout: float | None, last: _Queued | None = None
    ) -> None:
        """Give an item to a lane; wait for room there.

        ``last``: the item of the steps before it, which it may join; then it gets no number.
        """
        self._check_usable()
        (columns,) = one.pieces
        nbytes = wire.bytes_of(columns)
        heads = len(columns) * wire.COUNT_BYTES
        item = one.item._replace(key_bytes=len(one.key), nbytes=nbytes + heads)
        if item.nbytes > wire.MAX_ITEM_BYTES:
            raise DataError(
                f"a step, context or whole example of {item.nbytes} bytes: at most "
                f"{wire.MAX_ITEM_BYTES} can be.  Open a sequence for a large example, and extend it"
            )
        most = _MOST_BYTES - item.cost
        self._wait(lane, lambda of: not of.items or of.nbytes <= most, "credit", timeout)
        if last is not None and lane.joins(last, item):
            steps, size = last.item.steps + item.steps, last.item.nbytes + nbytes
            joined = last.item._replace(steps=steps, nbytes=size)
            last.pieces += [columns]  # no call up to the end: Ctrl-C comes before or after
            last.item = joined
            lane.nbytes += nbytes
            if len(last.pieces) % _LOOKS == 0:
                self._look(lane)
            return
        lane.last += 1
        one.item, one.number = item, lane.last
        lane.items.append(one)
        lane.nbytes += item.cost
        self._look(lane)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise errors.ForkedProcess("this producer is another process's: make one in each")
        if self._closing:
            raise errors.FeedClosed("this producer was closed")
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def _wait(
        self,
        lane: _Lane | None,
        done: Callable[[Any], object],
        what: str,
        timeout: float | None = None,
    ) -> None:
        """Wait until ``done``; where the deadline comes first, say for what."""
        self._check_usable()
        if done(lane):
            return
        timeout_s = self._timeout_s if timeout is None else timeout
        deadline = Deadline(timeout_s)
        while not done(lane):
            if not (left_s := deadline.left_s):
                raise self._too_late(f"waited timeout={timeout_s:g} s for {what}", lane)
            self._changed.wait(min(left_s, 4 * _LOOK_S))
            self._check_usable()

    def _too_late(self, waited: str, lane: _Lane | None) -> HeadraceError:
        server, log = (lane.server if lane else self._servers[0]), self._hello.log
        if lane is not None and lane.open:
            return errors.DeadlineExceeded(
                f"{waited} in log {log!r} at {server.where}: {len(lane.items)} items are not "
                f"durable, and {lane.places} sequences may be opened.  Feeds that lag hold a log "
                "(max_backlog), and so do open sequences (max_open)"
            )
        said = (one.waiting and f"; the server says: {one.waiting}" for one in self._servers)
        more = [*said, *(one.broken and f"; {one.broken}" for one in self._servers)]
        return errors.ConnectionLost(
            f"{waited} of log {log!r}: nothing was heard of {server.where}{''.join(more)}"
        )

    # The thread

    def _run(self) -> None:
        context = zmq.Context()
        try:
            while not self._closing:
                poll = select.poll()
                with self._changed:
                    self._find(context)
                    for lane in self._lanes:
                        self._look(lane)
                        if lane.socket is not None:
                            poll.register(lane.socket.getsockopt(zmq.FD), select.POLLIN)
                            poll.register(lane.handshakes.fileno(), select.POLLIN)
                poll.poll(1000 * _LOOK_S)
        finally:
            with self._changed:
                for lane in self._lanes:
                    if lane.socket is not None:
                        lane.socket.linger = _LINGER_MS
                    lane.close()
                for lookup in self._lookups.values():
                    lookup.handshakes.close()
            context.term()

    def _look(self, lane: _Lane) -> None:
        """Have a lane receive and send; an error there is the end of this producer."""
        try:
            if lane.socket is not None and lane.look(self._clock()):
                self._changed.notify_all()
        except (HeadraceError, ValueError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._changed.notify_all()

    def _find(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Ask where owners are, at first and while one is away; connect lanes to them."""
        now, lookups = self._clock(), self._lookups
        away = [one.server for one in self._lanes if not one.open and now - one.heard_at > _AWAY_S]
        asks = now - self._asked_at >= _AGAIN_S
        self._asked_at = now if asks else self._asked_at
        try:
            for server in self._servers:
                if server.served is not None and server not in away:
                    if server in lookups:
                        lookups.pop(server).handshakes.close()
                    continue
                if server not in lookups:
                    check_files()
                    lookups[server] = Lookup(context, self._keys, server)
                if asks:
                    lookups[server].ask(self._hello)
                answer = lookups[server].answer(now)
                if isinstance(answer, Refused):
                    raise errors.from_code(answer.code, answer.text)
                if answer is not None:
                    server.take(answer)
            if not self._lanes and all(server.served for server in self._servers):
                self._arrange()
            for lane in self._lanes:
                if not lane.open and lane.place != lane.address:
                    lane.connect(context, self._keys)
        except (HeadraceError, ValueError) as error:
            self._fail(error)

    def _arrange(self) -> None:
        """Make a lane for each partition."""
        by_share = arranged(self._servers)
        if missing_shares(self._servers):
            raise ValueError(f"{shares_there(self._servers)}.  Give the addresses of all servers")
        served = by_share[0].served
        assert served is not None
        for p in range(served.partitions):
            hello = replace(self._hello, partition=p)
            self._lanes.append(_Lane(by_share[p % served.shares], hello))

    def _end(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            Deadline(_CLOSE_S).join(self._thread)


def produce(
    address: str | Sequence[str],
    *,
    log: str,
    name: str,
    timeout: float = 120.0,
    keys: str | os.PathLike[str] | None = None,
) -> Producer:
    """Return a producer of a log, which feeds of a server read by ``hs.live(log, …)``.

    ``name`` is the producer's in all its lives: one that starts again under the name of an earlier
    one takes over its open sequences, and the earlier one is refused.  It has letters, digits,
    "_", "." and "-".  ``address`` and ``keys`` are as for ``connect``; ``timeout`` is the deadline
    in seconds of each wait that is given none.
    """
    addresses = check_addresses("address", address)
    check_name("name", name)
    if not isinstance(log, str) or not log:
        raise TypeError(f"log={log!r:.80} is not the name of a log")
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
        raise ValueError(f"timeout={timeout!r:.80} is not a positive number of seconds")
    locked = load_keys(keys)
    hello = wire.Produce(limits.PROTOCOL, __version__, log, name, time.time_ns())
    return Producer([Server(one) for one in addresses], hello, float(timeout), locked)


def _packed(
    fields: Mapping[str, Field], given: Mapping[str, Any], one: bool = False
) -> tuple[_Columns, list[int]]:
    """Return columns as bytes, of ``one`` step or of many, and how many entries each has.

    DataError where they are not those of the fields.
    """
    if not isinstance(given, Mapping) or given.keys() != fields.keys():
        came = sorted(map(str, given)) if isinstance(given, Mapping) else errors.brief(given)
        raise DataError(f"the columns {came} were given, and the log has {sorted(fields)}")
    parts, entries = _Columns(), list[int]()
    for name, column in fields.items():
        array = _array(name, column, given[name])
        array = array[None] if one else array
        if not column.admits(array.shape):
            step = " of a step" if one else ""
            raise DataError(f"column {name!r}{step} has shape {array.shape}, and is {column}")
        entries.append(len(array) if column.ragged_dims else 1)
        parts.append(wire.pack_entries(column, array))
    return parts, entries


#: Kinds of numpy's dtypes by what they can hold; a value takes a dtype that holds its kind.
_WIDTHS = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}


def _array(name: str, column: Field, value: Any) -> np.ndarray:
    """Return a value as an array: one of numpy as it is, others as the dtype of the column."""
    if column.dtype == dtypes.BYTES:
        array = np.asarray(value, object)
        texts = [one.encode() if isinstance(one, str) else one for one in array.ravel().tolist()]
        if odd := [one for one in texts if not isinstance(one, bytes)]:
            raise DataError(f"column {name!r} has {errors.brief(odd[0])}, and is of byte strings")
        return np.array([*texts, None], object)[:-1].reshape(array.shape)
    dtype, array = dtypes.numpy_dtype(column.dtype), np.asarray(value)
    if array.dtype == dtype:
        return array
    wide = array.size and _WIDTHS.get(array.dtype.kind, 9) > _WIDTHS[dtype.kind]
    if wide or isinstance(value, np.ndarray):
        raise DataError(f"column {name!r} has dtype {array.dtype}, and is {column}")
    try:
        return np.array(value.item() if isinstance(value, np.generic) else value, dtype)
    except OverflowError as error:
        raise DataError(f"column {name!r}, {column}: {error}") from None
