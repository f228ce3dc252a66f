"""Batches between their delivery and the answer to their commit: part of the session machine.

    delivered ──► ready ──► in hand ──► committed, saved ──► answered: forgotten, or refused
                    └──────────┴──────► given back

Each is known by its token.  An error names an unanswered batch by its delivery and by its first
keys; ``Handed`` describes batches in hand to a restarted server.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_proto import limits
from headrace_proto.errors import HeadraceError, ProtocolError, StaleLease, from_code
from headrace_proto.messages import Deliver, Delivery, Handed, Outcome, Step
from headrace_proto.placement import Share, owner_of
from headrace_proto.record import record

from .mapped_batches import MappedBatches
from .uploads import Uploads

if TYPE_CHECKING:
    from .segments import SegmentBatch

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
class Leases:
    """The batches of one session, and the messages about them."""

    ready: deque[Received] = field(init=False, default_factory=deque)  # delivered, not taken
    refused: deque[HeadraceError] = field(init=False, default_factory=deque)  # raised once each
    mapped: MappedBatches = field(init=False, default_factory=MappedBatches)
    uploads: Uploads = field(init=False, default_factory=Uploads)
    memory: Any = field(init=False, default=None)  # shared with the server in this session …
    buffers: Any = field(init=False, default=None)  # … for states that go to the server
    openings: int = field(init=False, default=0)  # sessions opened, continuations not counted
    last_seq: int = field(init=False, default=0)  # number of the last delivery that came

    # all remaining batches are in trainers' hands
    exhausted: bool = field(init=False, default=False)

    _said_window: int = field(init=False, default=0)  # since the last greeting
    _held: set[int] = field(init=False, default_factory=set)  # ready, or in the trainer's hands
    _unanswered: dict[int, None] = field(init=False, default_factory=dict)  # commits
    _commits: list[int] = field(init=False, default_factory=list)  # not yet sent
    _returned: list[int] = field(init=False, default_factory=list)
    #: The last ones sent, which may be lost with the connection.
    _said_returned: deque[int] = field(
        init=False, default_factory=lambda: deque(maxlen=_MOST_RETURNED)
    )
    #: Listed as held in a greeting, which may be answered late, and not returned long ago.
    _greeted: set[int] = field(init=False, default_factory=set)
    #: The highest acknowledged token, by partition.
    _committed: dict[int, int] = field(init=False, default_factory=dict)
    #: Segments of each unanswered batch, to describe it to a restarted server.
    _places: dict[int, bytes] = field(init=False, default_factory=dict)
    #: Batches that were taken before the last greeting and placed after it.
    missed: set[int] = field(init=False, default_factory=set)
    #: For errors, by token: the delivery of a batch, and a function that makes its first keys.
    _named: dict[int, tuple[Delivery, _Keys]] = field(init=False, default_factory=dict)

    # The trainer

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
        self.uploads.save(token, columns, block)
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
        return not self._unanswered and not self._commits and self.uploads.settled

    @property
    def unanswered(self) -> int:
        """Return the commits and saves that the server has not answered."""
        return len(self._unanswered) + len(self.uploads)

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

    def _divide(self, sessions: Sequence[Leases], share: Share) -> None:
        """Move batches in this trainer's hands, and unanswered commits, to sessions by partition.

        ``sessions`` are those with all owners of the server that has this share.
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
        if refused is not None and (token in self._unanswered or token in self.uploads):
            self.refused.append(refused)
        if token in self._unanswered:
            del self._unanswered[token]
        else:
            self.uploads.answered(token)
        self._places.pop(token, None)
        self._named.pop(token, None)

    # Outgoing messages

    def _steps(self, session: int, window: int) -> list[Step]:
        """Return messages with all commits, returns and requests that were not sent."""
        steps: list[Step] = []
        released = self.mapped.to_say()
        while self.mapped.released:
            steps.append(Step(session, 0, (), released))
            released = self.mapped.to_say()
        saves = self.uploads.saves_to_say(self.buffers)
        if self._commits or self._returned or released or saves or window > self._said_window:
            commits, returned = tuple(self._commits), tuple(self._returned)
            self._said_returned.extend(returned)
            steps.append(Step(session, window, commits, released, returned, *saves[:1]))
            self._commits, self._returned, self._said_window = [], [], window
        if len(saves) > 1:
            steps.extend(Step(session, 0, saves=some) for some in saves[1:])
        return steps

    def _say_again(self, anew: bool) -> None:
        """Resend all that a lost connection may have lost, in the same session or in another."""
        self._commits = list(self._unanswered)
        self.uploads.reopened()
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
