"""The producers of the logs at one owner: their messages become items, and the ledgers' answers go
back.

    Produce ─► a peer of the ledger of that partition ─► Appended, once its name is durable
    Append  ─► items, whose columns fit the log       ─► Appended, once they are
            ─► Unknown: greet again                   ─► Refused: another process has the name

A producer has a connection for each partition.  Items with other columns than those of the log are
refused as garbage is: the client checks them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace_proto import log_messages as wire
from headrace_proto.channel import Frame
from headrace_proto.errors import NotAllowed, ProtocolError
from headrace_proto.messages import FROM_SERVER, Pulse, Refused, Unknown
from headrace_proto.schema import schema_to_wire

from ..logs.records import Close
from ..logs.words import Answer, Denied, Item
from ..net.keyring import PRODUCERS
from ..net.public_socket import PublicSocket
from ..net.refusals import check_version, log_named
from .live_logs import LiveLog, LiveLogs

#: Maximum number of refusals in one message, whose header is bounded.
_MOST_REFUSED = 200
#: Silence of a producer after which it gets a sign of life, by which it knows that of this owner.
_SILENT_S = 3.0
#: Steps of a sequence, which a record has in 32 bits.
_MOST_STEPS = 2**32 - 1
_CLOSES = {wire.END: Close.END, wire.ABORT: Close.ABORT, wire.WHOLE: Close.END}
#: By the ledger's word for a denial or a refusal what it means.
_DENIED = {
    "older": ("in_use", "a process that began later has this name, and has taken over"),
    "full": ("limit", "the log has as many producers as it may have"),
    "forgotten": (
        "rewound",
        "the log knows nothing of this producer's earlier items: make the producer anew",
    ),
}
_REASONS = {
    "closed": "the log is closed",
    "open": "another producer has it open, or an earlier opening is",
    "not open": "it is not open: it has ended, or was idle for idle_timeout_s",
    "no place": "the log has as many open sequences as it may have (max_open)",
}


@dataclass(slots=True, eq=False)
class _Peer:
    """A producer's process at one partition."""

    number: int  # of its connection in the ledger
    identity: bytes
    log: LiveLog
    hello: wire.Produce
    key: str
    seen: float
    closes: bool = False  # whether it has closed the log, and does not know that this is stored
    told: wire.Appended | None = None


class Producers:
    """All producers of one owner."""

    def __init__(self, logs: LiveLogs, socket: PublicSocket) -> None:
        self._logs, self._socket = logs, socket
        logs.send = self._send
        self._numbers = itertools.count(1)
        self._peers: dict[int, _Peer] = {}
        self._at: dict[tuple[bytes, int], _Peer] = {}  # by connection and partition

    def greet(
        self, identity: bytes, hello: wire.Produce, key: str, came_by: int, now: float
    ) -> None:
        """Let the ledger judge a greeting; a HeadraceError is sent as the answer."""
        check_version(hello)
        if self._socket.name_of(key, PRODUCERS) is None:
            raise NotAllowed(
                "this key is not, or no longer, in producers/ of the server's keys: headrace "
                "keygen DIR --name NAME --producer puts one there"
            )
        log = self._logs.at(log_named(hello.log, self._logs.names), hello.partition)
        if log is None:
            self._send_to(identity, Pulse(0, 0, "the worker is opening the log"))
            return
        place = hello.birth, hello.connection
        for known in self._peers.values():
            if known.log is log and known.hello.name == hello.name:
                there = known.hello.birth, known.hello.connection
                if there > place:
                    self._send_to(identity, Refused(*_DENIED["older"]))
                if there > place or (there == place and known.identity == identity):
                    return  # it is late, or the answer is under way
        number = next(self._numbers)
        peer = self._peers[number] = _Peer(number, identity, log, hello, key, now)
        self._at[identity, hello.partition] = peer
        self._socket.connections.belongs(came_by, -number, now)
        with log.changing() as ledger:
            ledger.greet(hello.name, hello.birth, number, hello.heard, now, hello.reopens)

    def append(
        self, identity: bytes, append: wire.Append, frames: Sequence[Frame], now: float
    ) -> None:
        """Append items to the ledger."""
        peer = self._at.get((identity, append.partition))
        if peer is None:
            self._send_to(identity, Unknown(0))
            return
        items = [*_items(peer.log, append, frames)]
        peer.seen = now
        with peer.log.changing() as ledger:
            ledger.append(peer.number, items, now, append.heard)
            if append.wants:  # beside the places that these items have taken
                ledger.append(peer.number, (), now, append.heard, append.wants)
            if append.closes:
                peer.closes = True
                ledger.close(now)

    def leave(self, identity: bytes) -> bool:
        """End the session of a producer that leaves; return whether there was one."""
        peers = [peer for (of, _), peer in self._at.items() if of == identity]
        for peer in peers:
            with peer.log.changing() as ledger:
                ledger.leave(peer.number)
            self._forget(peer)
        return bool(peers)

    def tick(self, now: float, judge: bool) -> None:
        """Forget producers whose connection is gone, or (``judge``) whose key was revoked."""
        for peer in list(self._peers.values()):
            if judge and self._socket.name_of(peer.key, PRODUCERS) is None:
                self._send_to(
                    peer.identity, Refused("denied", "the key of this producer was revoked")
                )
                self._forget(peer)
            elif peer.closes and peer.log.ledger.finished and peer.told is not None:
                peer.closes = False
                self._send_to(peer.identity, replace(peer.told, closed=True))
            elif now - peer.seen > _SILENT_S:
                peer.seen = now
                self._send_to(peer.identity, Pulse(0, 0, ""))

    def _forget(self, peer: _Peer) -> None:
        del self._peers[peer.number]
        if self._at.get((peer.identity, peer.hello.partition)) is peer:
            del self._at[peer.identity, peer.hello.partition]
        self._socket.connections.left(-peer.number, peer.seen)
        with peer.log.changing() as ledger:
            ledger.gone(peer.number)

    # Answers

    def _send(self, number: int, message: Answer | Denied) -> None:
        """Send a message of a ledger to one of its connections."""
        peer = self._peers.get(number)
        if peer is None:
            return
        if isinstance(message, Denied):
            self._forget(peer)
            denied = _DENIED.get(message.reason)
            self._send_to(peer.identity, Unknown(0) if denied is None else Refused(*denied))
            return
        refused = message.refused[:_MOST_REFUSED]
        answer = peer.told = wire.Appended(
            partition=peer.hello.partition,
            connection=peer.hello.connection,
            stored=message.stored if refused == message.refused else refused[-1][0],
            granted=message.granted,
            places=message.places,
            refused=tuple(item for item, _ in refused),
            reasons=tuple(_REASONS.get(why, why) for _, why in refused),
            closed=peer.log.ledger.finished,
        )
        if message.open is not None:
            schema = schema_to_wire(peer.log.fields)
            head = FROM_SERVER.encode(replace(answer, schema=schema))
            block = memoryview(wire.pack_open(message.open))
            self._socket.send_block(peer.identity, head, block, lambda: None)
        else:
            self._send_to(peer.identity, answer)

    def _send_to(self, identity: bytes, message: object) -> None:
        """Send a message; forget a producer whose connection is gone."""
        if not self._socket.send(identity, FROM_SERVER.encode(message)):
            for peer in [peer for (of, _), peer in self._at.items() if of == identity]:
                self._forget(peer)


def _items(log: LiveLog, append: wire.Append, frames: Sequence[Frame]) -> Iterator[Item]:
    """Yield the items of a message; ProtocolError where they are none of this log."""
    numbers, width = append.items, len(wire.Item._fields)
    keys, bodies = [memoryview(frame) for frame in (*frames, b"", b"")][:2]
    if len(numbers) % width:
        raise ProtocolError(f"the items of an Append have {len(numbers)} numbers")
    for number, at in enumerate(range(0, len(numbers), width), append.number):
        one = wire.Item._make(numbers[at : at + width])
        key, keys = bytes(keys[: one.key_bytes]), keys[one.key_bytes :]
        body, bodies = bodies[: one.nbytes], bodies[one.nbytes :]
        if (len(key), len(body)) != (one.key_bytes, one.nbytes) or not (
            key or one.kind == wire.WHOLE
        ):
            raise ProtocolError(f"item {number} does not fit the frames of its Append")
        if one.kind > wire.WHOLE or one.first + one.steps > _MOST_STEPS:
            raise ProtocolError(f"item {number} is of kind {one.kind}, or ends beyond a sequence")
        if one.key_bytes > wire.MAX_KEY_BYTES or one.nbytes > wire.MAX_ITEM_BYTES:
            raise ProtocolError(f"item {number} has {one.key_bytes} and {one.nbytes} bytes")
        context, steps = 0, one.steps
        if one.kind in (wire.OPEN, wire.WHOLE):
            fields = log.of_context if one.kind == wire.OPEN else log.fields
            sizes = [
                (n, 4 + lengths.nbytes + len(of))
                for n, lengths, of in wire.entries_of(fields, body)
            ]
            context = sum(size for _, size in sizes[: len(log.of_context)])
            if one.kind == wire.OPEN or not steps:
                context, steps = len(body), 0
            elif {n for n, _ in sizes[len(log.of_context) :]} != {steps}:
                raise ProtocolError(f"item {number} has columns of another number than {steps}")
        elif one.kind == wire.STEPS:
            if not steps or {n for n, _, _ in wire.entries_of(log.of_steps, body)} != {steps}:
                raise ProtocolError(f"item {number} has no columns of {steps} steps each")
        elif steps or body:
            raise ProtocolError(f"item {number} ends a sequence, and has data")
        opens, close = one.kind in (wire.OPEN, wire.WHOLE), _CLOSES.get(one.kind, Close.GOING)
        yield Item(
            number, key, opens, one.first, steps, close, one.version, body[:context], body[context:]
        )
