"""Reads the files of leases: the trainer, the step and the end of every batch.

    file of an owner's life ─┐                  ┌─ trainer: its sessions with all owners ─► steps
    file of another         ─┼─► hand-outs ─────┤
    …                       ─┘                  └─ their order: by time, but each trainer's as it
                                                   took them

SENT token, partition, number, rows, session, seq
COMMITTED token, …      STALE token, …      REFUSED token, code, text      ENDED token, why
HELD token              JOINED session, host, rank, world, process, nonce

A trainer has a session with each owner and each life of it, all of one nonce.  Where servers share
a feed it has sessions with those of each, and lives are numbered so that they differ.  It takes
batches of one owner as they come, and those of several in the order of the feed: by number, or, of
segments, which it asks of one owner after the other, by time.

A life of an owner that dies records no end of what is out then.  The next one hands nothing out
before trainers that still live have reported what they have (HELD): all else is lost, or, of
segments, void, or its trainer has left.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from .files import content, recorded_in
from .recorder import LeasesEntry
from .rows import BatchId

#: Ends of batches that the trainer has not used.
_UNUSED = ("lost", "returned")
_FATES = {LeasesEntry.COMMITTED: "committed", LeasesEntry.STALE: "stale"}
#: A session by the life of its owner and its number.
_Session = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RecordedTrainer:
    """One trainer, by its first session.  ``rank`` is -1 in shared mode."""

    life: int
    session: int
    host: str = ""
    rank: int = -1
    world: int = 0
    others: tuple[_Session, ...] = ()  # its sessions with other owners, and with later lives

    @property
    def every(self) -> tuple[_Session, ...]:
        """All its sessions."""
        return ((self.life, self.session), *self.others)

    def __str__(self) -> str:
        text = f"{self.life}/{self.session}"
        details = [self.host] if self.host else []
        if self.rank >= 0:
            details.append(f"rank {self.rank} of {self.world}")
        return f"{text} ({', '.join(details)})" if details else text


@dataclass(frozen=True, slots=True)
class Event:
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
    """All that is recorded, in the order of the hand-out."""

    def __init__(self, *directories: Path) -> None:
        """``directories``: of one server, or of several with shares of the feed."""
        self._found: dict[int, HandOut] = {}
        self._trainers: dict[_Session, RecordedTrainer] = {}
        self._of_nonce: dict[bytes, dict[_Session, None]] = defaultdict(dict)
        self._owners: dict[int, tuple[int, int]] = {}  # by life: which directory, which owner
        self._held: dict[int, int] = {}  # by token: the last life to which its trainer reported it
        self._by_number = True
        for at, path in recorded_in(directories, "leases"):
            found = content(path)
            for _, (_, _, _, life, trainers, *whose) in islice(found, 1):
                life = life * len(directories) + at  # as in Recorded
                owner, self._by_number = whose or (0, True)
                self._owners[life] = at, owner
                for trainer in trainers:
                    self._join(life, *trainer)
            for _, (when, entries) in found:
                for entry in entries:
                    self._add(life, when, *entry)
        self._join_sessions()
        self._end_those_of_the_dead()
        self._in_order = self._ordered()

    def _join(
        self,
        life: int,
        session: int,
        host: str,
        rank: int,
        world: int,
        process: bytes,
        nonce: bytes = b"",
    ) -> None:
        self._trainers[life, session] = RecordedTrainer(life, session, host, rank, world)
        if nonce:
            self._of_nonce[nonce][life, session] = None

    def _add(self, life: int, when: float, kind: int, *fields: Any) -> None:
        if kind == LeasesEntry.SENT:
            token, partition, number, rows, session, seq = fields
            trainer = self._trainers.get((life, session), RecordedTrainer(life, session))
            batch = BatchId(life, partition, number)
            self._found[token] = HandOut(token, batch, rows, trainer, seq, when)
        elif kind == LeasesEntry.JOINED:
            self._join(life, *fields)
        elif kind == LeasesEntry.HELD:
            self._held[fields[0]] = life
        elif kind in _FATES:
            for token in fields:
                self._happened(token, Event(when, _FATES[kind]))
        elif kind == LeasesEntry.REFUSED:
            self._happened(fields[0], Event(when, "refused", ": ".join(fields[1:])))
        elif kind == LeasesEntry.ENDED:
            self._happened(fields[0], Event(when, fields[1]))

    def _happened(self, token: int, event: Event) -> None:
        lease = self._found.get(token)
        if lease is not None and (not lease.events or lease.events[-1].fate != event.fate):
            lease.events.append(event)

    def _join_sessions(self) -> None:
        """Sessions of one nonce are one trainer's."""
        for sessions in self._of_nonce.values():
            first, *others = sorted(sessions)
            known = self._trainers[first]
            trainer = RecordedTrainer(*first, known.host, known.rank, known.world, tuple(others))
            self._trainers.update(dict.fromkeys(sessions, trainer))
        for lease in self._found.values():
            named = lease.trainer.life, lease.trainer.session
            lease.trainer = self._trainers.get(named, lease.trainer)

    def _end_those_of_the_dead(self) -> None:
        """End leases that were out when their owner died, unless a trainer has reported them."""
        begun: dict[int, dict[int, float]] = defaultdict(dict)  # by partition: lives, since when
        for lease in self._found.values():
            begun[lease.batch.partition].setdefault(lease.batch.life, lease.sent)
        came = {(life, trainer) for (life, _), trainer in self._trainers.items()}
        for lease in self._found.values():
            lives = begun[lease.batch.partition]
            life = self._held.get(lease.token, lease.batch.life)
            following = min((other for other in lives if other > life), default=None)
            if following is not None and not lease.events:
                fate = "lost" if self._by_number else "voided"
                fate = fate if (following, lease.trainer) in came else "left"
                lease.events.append(Event(lives[following], fate))

    def _ordered(self) -> list[HandOut]:
        """Return all in the order of their times, but each trainer's in the order of its steps."""
        of_trainers: dict[RecordedTrainer, dict[tuple[int, int], list[HandOut]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for _, lease in sorted(self._found.items()):
            of_trainers[lease.trainer][self._owners[lease.batch.life]].append(lease)
        lines = []
        for trainer, of_owners in of_trainers.items():
            places = self._places(trainer, of_owners.values())
            line, at, step = [], 0.0, 1
            for lease in heapq.merge(*of_owners.values(), key=lambda lease: places[lease.token]):
                lease.step = step
                step += lease.fate not in _UNUSED
                at = max(at, lease.sent)
                line.append((at, lease))
            lines.append(line)
        return [lease for _, lease in heapq.merge(*lines, key=lambda timed: timed[0])]

    def _places(
        self, trainer: RecordedTrainer, of_owners: Iterable[list[HandOut]]
    ) -> dict[int, tuple[float, int]]:
        """Return, by token, the sort key by which a trainer chooses between owners."""
        rounds: Counter[int] = Counter()  # by partition: those in which a rank had a batch
        places: dict[int, tuple[float, int]] = {}
        for lease in chain.from_iterable(of_owners):
            number, partition = lease.batch.number, lease.batch.partition
            if not self._by_number:
                places[lease.token] = lease.sent, 0
            elif trainer.rank >= 0:
                places[lease.token] = rounds[partition], partition
                rounds[partition] += 1
            else:
                places[lease.token] = number, partition
        return places

    def __iter__(self) -> Iterator[HandOut]:
        return iter(self._in_order)

    def __len__(self) -> int:
        return len(self._found)
