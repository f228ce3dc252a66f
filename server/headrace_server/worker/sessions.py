"""Trainers' sessions, and how the owner notices that a trainer on this host is dead.

    open() ─► remote ── attach() ─► local ── leave() ─► its lock is held ── free ──► dead()
                 │                    └── its lock is free ──► dead(), and then it leaves
                 └── leave() ──► dead()

A session outlives a connection: the nonce that a trainer
chose names it across reconnections.  Its file begins with random bytes; a trainer that can
read them sees the same memory as the server, whatever containers lie between.  The trainer holds a
shared flock on the file for as long as it or one of its tensors uses the memory, so a free lock
means that the trainer uses the memory no more.  The owner keeps the file open, since it checks the
lock ten times a second.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_proto.errors import LimitExceeded
from headrace_proto.messages import Answered, Hello, Renew
from headrace_proto.state_buffers import PROOF_BYTES

from ..files.durable_file import writing
from ..leasing.words import Batch
from ..process.rundir import MORE_SHARED_MEMORY, is_held

if TYPE_CHECKING:
    from .served_feed import ServedFeed

logger = logging.getLogger("headrace.trainers")

#: Prefix of a session's file name.
_FILE = "trainer-"
#: Sessions of a life before their numbers are those of the next life.
_PER_LIFE = 10_000


@dataclass(slots=True)
class Tally:
    """Counters of one trainer's session, named as in ``TrainerStatus``."""

    batches: int = 0  # sent to it, resent ones included
    rows: int = 0
    bytes: int = 0
    wire_batches: int = 0  # of those sent: to a trainer that does not see this host's memory
    wire_bytes: int = 0
    committed: int = 0
    stale: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # saves, by code
    blocked_s: float = 0.0  # as the trainer reports …
    busy_s: float = 0.0
    awaited_s: float = 0.0  # for batches of this owner

    @property
    def totals(self) -> dict[str, dict[str, Any]]:
        """Batches and bytes sent through shared memory and by wire, and refused saves."""
        batches = {"shm": self.batches - self.wire_batches, "wire": self.wire_batches}
        nbytes = {"shm": self.bytes - self.wire_bytes, "wire": self.wire_bytes}
        return {"sent": {"batches": batches, "bytes": nbytes}, "refused": self.refused}

    def on_renew(self, renew: Renew) -> None:
        """Take the times that the trainer reports."""
        self.blocked_s, self.busy_s = round(renew.blocked_s, 3), round(renew.busy_s, 3)
        self.awaited_s = round(renew.awaited_s, 3)

    def answered(
        self,
        committed: Sequence[int],
        stale: Sequence[int],
        faults: Sequence[tuple[int, str, str]],
    ) -> None:
        """Count the answers to its commits."""
        self.committed += len(committed)
        self.stale += len(stale)
        for _, code, _ in faults:
            self.refused[code] = self.refused.get(code, 0) + 1


@dataclass(slots=True, eq=False)
class Session:
    """A trainer's session; one that has left may still have memory mapped."""

    number: int
    nonce: bytes
    feed: ServedFeed
    identity: bytes
    proof: bytes
    path: Path
    file: int = -1  # its open file, until it is swept
    key: str = ""  # the public key of its connection, where the server has keys …
    name: str = ""  # … and the name of that key
    present: bool = True  # whether the trainer has not left
    local: bool = False  # whether it maps memory of this host
    seen: float = 0.0
    process: bytes = b""  # names the trainer's process
    resumed: str = ""  # the snapshot that it goes on from
    snapshot: int = 0  # number of its last snapshot request …
    snapshotted: Answered | None = None  # … and the answer
    host: str = ""  # where the trainer says that it runs
    tally: Tally = field(default_factory=Tally)
    # By token: the batches that the trainer may read …
    mapped: dict[int, Batch] = field(default_factory=dict)
    # … and those of them that were sent again, so that an older list of mapped ones may lack them.
    again: set[int] = field(default_factory=set)
    # The outbox keeps these for it: messages, …
    line: list[Any] = field(default_factory=list)
    # … answers to its commits, …
    committed: list[int] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)
    faults: list[tuple[int, str, str]] = field(default_factory=list)
    awaits: bool = False  # … and whether it waits for these, and for no batch
    greeting: Hello | None = None  # the last one …
    greeted_by: bytes = b""  # … and the connection by which it came
    welcome: bool = False  # whether it was answered …
    open: bool = False  # … and the trainer has sent a message since
    heard: int = 0  # messages of this connection from the trainer …
    said: int = 0  # … and to it
    goes_on: bool = False  # whether it had greeted before
    knows_end: bool = False  # whether the end of its feed was announced to it
    heard_end: bool = False  # whether the trainer has acknowledged the end of its feed
    buffers: Sequence[memoryview] | None = None  # in its file, for states; None: not yet attached

    def __str__(self) -> str:
        return f"the session of {self.who}"

    @property
    def who(self) -> str:
        """Its name in logs."""
        return f"trainer {self.number} ({self.name})" if self.name else f"trainer {self.number}"

    @property
    def uses(self) -> bool:
        """Whether the trainer is present and has not acknowledged the end of the feed."""
        return self.present and not self.heard_end

    def greeted(self, hello: Hello, identity: bytes) -> None:
        """Begin another connection."""
        self.greeting, self.greeted_by = hello, identity
        self.welcome = self.open = self.knows_end = False
        self.heard = self.said = 0

    @property
    def described(self) -> str:
        """Its name and where it runs, for people."""
        return f"{self.who} at {self.host}" if self.host else self.who


@dataclass(eq=False)
class SessionTable:
    """All sessions of an owner.

    ``max_trainers`` bounds them, including ended ones whose trainers still map memory.  Sessions of
    several owners in one run directory have different numbers.  So have those of the lives of an
    owner, since a message of the life before may come after the greeting of its trainer.
    """

    directory: Path
    max_trainers: int = 4096
    owner: int = 0
    owners: int = 1
    life: int = 0

    def __post_init__(self) -> None:
        self._by_number: dict[int, Session] = {}
        self.by_connection: dict[bytes, Session] = {}  # present ones
        self._next = 1 + self.owner + self.owners * self.life * _PER_LIFE

    def open(
        self, nonce: bytes, feed: ServedFeed, identity: bytes, key: str = "", name: str = ""
    ) -> Session:
        """Open a session with its file.  LimitExceeded where there are too many."""
        if len(self._by_number) >= self.max_trainers:
            raise LimitExceeded(
                f"this server has {len(self._by_number)} trainers, and takes no more: "
                f"max_trainers={self.max_trainers}, or as many as the limit of open files allows"
            )
        number, self._next = self._next, self._next + self.owners
        proof = secrets.token_bytes(PROOF_BYTES)
        path = self.directory / f"{_FILE}{number}-{self.life}"
        with writing(path, len(proof), MORE_SHARED_MEMORY):
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, proof)
            except OSError:
                os.close(fd)
                path.unlink()
                raise
        session = Session(number, nonce, feed, identity, proof, path, fd, key, name)
        self._by_number[number] = session
        feed.present[nonce] = session
        self.by_connection[identity] = session
        return session

    def move(self, session: Session, identity: bytes) -> None:
        """Reach a session by another connection."""
        if self.by_connection.get(session.identity) is session:
            del self.by_connection[session.identity]
        session.identity = identity
        self.by_connection[identity] = session

    def greeted_by(self, identity: bytes) -> Session | None:
        """Return the present session that was greeted by a connection, wherever it is now."""
        every = self._by_number.values()
        return next((one for one in every if one.present and one.greeted_by == identity), None)

    def get(self, number: int) -> Session | None:
        """Return the session of a number, present or not."""
        return self._by_number.get(number)

    def attach(self, session: Session, proof: bytes) -> None:
        """Let a trainer map memory that proves to have read its file."""
        session.local = _proves(session, proof) and is_held(session.file)

    def come_by_channel(self, number: int, proof: bytes, identity: bytes) -> Session | None:
        """Return the session of a trainer that connects by a channel, and use that from now on."""
        session = self._by_number.get(number)
        if session is None or not session.present or not _proves(session, proof):
            return None
        session.local = is_held(session.file)
        self.move(session, identity)
        return session

    def leave(self, session: Session) -> None:
        """End a session; its trainer may still map memory."""
        assert session.present, f"{session} has ended before"
        session.present = False
        if not session.local:
            _close(session)
        if session.feed.present.get(session.nonce) is session:
            del session.feed.present[session.nonce]
        if self.by_connection.get(session.identity) is session:
            del self.by_connection[session.identity]

    def dead(self) -> Iterator[Session]:
        """Yield, once each, the sessions whose trainers map nothing any more."""
        for session in list(self._by_number.values()):
            gone = not is_held(session.file) if session.local else not session.present
            if gone:
                session.local = False
                del self._by_number[session.number]
                session.path.unlink(missing_ok=True)
                _close(session)
                yield session

    def present(self) -> list[Session]:
        return [session for session in self._by_number.values() if session.present]


def _proves(session: Session, proof: bytes) -> bool:
    """Return whether a trainer knows the content of its session's file."""
    return hmac.compare_digest(proof, session.proof)


def _close(session: Session) -> None:
    if session.file >= 0:
        os.close(session.file)
        session.file = -1


def remove_files(directory: Path, owner: int, owners: int) -> None:
    """Remove the files of all sessions that earlier lives of an owner opened."""
    for path in directory.glob(f"{_FILE}*"):
        number = path.name.removeprefix(_FILE).partition("-")[0]
        if number.isdecimal() and (int(number) - 1 - owner) % owners == 0:
            path.unlink(missing_ok=True)
