"""The store of one partition: one journal, and one thread that writes it.

    submit(changes, tickets) ─► [ all that has gathered ─► one record ] ─► take_done()

A ticket is done when its change is committed; only then is a trainer answered.  While the store
writes one record the next gathers, so the disk sets the delay and not the rate.  The store waits
while a disk is full: it acknowledges no change meanwhile, and loses none that it acknowledged.

    durability "power"    a record is on the disk before it is acknowledged
               "process"  outlives any process; power loss may take the last seconds back.  A write
                          only fills memory then, so write() needs no thread while that has nothing
                          to do; the thread begins laps, and waits for room
               "worker"   the same for a file in shared memory, which is kept smaller

Each record has a checksum, and the store reads the whole file when it opens it.  A file that is
empty, not a journal or damaged is refused and stays as it is.  Damage to the very last record looks
like a commit that a crash cut short: the store ignores that record.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from headrace_proto.clock import Deadline
from headrace_proto.errors import ServerError

from ..files.durable_file import FULL, room, writing
from ..process.rundir import MORE_SHARED_MEMORY
from ..shaping.stored_state import Change, Saved
from .commit_records import Ledger, decoded, encoded
from .journal import Journal, NoRoom, create
from .statedir import beginning_anew

logger = logging.getLogger("headrace.store")

DURABILITIES = ("power", "process")
#: Durability of a journal in shared memory, which ends with its server.
WORKER = "worker"
#: Number of tokens to remember, so that a commit which comes again is answered as before.
TOKENS = 65_536
#: The same in shared memory, where every partition of every feed has a journal.
TOKENS_IN_MEMORY = 4096
#: The thread writes a lap in shared memory in pieces of about this size, and rests before each, so
#: that it takes the interpreter from the steps of trainers for 0.2 to 0.3 ms at a time.
_PIECE_BYTES, _REST_S = 64 << 10, 0.0001
_RETRY_S = 0.25
_CLOSE_S = 10.0
#: Errors that pass by themselves, or when an operator makes room.
_PASSING = frozenset(
    (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE)
)


class StoreDamaged(ServerError):
    """The file of a partition's state can not be trusted."""


class Store:
    """The store of one partition."""

    def __init__(
        self,
        path: Path,
        durability: str,
        wake_fd: int = -1,
        begun: bool = False,
    ) -> None:
        """Open the file, or make it.  StoreDamaged where it had ``begun`` and is gone."""
        if durability not in (*DURABILITIES, WORKER):
            raise ValueError(f"durability={durability!r} is none of {', '.join(DURABILITIES)}")
        self.path = path
        self._wake_fd = wake_fd
        self._gathered: list[tuple[Change, Any]] = []
        self._copies: list[tuple[Path, Future[None]]] = []
        self._done: list[Any] = []
        self._changed = threading.Condition()
        self._closing = False
        self._working = False  # whether the thread uses the file
        self._used = False
        self.fault = ""  # why changes wait at the moment
        self.commits = 0  # transactions of this life …
        self.committed_at = 0.0  # … and when the last one was done
        self._failure: BaseException | None = None
        self.in_memory = durability == WORKER
        self.tokens = TOKENS_IN_MEMORY if self.in_memory else TOKENS
        self._ledger = self._new_ledger()
        self._inline = durability != "power"
        self._journal = self._opened(durability == "power", begun)
        self._thread = threading.Thread(target=self._run, name="headrace-store", daemon=True)

    def _opened(self, durable: bool, begun: bool) -> Journal:
        new = self.path.with_name(self.path.name + ".new")
        with _named(self.path, self.in_memory):
            if not self.path.exists():
                if begun:
                    raise ValueError("it is gone, and commits were stored in it")
                create(self.path, [], in_memory=self.in_memory)
            new.unlink(missing_ok=True)  # from a lap that a crash cut short
            journal = Journal(self.path, durable, self.in_memory)
            try:
                read = journal.views()
                for record in journal.records:
                    changes = decoded(read(record.place, record.nbytes))
                    self._ledger.apply(changes, record.place, record.nbytes)
            except BaseException:
                journal.close()
                raise
        return journal

    def load(self) -> Saved:
        """Return the stored state: examples by insertion index, tokens as they came.

        Call it before the first ``submit``.
        """
        if self._used:
            raise ValueError("load() comes before the first submit()")
        with _named(self.path, self.in_memory):
            return self._ledger.saved(self._journal.views())

    def submit(self, *changes: Change, tickets: Iterable[Any] = ()) -> None:
        """Commit changes soon, all in one record, and hand out the tickets then.

        A change by itself may be half of a commit: its states, without its token.
        """
        with self._changed:
            self._begin()
            self._gathered += [(change, None) for change in changes]
            self._gathered += [(Change(), ticket) for ticket in tickets]
            self._start()

    def write(self, changes: Sequence[Change]) -> bool:
        """Commit changes at once, as one record.

        False where only the thread can do that, or has to report why not: then submit them.
        """
        with self._changed:
            self._begin()
            return self._inline and self._written([change for change in changes if change])

    @property
    def settled(self) -> bool:
        """Whether all submitted changes are committed, and all tickets taken."""
        with self._changed:
            return not (self._working or self._gathered or self._done)

    def _written(self, changes: Sequence[Change]) -> bool:
        if self._working or self._gathered or self._copies:
            return False
        if changes:
            try:
                self._append(changes)
            except (NoRoom, ValueError, TypeError, OSError, struct.error):
                return False
            self.commits += 1
            self.committed_at = time.monotonic()
        return True

    def take_done(self) -> list[Any]:
        """Return the tickets whose changes are committed, in the order of their submission."""
        with self._changed:
            done, self._done = self._done, []
        if not done:
            self.take_failure()
        return done

    def copy_to(self, target: Path) -> None:
        """Write a consistent copy of the committed state, with all changes submitted before.

        The store commits nothing meanwhile.  ServerError, and no file, where the copy can not be
        made or commits wait for a disk.
        """
        copied = Future[None]()
        with self._changed:
            self._begin()
            self._copies.append((target, copied))
            self._start()
        while not wait([copied], _RETRY_S).done:
            if (fault := self.fault) and copied.cancel():
                raise ServerError(f"no copy to {target} can be made now: {fault}")
        if error := copied.exception():
            if isinstance(error, OSError) and error.errno in FULL:
                raise ServerError(f"{error.strerror}") from error  # it names the file
            raise ServerError(f"{target}: {error}") from error

    def take_failure(self) -> None:
        """Raise ServerError where the thread has ended for a reason that does not pass."""
        if self._failure is not None:
            raise ServerError(f"{self.path}: {self._failure}") from self._failure

    def close(self) -> None:
        """Commit the gathered changes and close the file.

        While a disk is full it tries once more; a change that fails then was never acknowledged.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is None:
            self._close_files()
            return
        if not Deadline(_CLOSE_S).join(self._thread):
            logger.error("%s: the disk has not answered for %g s", self.path, _CLOSE_S)

    def _begin(self) -> None:
        self.take_failure()
        if self._closing:
            raise ServerError(f"{self.path} is closed")
        self._used = True

    def _start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._changed.notify()

    # The thread

    def _run(self) -> None:
        copies: list[tuple[Path, Future[None]]] = []
        try:
            while True:
                with self._changed:
                    self._working = False
                    while not (self._gathered or self._copies or self._closing):
                        self._changed.wait()
                    batch, self._gathered = self._gathered, []
                    copies, self._copies = self._copies, []
                    self._working = True
                if not batch and not copies:
                    break
                if batch:
                    self._commit(batch)
                for target, copied in copies:
                    if copied.set_running_or_notify_cancel():
                        self._copy(target, copied)
        except BaseException as error:
            logger.error("%s: %s", self.path, error)
            with self._changed:
                self._failure = error
                for _, copied in copies + self._copies:
                    if not copied.done():
                        copied.set_exception(error)
            self._wake()
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self._journal.close()

    def _commit(self, batch: list[tuple[Change, Any]]) -> None:
        changes = [change for change, _ in batch if change]
        parts: list[Any] | None = None  # once they are in the journal: a retry writes no second
        while True:
            last = self._closing
            try:
                with _named(self.path, self.in_memory):
                    if parts is None:
                        parts = self._write(changes)
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
        self.commits += 1
        self.committed_at = time.monotonic()
        with self._changed:
            self._done += [ticket for _, ticket in batch if ticket is not None]
        self._wake()

    def _write(self, changes: Sequence[Change]) -> list[Any]:
        """Append the gathered changes, in the next lap where this is full; return the record."""
        if not changes:
            return []
        try:
            return self._append(changes)
        except NoRoom:
            self._turn(sum(len(part) for change in changes for part in encoded(change)))
            return self._append(changes)

    def _append(self, changes: Sequence[Change]) -> list[Any]:
        parts = [part for change in changes for part in encoded(change)]
        place = self._journal.append(parts)
        self._ledger.apply(changes, place, sum(map(len, parts)))
        return parts

    def _records(self) -> Iterator[bytes]:
        """Yield the records of a new journal of this state."""
        for change in self._ledger.table(self._journal.read):
            yield b"".join(encoded(change))

    def _new_ledger(self) -> Ledger:
        return Ledger(self.tokens, _PIECE_BYTES) if self.in_memory else Ledger(self.tokens)

    def _turn(self, next_bytes: int) -> None:
        journal, ledger = self._journal, self._new_ledger()
        with journal.turn(self._ledger.table_bytes(), next_bytes) as table:
            for change in self._ledger.table(journal.read):
                if self.in_memory:
                    time.sleep(_REST_S)
                parts = encoded(change)
                ledger.apply([change], table.write(parts), sum(map(len, parts)))
        self._ledger = ledger

    def _copy(self, target: Path, copied: Future[None]) -> None:
        try:
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            changes = self._ledger.table(self._journal.read)
            nbytes = self._ledger.table_bytes()
            with writing(target, nbytes):
                create(target, map(encoded, changes), nbytes)
        except (ValueError, OSError) as error:
            copied.set_exception(error)
        else:
            copied.set_result(None)

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake_fd, 1)


class _Passing(ServerError):
    """An error that is over when an operator makes room."""


@contextlib.contextmanager
def _named(path: Path, in_memory: bool) -> Iterator[None]:
    """Give errors the file's name and a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in _PASSING:
            raise
        where = room(path, MORE_SHARED_MEMORY) if in_memory else room(path)
        more = f"; {where}" if error.errno in FULL else ""
        raise _Passing(f"{path}: {error.strerror}{more}") from error
    except (ValueError, struct.error) as error:
        remedy = "" if in_memory else f": resume from a snapshot; or, {beginning_anew(path)}"
        raise StoreDamaged(f"{path} is damaged: {error}.  Nothing is guessed{remedy}") from error
