"""A trainer's session as a pure machine: what was received, what is held, what is to be said.

    greeting ── Welcome ──► open ── Ended ──► ended
        ▲                    │
        └──── Unknown, silence, a server that stops and will be back: say Hello again
              with the same nonce

Messages and the time come in, messages go out; sockets, threads and memory are elsewhere.  All
that must not get lost is kept until it is answered: commits, saved states with their bytes, and
requests are said again after a reconnection.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_proto import __version__, limits
from headrace_proto.errors import HeadraceError, ProtocolError, StaleLease, from_code
from headrace_proto.messages import (
    Bye,
    Deliver,
    Delivery,
    Ended,
    Full,
    Handed,
    Hello,
    Idle,
    Outcome,
    Passed,
    Pulse,
    Refused,
    Renew,
    Retired,
    Step,
    Unknown,
    Welcome,
)
from headrace_proto.record import record

from .mapped import MappedBatches
from .meter import Meter
from .requests import Requests
from .uploads import Uploads

if TYPE_CHECKING:
    from .segments import SegmentBatch

__all__ = ["NAMED_KEYS", "Received", "Session", "named"]

#: Hello is said again after this long without an answer.
_HELLO_S = 1.0
#: Heartbeats without a word from the server after which it counts as lost: each is answered.
_SILENT = 2.5
#: Of a Hello that tells of batches in hand: a header is bounded.
_PLACES_BYTES = 48 * 1024
#: Acknowledged commits in it, one for each partition.
_MOST_COMMITS = 100


#: Keys of segments, and characters of each, that an error names a batch by.
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
    """A delivery with what holds its bytes: the frame that came, or the memory that is shared.

    The memory is that of the moment of delivery: a session that is opened anew meanwhile brings
    another, under which the server would not know that this batch is read.
    """

    delivery: Delivery
    source: Any = None
    opening: int = 0  # which of the sessions opened here brought it
    mapped: Any = None  # where it is told that nobody reads this batch any more


@dataclass(slots=True)
class Session:
    """One feed, seen by one trainer."""

    feed: str
    nonce: bytes
    prefetch: int
    rank: int = -1
    world_size: int = 0
    process: bytes = b""  # names this process
    resume: str = ""  # the snapshot that the feed is to go on from
    host: str = ""  # for who looks at the server: where this trainer runs
    explicit: bool = False  # batches are committed by name, not by asking for the next
    restart: bool = False  # the feed is to be started from its beginning
    owner: int = -1  # which of the feed's owners it is with; -1 leaves it to the server
    owners: int = 0  # how many there are; 0 where that is not known yet

    generation: int = -1  # of the feed, as far as another owner of it has told
    run: int = 0  # those of all ranks that train together: owner 0 tells, and others are told
    welcome: Welcome | None = None
    ready: deque[Received] = field(default_factory=deque)  # delivered, not taken
    failure: HeadraceError | None = None  # for good
    refused: deque[HeadraceError] = field(default_factory=deque)  # commits; to be raised, once each
    finished: bool = False
    waiting: str = ""  # what the server said that the feed waits for
    exhausted: bool = False  # no batch is left but those in trainers' hands
    passed: set[int] = field(default_factory=set)  # partitions that make no more batches
    following: tuple[int, int] = (0, 0)  # no new batch stands before this number and partition
    regrouped: int = 0  # another number of owners, which a server that is started anew has
    stopped: bool = False  # the server has stopped, and announced that it will be back
    heard_at: float = 0.0  # when the server was last heard of
    retired: list[str] = field(default_factory=list)
    memory: Any = None  # shared with the server in this session; the driver says which
    openings: int = 0  # sessions that were opened, continuations of one not counted

    mapped: MappedBatches = field(default_factory=MappedBatches)
    uploads: Uploads = field(default_factory=Uploads)
    requests: Requests = field(default_factory=Requests)
    meter: Meter = field(default_factory=Meter)

    _open: bool = False
    _said_at: float = -1e9
    _last_seq: int = 0
    _known_by_number: bool = False  # whether a server that is started anew knows batches by that
    _idle_at: int = -1  # number of the delivery after which its owner had nothing to give
    _wanting: bool = False
    _held: set[int] = field(default_factory=set)  # leases: ready, or in the trainer's hands
    _unanswered: dict[int, None] = field(default_factory=dict)  # commits
    _commits: list[int] = field(default_factory=list)  # not yet said
    _returned: list[int] = field(default_factory=list)
    _said_window: int = 0
    _committed: dict[int, int] = field(default_factory=dict)  # by partition: highest token
    _places: dict[int, Handed] = field(default_factory=dict)  # of batches in hand or not answered
    #: Deliveries held or not answered, and the first keys of their segments, for errors.
    #: By token the delivery of a batch, and a function that makes its first keys, for errors.
    _named: dict[int, tuple[Delivery, _Keys]] = field(default_factory=dict)

    def beside(self, owner: int) -> Session:
        """A session of the same trainer with another owner of the feed."""
        assert self.welcome is not None
        shared = self.rank, self.world_size, self.process, self.resume, self.host, self.explicit
        beside = Session(self.welcome.feed, self.nonce, self.prefetch, *shared, owner=owner)
        beside.generation = self._property("generation", -1)
        beside.refused, beside.meter, beside.owners = self.refused, self.meter, self.owners
        beside.run = self.run
        return beside

    def hand_over(self, sessions: Sequence[Session]) -> None:
        """Give the batches in this trainer's hands to these sessions, by their partitions.

        They are with the owners of a server that is started anew, with another number of them.
        What was delivered and not taken goes out again.
        """
        for session in sessions:
            session.welcome, session.openings = self.welcome, max(session.openings, self.openings)
        for received in self.ready:
            self._held.discard(received.delivery.token)
        for token, (delivery, keys) in self._named.items():
            to = sessions[delivery.partition % len(sessions)]
            if token in self._held:
                to._held.add(token)
            elif token in self._unanswered:
                to._unanswered[token] = None
            elif not self.uploads.hand_over(token, to.uploads):
                continue
            to._named[token] = delivery, keys
            if token in self._places:
                to._places[token] = self._places[token]
        for partition, token in self._committed.items():
            sessions[partition % len(sessions)]._committed[partition] = token

    def again(self, resume: str) -> Session:
        """A session in place of this one, which goes on from a snapshot."""
        feed = self.feed if self.welcome is None else self.welcome.feed
        nonce = secrets.token_bytes(16)
        shared = self.prefetch, self.rank, self.world_size, self.process
        again = Session(feed, nonce, *shared, resume, self.host, self.explicit)
        again.owner = -1 if self.rank < 0 else 0
        return again

    # The trainer

    def place(self, place: Handed) -> None:
        """A batch goes to the trainer: how a server that is started anew would know it."""
        self._places[place.token] = place

    def take(self) -> Received | None:
        """The next batch, if there is one.

        None while the server is greeted: it was told what is in the trainer's hands, and a batch
        taken since would be unknown to a server that is started anew.
        """
        if not self.ready or not self._open:
            return None
        self._wanting = False
        received = self.ready.popleft()
        if self._known_by_number:  # before a greeting could tell what is in hand
            d = received.delivery
            self.place(Handed(d.token, d.partition, d.number, d.rows))
        return received

    @property
    def much_to_say(self) -> bool:
        """Whether a fourth of what may come ahead could come, and the server was not told."""
        window = self._last_seq - len(self.ready) + self.prefetch
        return window - self._said_window >= max(1, self.prefetch // 4)

    @property
    def may_have_come(self) -> bool:
        """Whether none is ready, and the server was told that one may come."""
        return not self.ready and self._said_window > self._last_seq

    def want(self) -> None:
        """The trainer waits for a batch now, whatever ``prefetch`` says."""
        self._wanting = True

    def ask_what_is_left(self) -> None:
        """Have the server tell at once whether any batch is left, by its answer to a heartbeat."""
        if self._open and not self.ready:
            self.hurry()

    def commit(self, token: int) -> None:
        """The trainer is done with a batch."""
        if token in self._held:
            self._held.discard(token)
            self._unanswered[token] = None
            self._commits.append(token)

    def save(self, token: int, columns: list[Any], block: Any, keys: _Keys = tuple) -> bool:
        """The trainer is done with a batch of segments, and these are its states.

        Without a block they stay with the trainer.  ``keys`` makes those of its first segments, for
        errors.  False when the batch is not held any more.
        """
        if token not in self._held:
            return False
        self._held.discard(token)
        self._named[token] = self._named[token][0], keys
        self.uploads.save(token, columns, block)
        return True

    def give_back(self, token: int) -> None:
        """The trainer will not use a batch."""
        if token in self._held:
            self._held.discard(token)
            self._named.pop(token, None)
            self._places.pop(token, None)
            self._returned.append(token)

    def failed(self) -> HeadraceError:
        """The failure, to be raised: a copy, for a traceback would keep all that it names alive."""
        assert self.failure is not None
        return type(self.failure)(*self.failure.args)

    @property
    def settled(self) -> bool:
        """Whether every commit and every save was answered."""
        return not self._unanswered and not self._commits and self.uploads.settled

    @property
    def unanswered(self) -> int:
        """Commits and saves that the server has not answered."""
        return len(self._unanswered) + len(self.uploads)

    @property
    def ended(self) -> bool:
        """Whether the feed has ended for this trainer: its own commits were answered too."""
        return self.finished and self.settled

    def over(self, holds: bool) -> bool:
        """Whether nothing more comes of this owner to a trainer that ``holds`` a batch, or none.

        One that commits explicitly and holds all that it can get would wait for itself, or for
        another that does.
        """
        waits_for_itself = self.explicit and self.exhausted and holds
        return self.ended or (waits_for_itself and self._open and not self.ready)

    @property
    def connected(self) -> bool:
        return self._open

    @property
    def last_seq(self) -> int:
        """The number of the last delivery that came."""
        return self._last_seq

    def held(self) -> int:
        return len(self._held)

    @property
    def idle(self) -> bool:
        """Whether its owner gives no batch before trainers have saved or committed some."""
        return self._idle_at == self._last_seq

    def holds(self, token: int) -> bool:
        """Whether a batch of this session is ready, or in the trainer's hands."""
        return token in self._held

    # The server

    def receive(self, message: Any, frames: list[Any], now: float) -> None:
        """A message, with the frames that came after its header."""
        self.heard_at = now
        known = None if self.welcome is None else self.welcome.session
        if isinstance(message, Deliver) and message.session == known:
            self._on_outcome(message)
            self._on_deliver(message, frames)
        elif isinstance(message, Welcome):
            self._on_welcome(message)
        elif isinstance(message, Refused):
            self.failure = self.failure or from_code(message.code, message.text)
        elif isinstance(message, Pulse):
            self.waiting, self.exhausted = message.waiting, message.exhausted
        elif message.session != known:
            return  # of an earlier session
        elif isinstance(message, Outcome):
            self._on_outcome(message)
        elif isinstance(message, Ended):
            self._on_ended(message)
        elif isinstance(message, Idle):
            self._idle_at = message.seq
        elif isinstance(message, Full):
            self.following = message.number, message.partition
        elif isinstance(message, Retired):
            self.retired.extend(message.segments)
        elif isinstance(message, Unknown):
            self.greet()
        elif isinstance(message, Passed):
            self._last_seq = max(self._last_seq, message.seq)
            self._wanting = False  # another owner may be asked …
            self._said_window = self._last_seq  # … and if this one is, it is told so
            self.passed.add(message.partition)
        else:
            self.requests.receive(message)

    def continues(self, welcome: Welcome) -> bool:
        """Whether this is the session that is known here.

        The server may have resumed one whose Welcome never came: for us that is a new one.
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
        if anew:
            # Another session counts anew.  Batches that wait untaken go back, whether the server
            # took them for lost or believes that the new session holds them.
            for received in self.ready:
                token = received.delivery.token
                self._held.discard(token)
                self._named.pop(token, None)
                self._returned.append(token)
                if received.delivery.segment:
                    self.mapped.release(token)
            self.ready.clear()
            self.exhausted, self._idle_at, self.following = False, -1, (0, 0)
            self.passed.clear()
            self._last_seq = 0
            self.mapped.used = False
            self.openings += 1
        self._said_window = 0
        self.welcome = welcome
        told = welcome.properties if isinstance(welcome.properties, dict) else {}
        recovers = told.get("durable") is True or told.get("recovers") is True
        self._known_by_number = recovers and told.get("shape") != "sequences"
        self._open, self.stopped = True, False
        self._commits = list(self._unanswered)
        self.uploads.reopened()
        self.requests.reopened(welcome.session, anew)

    def _on_deliver(self, message: Deliver, frames: list[Any]) -> None:
        for delivery in message.items:
            if not delivery.segment and not 0 < delivery.frame <= len(frames):
                raise ProtocolError(
                    f"batch {delivery.partition}/{delivery.number} is said to be in frame "
                    f"{delivery.frame}; {len(frames)} frames came"
                )
        for delivery in message.items:
            if delivery.seq <= self._last_seq:  # sent twice
                continue
            inline = not delivery.segment
            self._last_seq = delivery.seq
            self.exhausted = False
            self._held.add(delivery.token)
            self._named[delivery.token] = delivery, tuple
            if not inline:
                self.mapped.add(delivery.token)
            source = frames[delivery.frame - 1] if inline else self.memory
            self.ready.append(Received(delivery, source, self.openings, self.mapped))

    def _on_outcome(self, message: Outcome | Deliver) -> None:
        for token in message.committed:
            place = self._places.get(token)
            if place is not None:
                last = self._committed.get(place.partition, 0)
                self._committed[place.partition] = max(token, last)
            self._answered(token)
        for token in message.stale:
            name = self._name_of(token)
            if self._answered(token):
                self.refused.append(StaleLease(f"{name} {_STALE}"))
        if not isinstance(message.faults, (list, tuple)):
            raise ProtocolError(f"faults of commits are {message.faults!r:.80}, not a list")
        for fault in message.faults:
            if not isinstance(fault, list) or [type(v) for v in fault[:3]] != [int, str, str]:
                raise ProtocolError(
                    f"a fault of a commit is {fault!r:.80}, not [token, code, text]"
                )
            name = self._name_of(fault[0])
            if self._answered(fault[0]):
                self.refused.append(from_code(fault[1], f"{name}: {fault[2]}"))

    def _name_of(self, token: int) -> str:
        """A batch that is held or not answered, as errors name it."""
        known = self._named.get(token)
        if known is None:
            return f"batch of token {token}"
        keys: Sequence[bytes] = ()
        with contextlib.suppress(ProtocolError):  # the server sent what are no strings
            keys = known[1]()
        return named(known[0], keys)

    def _answered(self, token: int) -> bool:
        """Whether the answer to a commit or a save was still owed."""
        self._places.pop(token, None)
        self._named.pop(token, None)
        if token in self._unanswered:
            del self._unanswered[token]
            return True
        return self.uploads.answered(token)

    def _on_ended(self, message: Ended) -> None:
        if not message.code:
            self.finished = True
        elif not self.ended:  # a server that is stopped then takes nothing from this trainer
            if message.returns:
                self.stopped = True
                self.lose()
                return
            self.failure = self.failure or from_code(message.code, message.text)
        self._said_at = -1e9  # the server waits for the heartbeat that says that this was heard

    def _property(self, name: str, unknown: int) -> int:
        """A number that the server told of the feed: its ``generation``, its own ``epoch``."""
        if self.welcome is None or not isinstance(self.welcome.properties, dict):
            return unknown
        value = self.welcome.properties.get(name, unknown)
        return value if isinstance(value, int) else unknown

    # What is to be said

    def outgoing(self, now: float) -> list[Any]:
        """Messages that are due."""
        if not self._open:
            if self.failure is not None or now - self._said_at < _HELLO_S:
                return []
            self._said_at = now
            oldest, newest = limits.PROTOCOL
            held = tuple(sorted(self._held))
            known = "" if self.welcome is None else self.welcome.session_file
            return [
                Hello(
                    *(oldest, newest, __version__, self.feed, self.nonce),
                    *(self.rank, self.world_size, self._last_seq),
                    *(held, known),
                    self._told_places(),
                    process=self.process,
                    resume=self.resume,
                    generation=self._property("generation", self.generation),
                    host=self.host,
                    epoch=self._property("epoch", 0),
                    committed=self._told_commits(),
                    restart=self.restart,
                    owner=self.owner,
                    run=self.run,
                )
            ]
        assert self.welcome is not None
        number = self.welcome.session
        messages: list[Any] = []
        # Whatever was sent before the last delivery that came was taken, waits here, or is lost.
        # The batch that is waited for counts as taken: else its taking would be one message more.
        window = self._last_seq - len(self.ready) + self.prefetch + self._wanting
        mapped = self.mapped
        released = mapped.to_say() if mapped.released else ()
        while mapped.released:
            messages.append(Step(number, 0, (), released))
            released = mapped.to_say()
        saves = self.uploads.saves_to_say() if self.uploads.due else []
        if self._commits or self._returned or released or saves or window > self._said_window:
            step = Step(
                *(number, window, tuple(self._commits), released, tuple(self._returned)),
                *saves[:1],
            )
            messages.append(step)
            self._commits, self._returned, self._said_window = [], [], window
        if len(saves) > 1:
            messages.extend(Step(number, 0, saves=some) for some in saves[1:])
        if self.requests.due:
            messages.extend(self.requests.to_say(number))
        if now - self._said_at >= self.welcome.heartbeat_s:
            self._said_at = now
            messages.append(self._renew(number, window, now))
        return messages

    def frames_of(self, message: Any) -> list[Any]:
        """What goes after the header of a message that is being said."""
        if isinstance(message, Step):
            return self.uploads.frames_of(message) if message.saves else []
        return self.requests.frames_of(message)

    def _told_commits(self) -> tuple[int, ...]:
        """The last commit in each partition: the latest of them, as many as are enough to know."""
        latest = sorted(self._committed.items(), key=lambda known: -known[1])[:_MOST_COMMITS]
        return tuple(number for known in latest for number in known)

    def _told_places(self) -> tuple[Handed, ...]:
        """As many as a header holds."""
        told, room = [], _PLACES_BYTES
        for place in self._places.values():
            room -= 64 + len(place.segments)
            if room >= 0 and len(place.segments) <= limits.MAX_HEADER_STRING:
                told.append(place)
        return tuple(told)

    def _renew(self, number: int, window: int, now: float) -> Renew:
        """The heartbeat.

        It says all that is mapped, so that the server notices what got lost with a connection:
        references that never came, and the word that memory was released.
        """
        mapped = self.mapped.listed()
        return Renew(
            *(number, window, self._last_seq, tuple(sorted(self._held))),
            *((mapped, self._last_seq) if mapped is not None else ((), 0)),
            *self.meter.totals(now),
            ended=self.finished or self.failure is not None,
        )

    def silence(self, now: float) -> float:
        """Seconds since the server was heard of, 0 while that is no reason to worry."""
        heartbeat_s = self.welcome.heartbeat_s if self.welcome is not None else _HELLO_S
        silent = now - self.heard_at
        return silent if silent > _SILENT * heartbeat_s else 0.0

    def lose(self) -> None:
        """The server was silent for too long: greet it again."""
        self._open = False

    def greet(self) -> None:
        """The way to the server has ended: greet it again, at once."""
        self._open = False
        self.hurry()

    def hurry(self) -> None:
        """Say the next heartbeat at once: this process could not say it in time."""
        self._said_at = -1e9

    def due_in(self, now: float) -> float:
        """Seconds until there is something to say without a new event."""
        if not self._open:
            return max(0.0, self._said_at + _HELLO_S - now)
        assert self.welcome is not None
        return max(0.0, self._said_at + self.welcome.heartbeat_s - now)

    def goodbye(self) -> Bye | None:
        """The last message, when there is anybody to say it to."""
        return Bye(self.welcome.session) if self._open and self.welcome is not None else None


def named(batch: Delivery | SegmentBatch, keys: Sequence[bytes] = ()) -> str:
    """A batch as errors name it, with the first keys of its segments where it has any."""
    rows = f"{batch.rows} row{'' if batch.rows == 1 else 's'}"
    listed = [key.decode("utf-8", "backslashreplace")[:_KEY_LENGTH] for key in keys]
    if listed and batch.rows > len(listed):
        listed.append("…")
    which = f": {', '.join(listed)}" if listed else ""
    return f"batch {batch.partition}/{batch.number} (token {batch.token}, {rows}{which})"
