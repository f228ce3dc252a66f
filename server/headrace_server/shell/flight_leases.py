"""What the files of leases say: whom every batch went to, at which step, and with what end.

Several owners write at the same time: their hand-outs are put in the order of their times.

SENT token, partition, number, rows, session, step
COMMITTED token, …      STALE token, …      REFUSED token, code, text      ENDED token, why
JOINED session, host, rank, world, process
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .flight import COMMITTED, ENDED, JOINED, REFUSED, SENT, STALE
from .flight_files import FORMAT, SUFFIX, frames
from .flight_rows import BatchId

__all__ = ["Event", "Lease", "Leases", "Trainer"]


@dataclass(frozen=True, slots=True)
class Trainer:
    """One session of a trainer.  ``rank`` is -1 in shared mode."""

    life: int
    session: int
    host: str = ""
    rank: int = -1
    world: int = 0

    def __str__(self) -> str:
        text = f"{self.life}/{self.session}"
        details = [self.host] if self.host else []
        if self.rank >= 0:
            details.append(f"rank {self.rank} of {self.world}")
        return f"{text} ({', '.join(details)})" if details else text


@dataclass(frozen=True, slots=True)
class Event:
    """What became of a lease, and when."""

    time: float
    fate: str
    text: str = ""


@dataclass(slots=True)
class Lease:
    """One hand-out of one batch."""

    token: int
    batch: BatchId
    rows: int
    trainer: Trainer
    step: int  # number of the delivery in its session, from 1
    sent: float
    events: list[Event] = field(default_factory=list)

    @property
    def fate(self) -> str:
        """What became of it: a commit counts whatever came before, else the last word does."""
        fates = [event.fate for event in self.events]
        if "committed" in fates:
            return "committed"
        return fates[-1] if fates else "out"


class Leases:
    """All that is recorded, in the order of the hand-out."""

    def __init__(self, directory: Path) -> None:
        self._found: dict[int, Lease] = {}
        self._lives: dict[int, list[Lease]] = {}
        self._trainers: dict[tuple[int, int], Trainer] = {}
        for path in sorted(directory.glob(f"leases-*{SUFFIX}")):
            content = frames(path)
            _, header = next(content, (0, None))
            if header is None or header[0] != FORMAT:
                continue
            life = header[3]
            for about in header[4]:
                self._join(life, *about)
            for _, (when, entries) in content:
                for entry in entries:
                    self._add(life, when, *entry)
        self._in_order = list(heapq.merge(*self._lives.values(), key=_sent))

    def _join(
        self, life: int, session: int, host: str, rank: int, world: int, process: bytes
    ) -> None:
        self._trainers[life, session] = Trainer(life, session, host, rank, world)

    def _add(self, life: int, when: float, kind: int, *about: Any) -> None:
        if kind == SENT:
            token, partition, number, rows, session, step = about
            trainer = self._trainers.get((life, session), Trainer(life, session))
            batch = BatchId(life, partition, number)
            lease = self._found[token] = Lease(token, batch, rows, trainer, step, when)
            self._lives.setdefault(life, []).append(lease)
        elif kind == JOINED:
            self._join(life, *about)
        elif kind in (COMMITTED, STALE):
            fate = "committed" if kind == COMMITTED else "stale"
            for token in about:
                self._happened(token, Event(when, fate))
        elif kind == REFUSED:
            token, code, text = about
            self._happened(token, Event(when, "refused", f"{code}: {text}"))
        elif kind == ENDED:
            token, why = about
            self._happened(token, Event(when, why))

    def _happened(self, token: int, event: Event) -> None:
        lease = self._found.get(token)
        if lease is not None and (not lease.events or lease.events[-1].fate != event.fate):
            lease.events.append(event)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._in_order)

    def __len__(self) -> int:
        return len(self._found)


def _sent(lease: Lease) -> float:
    return lease.sent
