"""Batches between their delivery and the answer to their commit: part of the session machine.

    delivered ──► ready ──► in hand ──► committed, saved ──► answered: forgotten, or refused
                    └──────────┴──────► given back

Each is known by its token.  An error names a batch that is not answered by what was delivered, and
by its first keys; a server that is started anew is told of those in hand by ``Handed``.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_proto import limits
from headrace_proto.errors import HeadraceError, ProtocolError, StaleLease, from_code
from headrace_proto.messages import Deliver, Delivery, Handed, Outcome, Step, Take
from headrace_proto.placement import Share, owner_of
from headrace_proto.record import record

from .mapped import MappedBatches
from .uploads import Uploads

if TYPE_CHECKING:
    from .segments import SegmentBatch

#: A Hello tells of batches in hand in so many bytes at most, since its header is bounded.
_PLACES_BYTES = 48 * 1024
#: Acknowledged commits in it, one for each partition.
_MOST_COMMITS = 100
#: Returned batches that are returned again after a reconnection: more than may come ahead.
_MOST_RETURNED = 64
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
class Leases:
    """The batches of one session, and what is to be said of them."""

    ready: deque[Received] = field(init=False, default_factory=deque)  # delivered, not taken
    refused: deque[HeadraceError] = field(init=False, default_factory=deque)  # raised once each
    mapped: MappedBatches = field(init=False, default_factory=MappedBatches)
    uploads: Uploads = field(init=False, default_factory=Uploads)
    memory: Any = field(init=False, default=None)  # shared with the server in this session
    openings: int = field(init=False, default=0)  # sessions opened, continuations not counted
    last_seq: int = field(init=False, default=0)  # number of the last delivery that came

    exhausted: bool = field(init=False, default=False)  # none is left but in trainers' hands
    sized: tuple[int, int] = field(init=False, default=(0, 0))  # number and rows of the take …
    _take_due: bool = field(init=False, default=False)  # … which its owner is to be asked for …
    _said_take: int = field(init=False, default=0)  # … and which one it was

    _said_window: int = field(init=False, default=0)
    _held: set[int] = field(init=False, default_factory=set)  # ready, or in the trainer's hands
    _unanswered: dict[int, None] = field(init=False, default_factory=dict)  # commits
    _commits: list[int] = field(init=False, default_factory=list)  # not yet said
    _returned: list[int] = field(init=False, default_factory=list)
    #: The last that were said, which may be lost with the connection.
    _said_returned: deque[int] = field(
        init=False, default_factory=lambda: deque(maxlen=_MOST_RETURNED)
    )
    #: By partition the highest token whose commit was acknowledged.
    _committed: dict[int, int] = field(init=False, default_factory=dict)
    #: Which segments a batch in hand or not answered has, for a server that is started anew.
    _places: dict[int, bytes] = field(init=False, default_factory=dict)
    #: Batches that were taken before the last greeting and placed after it.
    missed: set[int] = field(init=False, default_factory=set)
    #: By token the delivery of a batch, and a function that makes its first keys, for errors.
    _named: dict[int, tuple[Delivery, _Keys]] = field(init=False, default_factory=dict)

    # The trainer

    def place(self, token: int, segments: bytes = b"") -> bool:
        """A batch goes to the trainer: how a server that is started anew would know it.

        False where such a server was greeted meanwhile: it gives the rows out again.
        """
        if token in self.missed:
            return False
        if token in self._named:  # else it was refused meanwhile
            self._places[token] = segments
        return True

    def untake(self, received: Received) -> None:
        """A batch that was taken was not used: it is the first of those that are ready again."""
        token = received.delivery.token
        if token in self._held:
            self._places.pop(token, None)
            self.ready.appendleft(received)

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

    @property
    def settled(self) -> bool:
        """Whether every commit and every save was answered."""
        return not self._unanswered and not self._commits and self.uploads.settled

    @property
    def unanswered(self) -> int:
        """Commits and saves that the server has not answered."""
        return len(self._unanswered) + len(self.uploads)

    def held(self) -> int:
        return len(self._held)

    def holds(self, token: int) -> bool:
        """Whether a batch of this session is ready, or in the trainer's hands."""
        return token in self._held

    def _divide(self, sessions: Sequence[Leases], share: Share) -> None:
        """Give what is in this trainer's hands, or not answered, to sessions by its partition.

        They are with all owners of the server that has this share.
        """
        for received in self.ready:
            self._held.discard(received.delivery.token)
        for token, (delivery, keys) in self._named.items():
            to = sessions[owner_of(delivery.partition, len(sessions), share)]
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
            sessions[owner_of(partition, len(sessions), share)]._committed[partition] = token

    # The server

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
            self._held.add(token)
            self._named[token] = delivery, tuple
            if not inline:
                self.mapped.add(token)
            source = frames[delivery.frame - 1] if inline else self.memory
            self.ready.append(Received(delivery, source, self.openings, self.mapped))
            if delivery.meta or self.sized[0]:
                self._check_take(delivery)

    def _check_take(self, delivery: Delivery) -> None:
        """Give a delivery back that is of another take, or of none while there is one."""
        if delivery.meta.get("take", 0) != self.sized[0]:
            self._let_go(self.ready.pop())
        elif self.sized[0]:
            self._take_due, self._said_take, self._said_window = False, 0, self.last_seq

    def _let_ready_go(self) -> None:
        """Give back what is not taken: the server took it for lost, or gives it to nobody else."""
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

    # Outgoing messages

    def _take_to_say(self, session: int) -> list[Take]:
        """The request for a batch of so many rows, or its withdrawal, if that is to be said."""
        request, rows = self.sized if self._take_due else (0, 0)
        before, self._said_take = self._said_take, request
        if request == before:
            return []
        if request:
            self._said_window = self.last_seq  # the server forgets the window
        return [Take(session, request or before, rows, self.last_seq)]

    def _steps(self, session: int, window: int) -> list[Step]:
        """Messages with all that the server was not told of batches."""
        steps: list[Step] = []
        released = self.mapped.to_say()
        while self.mapped.released:
            steps.append(Step(session, 0, (), released))
            released = self.mapped.to_say()
        saves = self.uploads.saves_to_say()
        if self._commits or self._returned or released or saves or window > self._said_window:
            commits, returned = tuple(self._commits), tuple(self._returned)
            if returned:
                self._said_returned.extend(returned)
            steps.append(Step(session, window, commits, released, returned, *saves[:1]))
            self._commits, self._returned, self._said_window = [], [], window
        if len(saves) > 1:
            steps.extend(Step(session, 0, saves=some) for some in saves[1:])
        return steps

    def _say_again(self, anew: bool) -> None:
        """Say all again that a lost connection may have lost, in the same session or in another."""
        self._commits = list(self._unanswered)
        self.uploads.reopened()
        if anew:
            self._said_returned.clear()
        self._returned += [token for token in self._said_returned if token not in self._held]

    def _commits_to_report(self) -> tuple[int, ...]:
        """The last commit in each partition: the latest of them, as many as are enough to know."""
        latest = sorted(self._committed.items(), key=lambda known: -known[1])[:_MOST_COMMITS]
        return tuple(number for known in latest for number in known)

    def _places_to_report(self) -> tuple[Handed, ...]:
        """The batches in hand, as many as a header holds."""
        ready = {received.delivery.token for received in self.ready}
        self.missed = self._held - ready - self._places.keys()
        places, room = [], _PLACES_BYTES
        for token, segments in self._places.items():
            room -= 64 + len(segments)
            if room >= 0 and len(segments) <= limits.MAX_HEADER_STRING:
                d = self._named[token][0]
                places.append(Handed(token, d.partition, d.number, d.rows, segments))
        return tuple(places)


def named(batch: Delivery | SegmentBatch, keys: Sequence[bytes] = ()) -> str:
    """A batch as errors name it, with the first keys of its segments where it has any."""
    rows = f"{batch.rows} row{'' if batch.rows == 1 else 's'}"
    listed = [key.decode("utf-8", "backslashreplace")[:_KEY_LENGTH] for key in keys if key]
    if listed and batch.rows > len(listed):
        listed.append("…")
    which = f": {', '.join(listed)}" if listed else ""
    return f"batch {batch.partition}/{batch.number} (token {batch.token}, {rows}{which})"
