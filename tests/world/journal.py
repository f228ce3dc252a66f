"""A model of the journals: what is appended gathers, and a flush makes it outlive the process.

    append(entry) ─► gathered ── flush() ──► Stored, by partition ─► the next life
                        └── kill: a prefix of it may have been written, the rest is lost

Each partition has a journal, and so have the joins and leaves of each owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace_server.shaping.plain import Stored as Plain


class Folded(list):
    """Records of a machine, and what they are folded to."""

    stored = Plain


@dataclass
class Stored:
    """The state of one partition that its next process finds."""

    run: int = 0
    tokens: set[int] = field(default_factory=set)  # of commits
    machine: Any = None  # the fold of its machine's records


class Journal:
    """The journals of a feed."""

    def __init__(self) -> None:
        self.partitions: dict[int, Stored] = {}
        self.known: dict[int, dict[bytes, tuple]] = {}  # by owner: sessions, with who they are
        self.births: dict[tuple, int] = {}  # by run and rank: that of its last process
        self.runs: dict[int, None] = {}  # of ranks, in the order in which they began

    def of(self, partition: int) -> Stored:
        return self.partitions.setdefault(partition, Stored())

    def write(self, owner: int, partition: int, record: tuple) -> None:
        """Store one record: its kind, then its fields."""
        kind, *rest = record
        if kind == "join":
            session, run, rank, birth = rest
            self.known.setdefault(owner, {})[session] = run, rank, birth
            if rank >= 0:
                self.births[run, rank] = max(birth, self.births.get((run, rank), 0))
                self.runs[run] = None
        elif kind == "leave":
            self.known.get(owner, {}).pop(rest[0], None)
        else:
            stored, records = self.of(partition), rest[-1]
            stored.machine = stored.machine or records.stored()
            for of in records:
                stored.machine.fold(*of)
            stored.run = stored.machine.run
            stored.tokens.update(rest[3:4] if kind == "commit" else ())

    def knows(self, token: int) -> bool:
        return any(token in one.tokens for one in self.partitions.values())

    def everyone(self) -> dict[bytes, tuple]:
        """Return all sessions that were at work."""
        return {session: who for of in self.known.values() for session, who in of.items()}
