"""What of one partition survives: one SQLite file, one connection, one thread that owns it.

    submit(change, ticket) ─► [ all that has gathered ─► one transaction ] ─► take_done()

A ticket is done when its change is committed, which is when a trainer may be told.  While one
transaction is written the next gathers, so the disk sets the delay and not the rate.  A full disk
is waited out: nothing is told to be committed meanwhile, and nothing that was is lost.

    durability "power"    a transaction is on the disk before it is told   (synchronous FULL)
               "process"  outlives any process; power loss may take the last seconds back
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_proto.errors import ServerError

__all__ = ["DURABILITIES", "Change", "Example", "Saved", "Store", "StoreDamaged", "copy_store"]

logger = logging.getLogger("headrace.store")

DURABILITIES = ("power", "process")
VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS example (
    number INTEGER PRIMARY KEY, chunk INTEGER NOT NULL, line INTEGER NOT NULL,
    segment INTEGER NOT NULL, count INTEGER NOT NULL, crc INTEGER NOT NULL, state BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS chunk (number INTEGER PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS done (number INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS token (token INTEGER PRIMARY KEY);
"""
#: Tokens of the last commits, by which a trainer that asks again is answered as before.
_TOKENS = 65_536
_RETRY_S = 0.25
_BUSY_S = 5.0


class StoreDamaged(ServerError):
    """A file of states can not be trusted."""


@dataclass(slots=True)
class Example:
    """An example that has begun: where it lies, how far it is, and its states."""

    number: int
    chunk: int
    line: int
    segment: int
    count: int
    state: bytes

    def row(self) -> tuple[int, int, int, int, int, int, bytes]:
        crc = zlib.crc32(self.state, self.number & 0xFFFFFFFF)
        crc = zlib.crc32(self.segment.to_bytes(8, "little"), crc)
        return (self.number, self.chunk, self.line, self.segment, self.count, crc, self.state)

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Example:
        number, chunk, line, segment, count, crc, state = row
        example = cls(number, chunk, line, segment, count, state)
        if example.row()[5] != crc:
            raise StoreDamaged(f"the state of example {number} fails its checksum")
        return example


@dataclass(slots=True)
class Change:
    """What one commit changes.  ``base``: whatever is done below it is not listed any more."""

    put: list[Example] = field(default_factory=list)
    drop: list[int] = field(default_factory=list)  # numbers of examples
    done: list[int] = field(default_factory=list)
    base: int | None = None
    chunks: dict[int, bytes] = field(default_factory=dict)
    drop_chunks: list[int] = field(default_factory=list)
    meta: dict[str, bytes] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Saved:
    """Everything that a store holds."""

    meta: dict[str, bytes]
    examples: list[Example]
    chunks: dict[int, bytes]
    done: list[int]
    tokens: list[int]


class Store:
    """One partition's file."""

    def __init__(self, path: Path, durability: str, wake_fd: int = -1) -> None:
        self.path = path
        self._wake_fd = wake_fd
        self._durability = durability
        self._gathered: list[tuple[Change, Any]] = []
        self._done: list[Any] = []
        self._changed = threading.Condition()
        self._closing = False
        self.fault = ""  # why nothing is committed at the moment
        self._failure: BaseException | None = None
        self._db = _open(path, durability)
        self._tokens = int(self._db.execute("SELECT count(*) FROM token").fetchone()[0])
        self._thread = threading.Thread(target=self._run, name="headrace-store", daemon=True)

    def load(self) -> Saved:
        """What is there; to be asked for before anything is submitted."""
        with _named(self.path):
            rows = self._db.execute("SELECT * FROM example ORDER BY number")
            return Saved(
                dict(self._db.execute("SELECT name, value FROM meta")),
                [Example.of(row) for row in rows],
                dict(self._db.execute("SELECT number, value FROM chunk")),
                [n for (n,) in self._db.execute("SELECT number FROM done ORDER BY number")],
                [n for (n,) in self._db.execute("SELECT token FROM token ORDER BY token")],
            )

    def submit(self, change: Change, ticket: Any = None) -> None:
        """Commit a change, soon."""
        with self._changed:
            if not self._thread.is_alive():
                self._thread.start()
            self._gathered.append((change, ticket))
            self._changed.notify()

    def take_done(self) -> list[Any]:
        """Tickets whose changes are committed, in the order of their submission."""
        with self._changed:
            if self._failure is not None:
                raise ServerError(f"{self.path}: {self._failure}") from self._failure
            done, self._done = self._done, []
        return done

    def copy_to(self, target: Path) -> None:
        """A consistent copy of what is committed now, after all that was submitted."""
        finished = threading.Event()
        self.submit(Change(), ("copy", target, finished))
        finished.wait()
        self.take_failure()

    def take_failure(self) -> None:
        if self._failure is not None:
            raise ServerError(f"{self.path}: {self._failure}") from self._failure

    def close(self) -> None:
        """Commit what has gathered and close the file."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_BUSY_S)
        else:
            self._db.close()

    # The thread

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._gathered and not self._closing:
                        self._changed.wait()
                    batch, self._gathered = self._gathered, []
                if not batch:
                    break
                self._commit(batch)
        except BaseException as error:
            with self._changed:
                self._failure = error
            self._wake()
        finally:
            self._db.close()

    def _commit(self, batch: list[tuple[Change, Any]]) -> None:
        while True:
            try:
                with self._db:
                    self._db.execute("BEGIN IMMEDIATE")
                    for change, _ in batch:
                        self._apply(change)
                break
            except sqlite3.OperationalError as error:
                if not _passes(error):
                    raise
                if not self.fault:
                    logger.error("%s: %s; commits wait until that is over", self.path, error)
                self.fault = f"{self.path}: {error}"
                time.sleep(_RETRY_S)
        if self.fault:
            logger.warning("%s: commits go on", self.path)
            self.fault = ""
        for _, ticket in batch:
            if isinstance(ticket, tuple) and ticket and ticket[0] == "copy":
                self._copy(*ticket[1:])
        with self._changed:
            self._done += [ticket for _, ticket in batch if ticket is not None]
        self._wake()

    def _apply(self, change: Change) -> None:
        execute, many = self._db.execute, self._db.executemany
        if change.put:
            many(
                "INSERT OR REPLACE INTO example VALUES (?, ?, ?, ?, ?, ?, ?)",
                [example.row() for example in change.put],
            )
        if change.drop:
            many("DELETE FROM example WHERE number = ?", [(n,) for n in change.drop])
        if change.done:
            many("INSERT OR IGNORE INTO done VALUES (?)", [(n,) for n in change.done])
        if change.base is not None:
            execute("DELETE FROM done WHERE number < ?", (change.base,))
        if change.chunks:
            many("INSERT OR REPLACE INTO chunk VALUES (?, ?)", change.chunks.items())
        if change.drop_chunks:
            many("DELETE FROM chunk WHERE number = ?", [(n,) for n in change.drop_chunks])
        if change.meta:
            many("INSERT OR REPLACE INTO meta VALUES (?, ?)", change.meta.items())
        if change.tokens:
            many("INSERT OR IGNORE INTO token VALUES (?)", [(t,) for t in change.tokens])
            self._tokens += len(change.tokens)
            if self._tokens > 2 * _TOKENS:
                execute(
                    "DELETE FROM token WHERE token NOT IN "
                    "(SELECT token FROM token ORDER BY token DESC LIMIT ?)",
                    (_TOKENS,),
                )
                self._tokens = _TOKENS

    def _copy(self, target: Path, finished: threading.Event) -> None:
        try:
            other = sqlite3.connect(target, isolation_level=None)
            try:
                self._db.backup(other)
            finally:
                other.close()
        finally:
            finished.set()

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake_fd, 1)


def copy_store(source: Path, target: Path) -> None:
    """Copy a store that nobody has open, journal and all; checked."""
    db = _open(source, "power")
    try:
        other = sqlite3.connect(target, isolation_level=None)
        try:
            db.backup(other)
        finally:
            other.close()
    finally:
        db.close()


def _open(path: Path, durability: str) -> sqlite3.Connection:
    unclean = path.with_name(path.name + "-wal").exists()
    with _named(path):
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            level = "FULL" if durability == "power" else "NORMAL"
            db.execute(f"PRAGMA synchronous = {level}")
            if unclean:
                found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise StoreDamaged(_advice(path, found))
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise ServerError(
                    f"{path} was written by another release of headrace (version {version} of the "
                    f"file, this one reads {VERSION})"
                )
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA user_version = {VERSION}")
        except BaseException:
            db.close()
            raise
    return db


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of SQLite with the file's name and what can be done."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and _passes(error):
            raise ServerError(f"{path}: {error}") from error
        raise StoreDamaged(_advice(path, str(error))) from error
    except StoreDamaged as error:
        if str(path) in str(error):
            raise
        raise StoreDamaged(_advice(path, str(error))) from error


def _passes(error: sqlite3.OperationalError) -> bool:
    """Whether an error goes by itself, or when somebody makes room."""
    text = str(error)
    return any(word in text for word in ("full", "locked", "busy", "disk I/O error"))


def _advice(path: Path, fault: str) -> str:
    return (
        f"{path} is damaged: {fault}.  Nothing is guessed: resume from a snapshot, or move the "
        "state directory away to begin anew"
    )
