"""What of one partition survives: one SQLite file, one connection, one thread that owns it.

    submit(change, ticket) ─► [ all that has gathered, merged ─► one transaction ] ─► take_done()

A ticket is done when its change is committed, which is when a trainer may be told.  While one
transaction is written the next gathers, so the disk sets the delay and not the rate.  A full disk
is waited out: nothing is told to be committed meanwhile, and nothing that was is lost.

    durability "power"    a transaction is on the disk before it is told   (synchronous FULL)
               "process"  outlives any process; power loss may take the last seconds back

Each row has a checksum, and a file is looked through whenever it is opened.  One that is empty, not
ours or damaged is refused and left as it is.  What can not be told from a commit that the end cut
short is damage to the very last one in the journal: that one is as if it had not been.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_proto.errors import ServerError

from ..core.changes import Change, Saved
from ..feed.durable_file import sync_directory
from .store_rows import SCHEMA, Merged, StoreDamaged, journal_fault, read_rows

__all__ = ["DURABILITIES", "Store", "StoreDamaged", "copy_store"]

logger = logging.getLogger("headrace.store")

DURABILITIES = ("power", "process")
VERSION = 1
#: Marks a file as ours among those of SQLite ("hdrc").
_APPLICATION = 0x68647263
#: Tokens of the last commits, by which a trainer that asks again is answered as before.
_TOKENS = 65_536
_JOURNAL_BYTES = 64 * 1024**2
_RETRY_S = 0.25
_BUSY_S = 5.0
_CLOSE_S = 10.0
#: What goes by itself, or when somebody makes room: busy, locked, read-only, input or output, full,
#: no file to be opened.
_PASSING = frozenset({5, 6, 8, 10, 13, 14})


@dataclass(slots=True, eq=False)
class _Copy:
    target: Path
    finished: threading.Event = field(default_factory=threading.Event)
    withdrawn: bool = False
    error: BaseException | None = None


class Store:
    """One partition's file."""

    def __init__(self, path: Path, durability: str, wake_fd: int = -1) -> None:
        if durability not in DURABILITIES:
            raise ValueError(f"durability={durability!r} is none of {', '.join(DURABILITIES)}")
        self.path = path
        self._wake_fd = wake_fd
        self._gathered: list[tuple[Change, Any]] = []
        self._copies: list[_Copy] = []
        self._done: list[Any] = []
        self._changed = threading.Condition()
        self._closing = False
        self.fault = ""  # why nothing is committed at the moment
        self.commits = 0  # transactions of this life …
        self.committed_at = 0.0  # … and when the last one was done
        self._failure: BaseException | None = None
        self._db = _open(path, durability)
        last = self._db.execute("SELECT max(place) FROM token").fetchone()[0]
        self._place = 0 if last is None else int(last)  # of the last token
        self._thread = threading.Thread(target=self._run, name="headrace-store", daemon=True)

    def load(self) -> Saved:
        """What is there: examples by insertion index, tokens as they came.

        To be asked for before anything is submitted.
        """
        if self._thread.ident is not None:
            raise ValueError("load() comes before the first submit()")
        with _named(self.path):
            return read_rows(self._db)

    def submit(self, change: Change, ticket: Any = None) -> None:
        """Commit a change, soon.  It belongs to the store from now on."""
        with self._changed:
            self._begin()
            self._gathered.append((change, ticket))
            self._changed.notify()

    def take_done(self) -> list[Any]:
        """Tickets whose changes are committed, in the order of their submission."""
        with self._changed:
            done, self._done = self._done, []
        if not done:
            self.take_failure()
        return done

    def copy_to(self, target: Path) -> None:
        """A consistent copy of what is committed, at least all that was submitted before.

        Nothing is committed while it is made.  ServerError, and no file, when it can not be made
        or commits wait for a disk.
        """
        copy = _Copy(target)
        with self._changed:
            self._begin()
            self._copies.append(copy)
            self._changed.notify()
        while not copy.finished.wait(_RETRY_S):
            with self._changed:
                copy.withdrawn = bool(self.fault) and not copy.finished.is_set()
            if copy.withdrawn:
                raise ServerError(f"no copy to {target} can be made now: {self.fault}")
        if copy.error is not None:
            raise ServerError(f"{target}: {copy.error}") from copy.error

    def take_failure(self) -> None:
        """ServerError when the thread has ended for a reason that does not pass."""
        if self._failure is not None:
            raise ServerError(f"{self.path}: {self._failure}") from self._failure

    def close(self) -> None:
        """Commit what has gathered and close the file.

        While a disk is full one more attempt is made; what fails then was told to nobody.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is None:
            self._db.close()
            return
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            logger.error("%s: the disk has not answered for %g s", self.path, _CLOSE_S)

    def _begin(self) -> None:
        self.take_failure()
        if self._closing:
            raise ServerError(f"{self.path} is closed")
        if self._thread.ident is None:
            self._thread.start()

    # The thread

    def _run(self) -> None:
        copies: list[_Copy] = []
        try:
            while True:
                with self._changed:
                    while not (self._gathered or self._copies or self._closing):
                        self._changed.wait()
                    batch, self._gathered = self._gathered, []
                    copies, self._copies = self._copies, []
                if not batch and not copies:
                    break
                if batch:
                    self._commit(batch)
                for copy in copies:
                    self._copy(copy)
        except BaseException as error:
            logger.error("%s: %s", self.path, error)
            with self._changed:
                self._failure = error
                for copy in copies + self._copies:
                    copy.error = error
                    copy.finished.set()
            self._wake()
        finally:
            self._db.close()

    def _commit(self, batch: list[tuple[Change, Any]]) -> None:
        merged = Merged(change for change, _ in batch)
        while True:
            last = self._closing
            try:
                with _named(self.path):
                    self._transact(merged)
                break
            except _Passing as error:
                if last:
                    raise ServerError(
                        f"closed with {len(batch)} changes unsaved: {error}"
                    ) from None
                if not self.fault:
                    logger.error("%s; commits wait until that is over", error)
                self.fault = str(error)
                self._wake()
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, _RETRY_S)
        if self.fault:
            logger.warning("%s: commits go on", self.path)
            self.fault = ""
        self._place += len(merged.tokens)
        self.commits += 1
        self.committed_at = time.monotonic()
        with self._changed:
            self._done += [ticket for _, ticket in batch if ticket is not None]
        self._wake()

    def _transact(self, merged: Merged) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            merged.write(db, self._place, _TOKENS)
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            raise

    def _copy(self, copy: _Copy) -> None:
        if not copy.withdrawn:
            try:
                _backup(self._db, copy.target)
            except (sqlite3.Error, OSError) as error:
                copy.error = error
        copy.finished.set()

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake_fd, 1)


def copy_store(source: Path, target: Path) -> None:
    """Copy a store that nobody has open, journal and all; checked, and left as it is."""
    _check(source, durable=True)
    with _named(source), _reading(source) as db:
        read_rows(db)
        _backup(db, target)


def _backup(db: sqlite3.Connection, target: Path) -> None:
    """Copy a database whole, or leave no file."""
    with open(target, "xb"):
        pass
    try:
        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as other:
            db.backup(other)
        sync_directory(target.parent)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _open(path: Path, durability: str) -> sqlite3.Connection:
    if not path.exists():
        _create(path)
    _check(path, durability == "power")
    with _named(path):
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
        try:
            db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
            db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
            db.execute("BEGIN IMMEDIATE")  # whether it can be written
            db.execute("ROLLBACK")
        except BaseException:
            db.close()
            raise
    return db


def _create(path: Path) -> None:
    """An empty store, whole or not at all."""
    if _journal(path).exists():
        raise StoreDamaged(_advice(path, "it is gone, and its journal is there"))
    new = path.with_name(path.name + ".new")
    for left in path.parent.glob(new.name + "*"):
        left.unlink()
    with _named(path), contextlib.closing(sqlite3.connect(new, isolation_level=None)) as db:
        for sql in SCHEMA.values():
            db.execute(sql)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute("PRAGMA journal_mode = WAL")
    os.replace(new, path)
    sync_directory(path.parent)


def _check(path: Path, durable: bool) -> None:
    """Whether a file can be trusted.  Only reads: a refusal leaves all as it was found."""
    with _named(path):
        if not path.stat().st_size:
            raise StoreDamaged("it is empty")
        if durable and _journal(path).exists():
            fault = journal_fault(_journal(path).read_bytes())
            if fault:
                raise StoreDamaged(fault)
        with _reading(path) as db:
            if db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
                raise StoreDamaged("it is no file of a headrace server")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                raise ServerError(
                    f"{path} was written by another release of headrace (version {version} of the "
                    f"file, this one reads {VERSION})"
                )
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise StoreDamaged(str(found))
            schema = dict(db.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))
            if schema != SCHEMA:
                raise StoreDamaged("its tables are not those that were made")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
        yield db


def _journal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


class _Passing(ServerError):
    """What is over when somebody makes room."""


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors with the file's name and what can be done."""
    try:
        yield
    except StoreDamaged as error:
        raise StoreDamaged(_advice(path, str(error))) from error.__cause__
    except UnicodeDecodeError as error:  # of SQLite's own words, which cite the file
        raise StoreDamaged(_advice(path, f"what is said of it is no text: {error}")) from error
    except sqlite3.DatabaseError as error:
        if (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _PASSING:
            raise _Passing(f"{path}: {error}") from error
        raise StoreDamaged(_advice(path, str(error))) from error


def _advice(path: Path, fault: str) -> str:
    return (
        f"{path} is damaged: {fault}.  Nothing is guessed: resume from a snapshot, or move the "
        "state directory away to begin anew"
    )
