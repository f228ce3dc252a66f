"""Joins the hand-outs of all files: the trainer, the step and the end of every batch.

    file of an owner's life ─┐                  ┌─ trainer: its sessions with all owners ─► steps
    file of another         ─┼─► hand-outs ─────┤
    …                       ─┘                  └─ their order: by time, but each trainer's as it
                                                   took them

A trainer has a session with each owner and each life of it, all of one nonce.  Where servers share
a feed it has sessions with those of each, and lives are numbered so that they differ.  It takes
batches of one owner as they come, and those of several in the order of the feed: by number, or, of
segments, which it asks of one owner after the other, by time.

A life of an owner that dies records no end of what is out then.  The next one hands nothing out
before trainers that still live have reported what they have (``HELD``): all else is lost, or, of
segments, void, or its trainer has left.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .recorder import COMMITTED, HELD, JOINED, SENT
from .rows import BatchId

#: Ends of batches that the trainer has not used.
_UNUSED = ("lost", "returned")
#: A session by the life of its owner and its number.
_Session = tuple[int, int]


@dataclass(frozen=True, slots=True, order=True)
class RecordedTrainer:
    """One trainer, by all its sessions in order.  ``rank`` is -1 in shared mode."""

    sessions: tuple[_Session, ...]
    host: str = ""
    rank: int = -1
    world: int = 0

    def __str__(self) -> str:
        text = "{}/{}".format(*self.sessions[0])
        details = [self.host] if self.host else []
        if self.rank >= 0:
            details.append(f"rank {self.rank} of {self.world}")
        return f"{text} ({', '.join(details)})" if details else text


class Event(NamedTuple):
    """An event in the life of a lease, with its time."""

    time: float
    fate: str
    text: str = ""


@dataclass(slots=True)
class HandOut:
    """One hand-out of one batch."""

    token: int
    batch: BatchId
    rows: int
    trainer: RecordedTrainer
    step: int  # number of the batch among those that its trainer used, from 1
    sent: float
    events: list[Event] = field(default_factory=list)

    @property
    def fate(self) -> str:
        """Its end: a commit if there was one, else the last event."""
        fates = [event.fate for event in self.events]
        if "committed" in fates:
            return "committed"
        return fates[-1] if fates else "out"


class HandOuts:
    """All hand-outs that are recorded.  ``begin`` and ``add`` take files in their order."""

    def __init__(self) -> None:
        self._found: dict[int, HandOut] = {}  # by token
        self._nonces: dict[_Session, Any] = {}
        self._trainers: dict[Any, RecordedTrainer] = {}  # by nonce
        self._owners: dict[int, tuple[int, int]] = {}  # by life: which server, which owner
        self._held: dict[int, int] = {}  # by token: the last life to which its trainer reported it
        self._by_number = True

    def begin(
        self, life: int, server: int, owner: int, by_number: bool, sessions: Iterable[Any]
    ) -> None:
        """Begin a file."""
        self._owners[life] = server, owner
        self._by_number = by_number
        for session in sessions:
            self._join(life, *session)

    def add(self, life: int, when: float, entries: Iterable[Sequence[Any]]) -> None:
        """Add the entries of one round."""
        for kind, *fields in entries:
            if kind == SENT:
                token, partition, number, rows, session = fields
                trainer = RecordedTrainer(((life, session),))
                batch = BatchId(life, partition, number)
                self._found[token] = HandOut(token, batch, rows, trainer, 0, when)
            elif kind == JOINED:
                self._join(life, *fields)
            elif kind == HELD:
                self._held[fields[0]] = life
            else:
                text, *tokens = fields
                fate = "committed" if kind == COMMITTED else kind
                for lease in filter(None, map(self._found.get, tokens)):
                    if not lease.events or lease.events[-1].fate != fate:
                        lease.events.append(Event(when, fate, text))

    def _join(self, life: int, session: int, host: str, rank: int, world: int, nonce: Any) -> None:
        named = life, session
        nonce = self._nonces[named] = nonce or named
        known = self._trainers.get(nonce)
        sessions = {named, *(known.sessions if known else ())}
        self._trainers[nonce] = RecordedTrainer(tuple(sorted(sessions)), host, rank, world)

    def joined(self) -> list[HandOut]:
        """Return all in the order of their times, but each trainer's in the order of its steps."""
        for lease in self._found.values():
            nonce = self._nonces.get(lease.trainer.sessions[0])
            lease.trainer = self._trainers.get(nonce, lease.trainer)
        self._end_those_of_the_dead()
        of_trainers: dict[RecordedTrainer, list[HandOut]] = defaultdict(list)
        for _, lease in sorted(self._found.items()):
            of_trainers[lease.trainer].append(lease)
        lines = [self._line(trainer, leases) for trainer, leases in of_trainers.items()]
        return [lease for _, lease in heapq.merge(*lines, key=lambda timed: timed[0])]

    def _end_those_of_the_dead(self) -> None:
        """End leases that were out when their owner died, unless a trainer has reported them."""
        begun: dict[int, dict[int, float]] = defaultdict(dict)  # by partition: lives, since when
        for lease in self._found.values():
            begun[lease.batch.partition].setdefault(lease.batch.life, lease.sent)
        came = {(life, one) for one in self._trainers.values() for life, _ in one.sessions}
        for lease in self._found.values():
            lives = begun[lease.batch.partition]
            life = self._held.get(lease.token, lease.batch.life)
            following = min((other for other in lives if other > life), default=None)
            if following is not None and not lease.events:
                fate = "lost" if self._by_number else "voided"
                fate = fate if (following, lease.trainer) in came else "left"
                lease.events.append(Event(lives[following], fate))

    def _line(
        self, trainer: RecordedTrainer, leases: Iterable[HandOut]
    ) -> list[tuple[float, HandOut]]:
        """Number a trainer's steps; return its leases in their order, with times that ascend."""
        rounds: Counter[int] = Counter()  # by partition: those in which a rank had a batch
        of_owners: dict[tuple[int, int], list[tuple[Any, HandOut]]] = defaultdict(list)
        for lease in leases:
            partition = lease.batch.partition
            place: tuple[float, int] = lease.batch.number, partition
            if not self._by_number:
                place = lease.sent, 0
            elif trainer.rank >= 0:
                place = rounds[partition], partition
                rounds[partition] += 1
            of_owners[self._owners[lease.batch.life]].append((place, lease))
        line, at, step = [], 0.0, 1
        for _, lease in heapq.merge(*of_owners.values(), key=lambda placed: placed[0]):
            lease.step = step
            step += lease.fate not in _UNUSED
            at = max(at, lease.sent)
            line.append((at, lease))
        return line
