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
    """Records of a real machine, and what they are folded to."""

    stored = Plain


@dataclass
class Stored:
    """What outlives a process of one partition: a fold of its records."""

    run: int = 0
    world: int = 0
    cursor: Any = None
    base: set[int] = field(default_factory=set)  # numbers that were done when the run began
    done: dict[int, Any] = field(default_factory=dict)  # tokens by number, from the cursor on
    examples: dict[int, tuple] = field(default_factory=dict)  # segments done, token, state
    after: dict[int, tuple] = field(default_factory=dict)  # by rank: the turn after its last commit
    number: int = 0
    turn: tuple = (0, -1)
    members: set[int] = field(default_factory=set)  # ranks that have committed this round
    orders: list[tuple] = field(default_factory=list)
    tokens: set[int] = field(default_factory=set)  # of commits
    machine: Any = None  # what a real machine has stored

    def deal(self, run: int, world: int) -> None:
        self.run, self.world, self.turn = run, world, (0, -1)
        self.base, self.members, self.after = set(self.done), set(), {}

    def commit(self, number: int, slot: Any, turn: tuple, token: int, data: Any) -> None:
        self.tokens.add(token)
        self.number = max(self.number, number + 1)
        if turn > self.turn:
            self.turn, self.members = turn, set()
        if self.world and turn == self.turn:
            self.members.add(slot)
        if data is None:
            self.done[number] = token
            self.after[slot] = turn[0], turn[1] + 1
        for example, segment, state in data or ():
            self.examples[example] = segment + 1, token, state

    def move(self, cursor: Any) -> None:
        self.cursor = cursor
        self.done = {n: token for n, token in self.done.items() if n >= cursor.number}
        self.base = {n for n in self.base if n >= cursor.number}

    def order(self, *order: Any) -> None:
        self.orders.append(order)

    def drop(self, number: int) -> None:
        self.done[number] = None


class Journal:
    """The journals of a feed."""

    def __init__(self) -> None:
        self.partitions: dict[int, Stored] = {}
        self.known: dict[int, dict[bytes, tuple]] = {}  # by owner: sessions, with who they are
        self.births: dict[int, tuple] = {}  # by rank: run and birth of its last process

    def of(self, partition: int) -> Stored:
        return self.partitions.setdefault(partition, Stored())

    def write(self, owner: int, partition: int, record: tuple) -> None:
        """Store one record: its kind, then its fields."""
        kind, *rest = record
        if kind == "join":
            session, run, rank, birth = rest
            self.known.setdefault(owner, {})[session] = run, rank, birth
            if rank >= 0:
                self.births[rank] = max((run, birth), self.births.get(rank, (0, 0)))
        elif kind == "leave":
            self.known.get(owner, {}).pop(rest[0], None)
        elif isinstance(rest[-1], Folded):
            stored = self.of(partition)
            stored.machine = stored.machine or rest[-1].stored()
            for of in rest[-1]:
                stored.machine.fold(*of)
            stored.run = stored.machine.run
            stored.tokens.update(rest[3:4] if kind == "commit" else ())
        else:
            getattr(self.of(partition), kind)(*rest)

    def knows(self, token: int) -> bool:
        return any(token in one.tokens for one in self.partitions.values())

    def everyone(self) -> dict[bytes, tuple]:
        """Return all sessions that were at work."""
        return {session: who for of in self.known.values() for session, who in of.items()}
