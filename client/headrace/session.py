"""A trainer's session with one owner of a feed, as a pure machine.

    greeting ── Welcome ──► open ── Ended ──► ended
        ▲                    │
        └──── Unknown, silence, a server that stops and will be back: say Hello again
              with the same nonce

    delivered ──► ready ──► in hand ──► committed, saved ──► answered: forgotten, or refused
                    └──────────┴──────► given back
    delivered in shared memory ──► mapped ── the last view is gone ──► released ──► reported

Messages and the time come in, messages go out; sockets, threads and memory are elsewhere.  The
session keeps all that must not get lost until it is answered, and sends it again after a
reconnection: commits, saved states with their bytes, and requests.

All sessions of a trainer bear one nonce, so servers and owners know it as one trainer.  A batch is
known by its token.  An error names an unanswered batch by its delivery and by its first keys;
``Handed`` describes batches in hand to a restarted server.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_proto import __version__, limits
from headrace_proto.errors import HeadraceError, ProtocolError, StaleLease, from_code
from headrace_proto.messages import (
    Bye,
    Deliver,
    Delivery,
    Ended,
    EpochBegun,
    Following,
    Handed,
    Hello,
    Idle,
    Outcome,
    Passed,
    Pulse,
    Refused,
    Renew,
    Retired,
    Save,
    ServedShare,
    Step,
    Unknown,
    Welcome,
)
from headrace_proto.placement import owner_of, partitions_of
from headrace_proto.record import record
from headrace_proto.state_buffers import FIRST_BUFFER

from .free_buffers import StateBuffer
from .requests import Requests

if TYPE_CHECKING:
    from .segments import SegmentBatch

_OF_NO_SESSION = (Welcome, Refused, ServedShare, Pulse)  # handled also where none is open
_HELLO_S = 1.0  # Hello is sent again after this long without an answer
_SILENT = 2.5  # heartbeats without an answer after which the server counts as lost
#: Maximum number of released batches, and of saves without a block, in one message: any number may
#: go at once, and a header is bounded.
_PER_MESSAGE = 1000
#: Maximum mapped batches that a heartbeat lists; with more of them it lists none.
_MAX_MAPPED = 4000
#: Maximum bytes of a Hello that describe batches in hand, since its header is bounded.
_PLACES_BYTES = 48 * 1024
#: Maximum number of acknowledged commits in a Hello, one for each partition.
_MOST_COMMITS = 100
#: Number of returned batches that are returned again after a reconnection: more than may be
#: prefetched.
_MOST_RETURNED = 64
#: Number of segment keys, and characters of each, by which an error names a batch.
NAMED_KEYS = 3
_Keys = Callable[[], Sequence[bytes]]
_KEY_LENGTH = 80

_STALE = (
    "was committed after its lease had ended, and its rows went to another trainer: this "
    "work counts twice.  Either this trainer was silent for longer than the server's lease_ttl_s, "
    "or the server was started anew"
)


@record
class Received:
    """A delivery with the holder of its bytes: the received frame, or the shared memory.

    The memory is that of the session which delivered the batch.  A session that is opened anew has
    other memory, and would not tell the server that this batch is still read.
    """

    delivery: Delivery
    source: Any = None
    opening: int = 0  # number of the session, among those opened here, that delivered it
    mapped: Any = None  # where the release of this batch is reported


@dataclass(slots=True)
class MappedBatches:
    """Batches in shared memory that this trainer may be reading, and released ones to report.

    Any thread may release a block while it holds any lock: this takes none.
    """

    released: deque[int] = field(default_factory=deque)
    used: bool = False  # batches of this session come through shared memory
    _tokens: set[int] = field(default_factory=set)

    def add(self, token: int) -> None:
        """Add a batch that was delivered by reference."""
        self.used = True
        self._tokens.add(token)

    def release(self, token: int) -> None:
        """Note that the last reader of a batch is gone.  Safe in any thread."""
        self._tokens.discard(token)
        self.released.append(token)

    def to_say(self) -> tuple[int, ...]:
        """Return released batches for one message; there may be more."""
        tokens: list[int] = []
        while self.released and len(tokens) < _PER_MESSAGE:
            tokens.append(self.released.popleft())
        return tuple(tokens)

    def listed(self) -> tuple[int, ...] | None:
        """Return the tokens that a heartbeat lists; None where it lists none."""
        if not self.used or len(self._tokens) > _MAX_MAPPED:
            return None
        return tuple(sorted(self._tokens))


class Meter:
    """How long a trainer waited for batches of a feed, and how long it was busy with them.

    Both are totals since it joined, running spans included.  Heartbeats carry them, and from two of
    them the server computes the share of time in which a trainer starved.
    """

    __slots__ = ("_blocked_s", "_busy_s", "_since", "_spends")

    def __init__(self) -> None:
        self._blocked_s = 0.0
        self._busy_s = 0.0
        self._spends = ""  # the kind of the running span: "", "blocked" or "busy"
        self._since = 0.0

    def asks(self, now: float) -> None:
        """Note that the trainer asks for a batch."""
        if self._spends == "busy":
            self._busy_s += now - self._since
        self._spends, self._since = "blocked", now

    def gets(self, now: float, any_came: bool = True) -> None:
        """Note that the trainer has a batch, or none, so that the next span does not count."""
        if self._spends == "blocked":
            self._blocked_s += now - self._since
        self._spends, self._since = "busy" if any_came else "", now

    def totals(self, now: float) -> tuple[float, float]:
        """Return seconds blocked and busy so far."""
        span = max(0.0, now - self._since)
        return (
            self._blocked_s + (span if self._spends == "blocked" else 0.0),
            self._busy_s + (span if self._spends == "busy" else 0.0),
        )


@dataclass(slots=True)
class Session:
    """One feed, seen by one trainer: its session with one owner."""

    feed: str
    nonce: bytes
    prefetch: int
    rank: int = -1
    world_size: int = 0
    process: bytes = b""  # names this process
    resume: str = ""  # the snapshot that the feed is to go on from
    host: str = ""  # where this trainer runs, for people who look at the server
    explicit: bool = False  # batches are committed by name, not by asking for the next
    order: str = "feed"  # of its batches: "feed" or "any"
    restart: bool = False  # the feed is to be started from its beginning
    owner: int = -1  # which of its server's owners it is with; -1 leaves it to the server
    owners: int = 0  # how many there are; 0 where that is not known yet
    address: str = ""  # of its server's locator
    addresses: tuple[str, ...] = ()  # of that server's owners
    share: int = 0  # of the feed, which that server has …
    shares: int = 1  # … out of this number; 0: the locator is only asked for its share

    generation: int = -1  # of the feed, as another owner of it has announced
    # number of the ranks' common run: owner 0 assigns it, other owners learn it from trainers
    run: int = 0
    served: ServedShare | None = None  # the answer of a locator
    meter: Meter = field(default_factory=Meter)
    awaited_s: float = 0.0  # how long this trainer waited for a batch of this owner

    welcome: Welcome | None = None
    failure: HeadraceError | None = None  # permanent: the session can not recover
    finished: bool = False
    exhausted: bool = False  # all remaining batches are in trainers' hands
    waiting: str = ""  # the server's description of what the feed waits for
    passed: set[int] = field(default_factory=set)  # partitions that make no more batches
    epoch: int = 0  # least epoch of coming batches, where batches end with their epoch
    following: tuple[int, int] = (0, 0)  # number and partition before which no new batch comes
    regrouped: int = 0  # the new number of owners, where a restarted server has another one
    stopped: bool = False  # the server has stopped, and announced that it will be back
    heard_at: float = 0.0  # when the last message of the server came
    retired: list[str] = field(default_factory=list)
    requests: Requests = field(default_factory=Requests)
    connected: bool = False  # whether the server has let it in, and is not lost since

    ready: deque[Received] = field(default_factory=deque)  # delivered, not taken
    refused: deque[HeadraceError] = field(default_factory=deque)  # raised once each
    mapped: MappedBatches = field(default_factory=MappedBatches)
    memory: Any = None  # shared with the server in this session …
    buffers: Any = None  # … for states that go to the server
    openings: int = 0  # sessions opened, continuations not counted
    last_seq: int = 0  # number of the last delivery that came
    #: Batches that were taken before the last greeting and placed after it.
    missed: set[int] = field(default_factory=set)

    _said_at: float = -1e9  # when the last greeting or heartbeat was sent
    _said_window: int = 0  # since the last greeting
    _known_by_number: bool = False  # whether a restarted server knows batches by their number
    _idle_at: int = -1  # number of the delivery after which its owner had no more batches
    _wanting: bool = False
    _held: set[int] = field(default_factory=set)  # ready, or in the trainer's hands
    _unanswered: dict[int, None] = field(default_factory=dict)  # commits
    _commits: list[int] = field(default_factory=list)  # not yet sent
    _saves: dict[int, tuple[list[Any], Any]] = field(default_factory=dict)  # unanswered
    _unsaid: list[int] = field(default_factory=list)  # saves that were not sent on this connection
    _returned: list[int] = field(default_factory=list)
    #: The last ones sent, which may be lost with the connection.
    _said_returned: deque[int] = field(default_factory=lambda: deque(maxlen=_MOST_RETURNED))
    #: Listed as held in a greeting, which may be answered late, and not returned long ago.
    _greeted: set[int] = field(default_factory=set)
    #: The highest acknowledged token, by partition.
    _committed: dict[int, int] = field(default_factory=dict)
    #: Segments of each unanswered batch, to describe it to a restarted server.
    _places: dict[int, bytes] = field(default_factory=dict)
    #: For errors, by token: the delivery of a batch, and a function that makes its first keys.
    _named: dict[int, tuple[Delivery, _Keys]] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The address of its server, with its share where several servers have the feed."""
        share = f" (share {self.share}/{self.shares})" if self.shares > 1 else ""
        return self.address + share

    @property
    def owner_address(self) -> str:
        """The address of its owner; "" where only the locator is asked."""
        known = 0 <= self.owner < len(self.addresses)
        return self.addresses[self.owner] if known else ""

    @property
    def properties(self) -> dict[str, Any]:
        """The description of the feed beside its schema; empty where it is not known yet."""
        known = None if self.welcome is None else self.welcome.properties
        return known if isinstance(known, dict) else {}

    @property
    def partitions(self) -> range:
        """The partitions of its owner."""
        assert self.welcome is not None
        share = self.share, self.shares
        return partitions_of(self.owner, self.owners, self.welcome.partitions, share)

    @property
    def regroups(self) -> bool:
        """Whether its server has another number of owners now, and their addresses are known."""
        return bool(self.regrouped) and len(self.addresses) == self.regrouped

    # Other sessions of this trainer

    def _alike(self, address: str, owner: int) -> Session:
        """Return a session of the same trainer with another owner or server."""
        shared = self.rank, self.world_size, self.process, self.resume, self.host, self.explicit
        alike = Session(self.feed, self.nonce, self.prefetch, *shared)
        alike.refused, alike.meter = self.refused, self.meter
        alike.address, alike.owner, alike.order = address, owner, self.order
        return alike

    def elsewhere(self, address: str) -> Session:
        """Return a session of the same trainer with another server, which it asks for its share."""
        elsewhere = self._alike(address, -1)
        elsewhere.shares, elsewhere.restart = 0, self.restart
        return elsewhere

    def with_owner(self, owner: int, addresses: tuple[str, ...]) -> Session:
        """Return a session with an owner of the server whose locator this one has asked."""
        assert self.served is not None
        session = self._alike(self.address, owner)
        session.feed, session.restart = self.served.feed, self.restart
        session.share, session.shares = self.served.share, self.served.shares
        session.addresses, session.owners = addresses, len(addresses)
        return session

    def beside(self, owner: int) -> Session:
        """Return a session of the same trainer with another owner of the same server."""
        assert self.welcome is not None
        beside = self._alike(self.address, owner)
        beside.feed, beside.owners = self.welcome.feed, self.owners
        beside.addresses = self.addresses
        beside.generation = self._property("generation", -1)
        beside.share, beside.shares, beside.run = self.share, self.shares, self.run
        return beside

    def again(self, resume: str) -> Session:
        """Return a session that replaces this one and goes on from a snapshot."""
        feed = self.feed if self.welcome is None else self.welcome.feed
        nonce = secrets.token_bytes(16)
        shared = self.prefetch, self.rank, self.world_size, self.process
        again = Session(feed, nonce, *shared, resume, self.host, self.explicit)
        again.order, again.shares = self.order, 0
        return again

    def hand_over(self, sessions: Sequence[Session]) -> None:
        """Give the batches in this trainer's hands to these sessions, by their partitions.

        They are sessions with the owners of a restarted server that has another number of them.
        The server hands out again batches that were delivered and not taken.
        """
        for session in sessions:
            session.welcome, session.openings = self.welcome, max(session.openings, self.openings)
        for received in self.ready:
            self._held.discard(received.delivery.token)
        share = self.share, self.shares
        for token, (delivery, keys) in self._named.items():
            to = sessions[owner_of(delivery.partition, len(sessions), share)]
            if token in self._held:
                to._held.add(token)
            elif token in self._unanswered:
                to._unanswered[token] = None
            elif token in self._saves:
                to._saves[token] = self._saves[token]
            else:
                continue
            to._named[token] = delivery, keys
            if token in self._places:
                to._places[token] = self._places[token]
        for partition, token in self._committed.items():
            sessions[owner_of(partition, len(sessions), share)]._committed[partition] = token

    # The trainer

    def take(self) -> Received | None:
        """Return the next batch, if there is one.

        None while the server is greeted: the greeting lists the batches in the trainer's hands, and
        a batch taken since would be unknown to a restarted server.
        """
        if not self.ready or not self.connected:
            return None
        self._wanting = False
        received = self.ready.popleft()
        if self._known_by_number:  # taken before a greeting could list it
            self.place(received.delivery.token)
        return received

    @property
    def much_to_say(self) -> bool:
        """Whether room for a fourth of the prefetch is free and not reported to the server."""
        window = self.last_seq - len(self.ready) + self.prefetch
        return window - self._said_window >= max(1, self.prefetch // 4)

    @property
    def may_have_come(self) -> bool:
        """Whether no batch is ready, and the server knows that it may send one."""
        return not self.ready and self._said_window > self.last_seq

    def want(self) -> None:
        """Ask for a batch, even with ``prefetch=0``."""
        self._wanting = True

    def ask_what_is_left(self) -> None:
        """Send a heartbeat at once: its answer shows whether any batch is left."""
        if self.connected and not self.ready:
            self.hurry()

    def failed(self) -> HeadraceError:
        """Return the failure to raise: a copy, since a traceback keeps objects alive."""
        assert self.failure is not None
        return type(self.failure)(*self.failure.args)

    @property
    def ended(self) -> bool:
        """Whether the feed has ended for this trainer: its own commits were answered too."""
        return self.finished and self.settled

    def over(self, holds: bool) -> bool:
        """Return whether this owner has no more batches for a trainer that ``holds`` one, or none.

        A trainer that commits explicitly and holds all that it can get would wait for itself, or
        for another such trainer.
        """
        waits_for_itself = self.explicit and self.exhausted and holds
        return self.ended or (waits_for_itself and self.connected and not self.ready)

    @property
    def idle(self) -> bool:
        """Whether its owner gives no batch before trainers have saved or committed some."""
        return self._idle_at == self.last_seq

    def place(self, token: int, segments: bytes = b"") -> bool:
        """Note which segments a taken batch has, to describe it to a restarted server.

        Return False where such a server was greeted meanwhile: it hands the rows out again.
        """
        if token in self.missed:
            return False
        if token in self._named:  # else it was refused meanwhile
            self._places[token] = segments
        return True

    def untake(self, received: Received) -> None:
        """Put back a batch that was taken and not used: it is the next one again."""
        token = received.delivery.token
        if token in self._held:
            self._places.pop(token, None)
            self.ready.appendleft(received)

    def commit(self, token: int) -> None:
        """Commit a batch."""
        if token in self._held:
            self._held.discard(token)
            self._unanswered[token] = None
            self._commits.append(token)

    def save(self, token: int, columns: list[Any], block: Any, keys: _Keys = tuple) -> bool:
        """Commit a batch of segments with these states.

        Without a block they stay with the trainer.  ``keys`` makes the keys of its first segments,
        for errors.  False when the batch is not held any more.
        """
        if token not in self._held:
            return False
        self._named[token] = self._named[token][0], keys
        self._unsaid.append(token)  # first: Ctrl-C may come between the two
        self._saves[token] = columns, block
        self._held.discard(token)  # last: a save that Ctrl-C cuts short can be made again
        return True

    def give_back(self, token: int) -> None:
        """Return a batch that the trainer will not use."""
        if token in self._held:
            self._held.discard(token)
            self._named.pop(token, None)
            self._places.pop(token, None)
            self._returned.append(token)

    @property
    def settled(self) -> bool:
        """Whether every commit and every save was answered."""
        return not self._unanswered and not self._commits and not self._saves

    @property
    def unanswered(self) -> int:
        """Return the commits and saves that the server has not answered."""
        return len(self._unanswered) + len(self._saves)

    def held(self) -> int:
        return len(self._held)

    def lost(self, known: Container[int]) -> list[tuple[int, int]]:
        """Return partition and token of each batch that was taken and is not ``known``."""
        ready = {received.delivery.token for received in self.ready}
        tokens = [token for token in self._held if token not in ready and token not in known]
        return [(self._named[token][0].partition, token) for token in tokens]

    def holds(self, token: int) -> bool:
        """Return whether a batch of this session is ready, or in the trainer's hands."""
        return token in self._held

    # The server

    def receive(self, message: Any, frames: list[Any], now: float) -> None:
        """Handle a message, with the frames after its header."""
        self.heard_at = now
        known = None if self.welcome is None else self.welcome.session
        if isinstance(message, Deliver):
            if message.session == known and self.connected:  # else a message before it may be lost
                self._on_outcome(message)
                self._on_deliver(message, frames)
        elif isinstance(message, _OF_NO_SESSION) or message.session == known:
            _HANDLERS.get(type(message), _HANDLERS[object])(self, message)

    def _on_refused(self, refused: Refused) -> None:
        self.failure = self.failure or from_code(refused.code, refused.text)

    def _on_share(self, served: ServedShare) -> None:
        self.served = served
        self.waiting = f"this is share {served.share}/{served.shares} of feed {served.feed!r}"

    def located(self, answer: ServedShare, addresses: tuple[str, ...]) -> None:
        """Take a locator's answer while the owner is away."""
        if (answer.share, answer.shares) != (self.share, self.shares):
            self.waiting = f"this is share {answer.share}/{answer.shares} of feed {answer.feed!r}"
            return
        if answer.waiting:
            self.waiting = answer.waiting
        self.addresses = addresses
        self.regrouped = len(addresses) if len(addresses) != self.owners else 0

    def _on_pulse(self, pulse: Pulse) -> None:
        self.waiting, self.exhausted = pulse.waiting, pulse.exhausted

    def _on_idle(self, idle: Idle) -> None:
        if idle.drains:
            self._let_ready_go()
        else:
            self._idle_at = idle.seq

    def _on_following(self, message: Following) -> None:
        self.following = message.number, message.partition

    def _on_passed(self, passed: Passed) -> None:
        if not self.connected:  # a delivery before it may be lost; the server sends both again
            return
        self.last_seq = max(self.last_seq, passed.seq)
        # Another owner may be asked instead, and if not, this one is asked again.
        self._wanting, self.prefetch, self._said_window = False, 0, self.last_seq
        self.passed.add(passed.partition)

    def continues(self, welcome: Welcome) -> bool:
        """Return whether this is the session that is known here.

        The server may have resumed a session whose Welcome never came: for us it is a new one.
        """
        known = self.welcome
        return (
            welcome.resumed
            and known is not None
            and (known.session, known.session_file) == (welcome.session, welcome.session_file)
        )

    def _on_welcome(self, welcome: Welcome) -> None:
        known = self.welcome
        if self.owners not in (0, welcome.owners):
            self.regrouped = welcome.owners
            return
        self.owners, self.run = welcome.owners, welcome.run
        changed = known is not None and welcome.schema != known.schema
        if known is not None and known.schema and welcome.schema and changed:
            self.failure = from_code(
                "protocol",
                f"the feed {welcome.feed!r} has another schema since the reconnection: "
                f"{welcome.schema} instead of {known.schema}",
            )
            return
        anew = not self.continues(welcome)
        self.missed = self.missed if anew else set()  # a resumed session knows all batches in hand
        if anew:
            # A new session counts anew; batches that were not taken go back.
            self._let_ready_go()
            self.exhausted, self._idle_at, self.following = False, -1, (0, 0)
            self.passed.clear()
            self.last_seq = self.epoch = 0
            self.mapped.used = False
            self.openings += 1
        self._said_window = 0
        self.welcome = welcome
        recovers = True in map(self.properties.get, ("durable", "recovers"))
        self._known_by_number = recovers and self.properties.get("shape") != "sequences"
        self.connected, self.stopped = True, False
        self._say_again(anew)
        self.requests.reopened(welcome.session, anew)

    def _on_ended(self, message: Ended) -> None:
        if not message.code:
            self.finished = True
        elif not self.ended:  # a server that is stopped then accepts nothing from this trainer
            if message.returns:
                self.stopped, self.connected = True, False
                return
            text = message.text if self.shares == 1 else f"{self.where}: {message.text}"
            self.failure = self.failure or from_code(message.code, text)
        self._said_at = -1e9  # the server waits for the heartbeat that acknowledges this

    def _on_epoch(self, message: EpochBegun) -> None:
        self._idle_at = -1
        if message.epoch > self.epoch:  # else it was resent after a reconnection
            self.epoch = message.epoch
            self.passed.clear()

    def _property(self, name: str, unknown: int) -> int:
        """Return a number of the feed's properties: ``generation``, or ``epoch``, the term."""
        value = self.properties.get(name, unknown)
        return value if isinstance(value, int) else unknown

    def _on_deliver(self, message: Deliver, frames: list[Any]) -> None:
        for delivery in message.items:
            if not delivery.segment and not 0 < delivery.frame <= len(frames):
                raise ProtocolError(
                    f"batch {delivery.partition}/{delivery.number} names frame {delivery.frame}, "
                    f"but the message has {len(frames)} frames"
                )
            if type(delivery.meta) is not dict:
                raise ProtocolError(
                    f"batch {delivery.partition}/{delivery.number} says of itself "
                    f"{delivery.meta!r:.80}, not a mapping"
                )
        for delivery in message.items:
            if delivery.seq <= self.last_seq:  # sent twice
                continue
            inline = not delivery.segment
            self.last_seq, self.exhausted, token = delivery.seq, False, delivery.token
            self._named[token] = delivery, tuple  # before it counts as held: Ctrl-C may come
            self._held.add(token)
            if not inline:
                self.mapped.add(token)
            source = frames[delivery.frame - 1] if inline else self.memory
            self.ready.append(Received(delivery, source, self.openings, self.mapped))

    def _let_ready_go(self) -> None:
        """Return untaken batches: the server counts them as lost, or keeps them leased."""
        while self.ready:
            self._let_go(self.ready.popleft())

    def _let_go(self, received: Received) -> None:
        token = received.delivery.token
        self._held.discard(token)
        self._named.pop(token, None)
        self._returned.append(token)
        if received.delivery.segment:
            self.mapped.release(token)

    def _on_outcome(self, message: Outcome | Deliver) -> None:
        for token in message.committed:
            if token in self._places:
                partition = self._named[token][0].partition
                self._committed[partition] = max(token, self._committed.get(partition, 0))
            self._answered(token)
        for token in message.stale:
            self._answered(token, StaleLease(f"{self._name_of(token)} {_STALE}"))
        if not isinstance(message.faults, (list, tuple)):
            raise ProtocolError(f"faults of commits are {message.faults!r:.80}, not a list")
        for fault in message.faults:
            if not isinstance(fault, list) or [type(v) for v in fault[:3]] != [int, str, str]:
                raise ProtocolError(
                    f"a fault of a commit is {fault!r:.80}, not [token, code, text]"
                )
            refused = from_code(fault[1], f"{self._name_of(fault[0])}: {fault[2]}")
            self._answered(fault[0], refused)

    def _name_of(self, token: int) -> str:
        """Return the name of a held or unanswered batch for errors."""
        known = self._named.get(token)
        if known is None:
            return f"batch of token {token}"
        keys: Sequence[bytes] = ()
        with contextlib.suppress(ProtocolError):  # the server sent invalid strings
            keys = known[1]()
        return named(known[0], keys)

    def _answered(self, token: int, refused: HeadraceError | None = None) -> None:
        """Note the answer to a commit or a save, if one is due.

        Ctrl-C may come between two lines, and then the answer comes again.  A batch keeps its place
        until then: a restarted server must know the batch of a commit that is sent again.
        """
        if refused is not None and (token in self._unanswered or token in self._saves):
            self.refused.append(refused)
        if token in self._unanswered:
            del self._unanswered[token]
        else:
            self._saves.pop(token, None)
        self._places.pop(token, None)
        self._named.pop(token, None)

    # Outgoing messages

    def outgoing(self, now: float) -> list[Any]:
        """Return the messages that are due."""
        if not self.connected:
            if self.failure is not None or now - self._said_at < _HELLO_S:
                return []
            self._said_at = now
            if not self.shares:  # only the locator is asked
                return [] if self.served is not None else [self.lookup()]
            return [self._hello()]
        assert self.welcome is not None
        number = self.welcome.session
        # Every batch that was sent before the last received one was taken, waits here, or is lost.
        # The batch that the trainer waits for counts as taken, which saves a message.
        window = self.last_seq - len(self.ready) + self.prefetch + self._wanting
        news = self._commits or window > self._said_window or self._returned
        more = news or self.mapped.released or self._unsaid
        messages: list[Any] = list(self._steps(number, window)) if more else []
        if self.requests.due:
            messages.extend(self.requests.to_say(number))
        if now - self._said_at >= self.welcome.heartbeat_s:
            self._said_at = now
            messages.append(self._renew(number, window, now))
        return messages

    def _hello(self) -> Hello:
        return Hello(
            version=limits.PROTOCOL,
            library=__version__,
            feed=self.feed,
            nonce=self.nonce,
            rank=self.rank,
            world_size=self.world_size,
            last_seq=self.last_seq,
            held=tuple(sorted(self._held)),
            known="" if self.welcome is None else self.welcome.session_file,
            batches=self._places_to_report(),
            process=self.process,
            resume=self.resume,
            generation=self._property("generation", self.generation),
            host=self.host,
            term=self._property("epoch", 0),
            committed=self._commits_to_report(),
            restart=self.restart,
            owner=self.owner,
            run=self.run,
            share=self.share,
            shares=self.shares,
        )

    def lookup(self) -> Hello:
        """Return the greeting by which the locator is asked where the owners are."""
        return Hello(limits.PROTOCOL, __version__, self.feed, self.nonce, shares=0)

    def frames_of(self, message: Any) -> list[Any]:
        """Return the frames that follow the header of a message that is being sent."""
        if not isinstance(message, Step):
            return self.requests.frames_of(message)
        frames: list[Any] = []
        for save in message.saves:
            if 0 < save.frame < FIRST_BUFFER:
                block = self._saves[save.token][1]
                # A copy, since a buffer is used again though a socket may still send it.
                frames.append(block.array.tobytes() if type(block) is StateBuffer else block)
        return frames

    def _renew(self, number: int, window: int, now: float) -> Renew:
        """Return the heartbeat, which lists all that is mapped.

        So the server notices lost references, and releases whose message was lost.
        """
        mapped = self.mapped.listed()
        blocked_s, busy_s = self.meter.totals(now)
        return Renew(
            session=number,
            window=window,
            last_seq=self.last_seq,
            held=tuple(sorted(self._held)),
            mapped=mapped or (),
            mapped_upto=0 if mapped is None else self.last_seq,
            blocked_s=blocked_s,
            busy_s=busy_s,
            ended=self.finished or self.failure is not None,
            awaited_s=self.awaited_s,
        )

    def silence(self, now: float) -> float:
        """Return the seconds since the server's last message, 0 while that is normal."""
        heartbeat_s = self.welcome.heartbeat_s if self.welcome is not None else _HELLO_S
        silent = now - self.heard_at
        return silent if silent > _SILENT * heartbeat_s else 0.0

    def lose(self) -> None:
        """Greet a server again that was silent for too long."""
        self.connected = False

    def greet(self) -> None:
        """Greet the server again at once: the connection to it has ended."""
        self.connected = False
        self.hurry()

    def hurry(self) -> None:
        """Send the next heartbeat at once: this process could not send it in time."""
        self._said_at = -1e9

    def due_in(self, now: float) -> float:
        """Return the seconds until a message is due without a new event."""
        if not self.connected:
            return max(0.0, self._said_at + _HELLO_S - now)
        assert self.welcome is not None
        return max(0.0, self._said_at + self.welcome.heartbeat_s - now)

    def goodbye(self) -> Bye | None:
        """Return the last message, if a server is there to receive it."""
        return Bye(self.welcome.session) if self.connected and self.welcome is not None else None

    def _steps(self, session: int, window: int) -> list[Step]:
        """Return messages with all commits, returns and requests that were not sent."""
        steps: list[Step] = []
        released = self.mapped.to_say()
        while self.mapped.released:
            steps.append(Step(session, 0, (), released))
            released = self.mapped.to_say()
        saves = self._saves_to_say() if self._unsaid else []
        if self._commits or self._returned or released or saves or window > self._said_window:
            commits, returned = tuple(self._commits), tuple(self._returned)
            self._said_returned.extend(returned)
            steps.append(Step(session, window, commits, released, returned, *saves[:1]))
            self._commits, self._returned, self._said_window = [], [], window
        if len(saves) > 1:
            steps.extend(Step(session, 0, saves=some) for some in saves[1:])
        return steps

    def _saves_to_say(self) -> list[tuple[Save, ...]]:
        """Return lists of saves, one for each message: at most one save with a block in each."""
        unsaid, self._unsaid = self._unsaid, []
        messages: list[tuple[Save, ...]] = []
        light = []
        for token in unsaid:
            if token not in self._saves:  # sent before a reconnection, and answered after all
                continue
            columns, block = self._saves[token]
            if block is None:
                light.append(Save(token))
            else:  # a buffer of an earlier session goes as bytes
                shared = type(block) is StateBuffer and block.owner is self.buffers
                frame = FIRST_BUFFER + block.number if shared else 1
                messages.append((Save(token, frame, columns),))
        parts = range(0, len(light), _PER_MESSAGE)
        messages.extend(tuple(light[i : i + _PER_MESSAGE]) for i in parts)
        return messages

    def _say_again(self, anew: bool) -> None:
        """Resend all that a lost connection may have lost, in the same session or in another."""
        self._commits = list(self._unanswered)
        self._unsaid = list(self._saves)
        if anew:  # it counts returned batches as held only where a greeting did
            returned = [token for token in self._said_returned if token in self._greeted]
            self._said_returned = deque(returned, _MOST_RETURNED)
        self._returned += [token for token in self._said_returned if token not in self._held]

    def _commits_to_report(self) -> tuple[int, ...]:
        """Return the last acknowledged commits, one for each partition, the latest ones."""
        latest = sorted(self._committed.items(), key=lambda known: -known[1])[:_MOST_COMMITS]
        return tuple(number for known in latest for number in known)

    def _places_to_report(self) -> tuple[Handed, ...]:
        """Return descriptions of the batches in hand, as many as a header holds."""
        ready = {received.delivery.token for received in self.ready}
        self.missed = self._held - ready - self._places.keys()
        self._greeted.intersection_update((*self._said_returned, *self._returned))
        self._greeted |= self._held
        places, room = [], _PLACES_BYTES
        for token, segments in self._places.items():
            room -= 64 + len(segments)
            if room >= 0 and len(segments) <= limits.MAX_HEADER_STRING:
                d = self._named[token][0]
                places.append(Handed(token, d.partition, d.number, d.rows, segments))
        return tuple(places)


def named(batch: Delivery | SegmentBatch, keys: Sequence[bytes] = ()) -> str:
    """Return the name of a batch for errors, with the first keys of its segments if it has any."""
    rows = f"{batch.rows} row{'' if batch.rows == 1 else 's'}"
    listed = [key.decode("utf-8", "backslashreplace")[:_KEY_LENGTH] for key in keys if key]
    if listed and batch.rows > len(listed):
        listed.append("…")
    which = f": {', '.join(listed)}" if listed else ""
    return f"batch {batch.partition}/{batch.number} (token {batch.token}, {rows}{which})"


#: How each message but a Deliver is handled; those that are not listed answer requests.
_HANDLERS: dict[type, Callable[[Session, Any], object]] = {
    Welcome: Session._on_welcome,
    Refused: Session._on_refused,
    ServedShare: Session._on_share,
    Pulse: Session._on_pulse,
    Outcome: Session._on_outcome,
    Ended: Session._on_ended,
    Idle: Session._on_idle,
    Following: Session._on_following,
    EpochBegun: Session._on_epoch,
    Retired: lambda session, message: session.retired.extend(message.segments),
    Unknown: lambda session, message: session.greet(),
    Passed: Session._on_passed,
    object: lambda session, message: session.requests.receive(message),
}
