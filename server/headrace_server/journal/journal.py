"""The journal of one partition: its file, its live table, and the thread that writes them.

    submit(changes, tickets) ─► [ all that has gathered ─► one record ] ─► take_done()

A ticket is done when the changes before it are committed; only then is a trainer answered.  While
the journal writes one record the next gathers, so the disk sets the delay and not the rate.  While
a disk is full the journal waits: it acknowledges no change, and loses none that it acknowledged.

    durability "power"    a record is on the disk before it is acknowledged
               "process"  outlives any process; power loss may take the last seconds back.  A write
                          only fills memory then, so write() needs no thread while that has nothing
                          to do; the thread begins new files, and waits for room
               "worker"   the same for a file in shared memory, which is kept smaller

When the file is full, the thread writes the live table to a new one, which takes its place.  Each
record has a checksum, and the journal reads the whole file when it opens it.  A file that is empty,
not a journal or damaged is refused and stays as it is.  Damage to the very last record looks like a
commit that a crash cut short: the journal ignores that record.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from headrace_proto.clock import Deadline
from headrace_proto.errors import ServerError

from ..files.durable_file import FULL, room, writing
from ..files.journal_file import JournalFile, NoRoom, record_bytes
from ..process.rundir import MORE_SHARED_MEMORY
from ..shaping.stored_state import Change, Saved
from .feed_directory import beginning_anew
from .live_table import LiveTable, decoded, encoded

logger = logging.getLogger("headrace.journal")

DURABILITIES = ("power", "process")
#: Durability of a journal in shared memory, which ends with its server.
WORKER = "worker"
#: Number of tokens to remember, so that a commit which comes again is answered as before.
TOKENS = 65_536
#: The same in shared memory, where every partition of every feed has a journal.
TOKENS_IN_MEMORY = 4096
#: First size of a file, and the size that it grows to; only a larger table needs more.
_LEAST, _USUAL = 1 << 20, 32 << 20
#: Number of tables that fit a file: the more, the less is written beside commits.
_TABLES = 4
#: A table beyond this size fits twice only: a start has to read the whole file.
_LARGE_TABLE, _TABLES_IF_LARGE = 256 << 20, 2
#: In shared memory room is scarce, and a new file costs no write to a disk: it begins small, and
#: grows while fewer tables with a commit than this fit it.  A new file takes the interpreter from
#: the steps of trainers for 0.6 ms: where commits carry states of 64 KiB, once in 120 of them.
_LEAST_IN_MEMORY, _USUAL_IN_MEMORY, _TABLES_IN_MEMORY = 64 << 10, 16 << 20, 2
_GROWS_BELOW = 48
#: The thread writes a table in shared memory in pieces of about this size, and rests before each,
#: so that it takes the interpreter from the steps of trainers for 0.2 to 0.3 ms at a time.
_PIECE_BYTES, _REST_S = 64 << 10, 0.0001
_RETRY_S = 0.25
_CLOSE_S = 10.0
#: Errors that pass by themselves, or when an operator makes room.
_PASSING = frozenset(
    (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE)
)

#: Called with the fault of a copy, "" if there is none.
Copied = Callable[[str], object]
#: Handed out once the changes that came with it are committed.
Ticket = Callable[[], object]


class JournalDamaged(ServerError):
    """The journal of a partition can not be trusted."""


class Journal:
    """The journal of one partition."""

    def __init__(
        self,
        path: Path,
        durability: str,
        wake_fd: int = -1,
        begun: bool = False,
        owner: str = "",
    ) -> None:
        """Open the file of ``owner``, or make it.

        JournalDamaged where it had ``begun`` and is gone, or is that of another owner.
        """
        if durability not in (*DURABILITIES, WORKER):
            raise ValueError(f"durability={durability!r} is none of {', '.join(DURABILITIES)}")
        self.path = path
        self._owner = owner
        self._wake_fd = wake_fd
        self._gathered: list[Change] = []
        self._tickets: list[Ticket] = []  # done when these are committed
        self._copies: list[tuple[Path, Copied]] = []
        self._done: list[Ticket] = []
        self._changed = threading.Condition()
        self._closing = False
        self._working = False  # whether the thread uses the file
        self._used = False
        self.fault = ""  # why changes wait at the moment
        self.commits = 0  # records of this life …
        self.committed_at = 0.0  # … and when the last one was written
        self._failure: BaseException | None = None
        self.in_memory = durability == WORKER
        self.tokens = TOKENS_IN_MEMORY if self.in_memory else TOKENS
        self._durable = durability == "power"
        self._table = self._new_table()
        with self.named():
            self._file = self._opened(begun)
        self._thread = threading.Thread(target=self._run, name="headrace-journal", daemon=True)

    def _opened(self, begun: bool) -> JournalFile:
        if not os.path.lexists(self.path):
            if begun:
                raise ValueError("it is gone, and commits were stored in it")
            with JournalFile.new(self.path, self._owner) as file:
                file.publish(_LEAST_IN_MEMORY if self.in_memory else _LEAST, 0, self._durable)
            file.sync_name()
            return file
        file, records = JournalFile.open(self.path, self._durable, self._owner)
        try:
            read = file.views()
            for record in records:
                changes = decoded(read(record.place, record.nbytes))
                self._table.apply(changes, record.place, record.nbytes)
        except BaseException:
            file.close()
            raise
        return file

    def load(self) -> Saved:
        """Return the stored state: examples by insertion index, tokens as they came.

        Call it before the first ``submit``.
        """
        if self._used:
            raise ValueError("load() comes before the first submit()")
        with self.named():
            return self._table.saved(self._file.views())

    def submit(self, *changes: Change, tickets: Iterable[Ticket] = ()) -> None:
        """Commit changes soon, all in one record, and hand out the tickets then.

        A change by itself may be half of a commit: its states, without its token.
        """
        with self._changed:
            self._begin()
            self._gathered += changes
            self._tickets += tickets
            self._start()

    def write(self, changes: Sequence[Change]) -> bool:
        """Commit changes at once, as one record.

        False where only the thread can do that, or has to report why not: then submit them.
        """
        with self._changed:
            self._begin()
            if self._durable or self._working or self._gathered or self._tickets or self._copies:
                return False
            try:
                self._append([change for change in changes if change])
            except (NoRoom, ValueError, TypeError, OSError, struct.error):
                return False
            return True

    @property
    def settled(self) -> bool:
        """Whether all submitted changes are committed, and all tickets taken."""
        with self._changed:
            return not (self._working or self._gathered or self._tickets or self._done)

    def take_done(self) -> list[Ticket]:
        """Return the tickets whose changes are committed, in the order of their submission."""
        with self._changed:
            done, self._done = self._done, []
        if not done:
            self.take_failure()
        return done

    def copy(self, target: Path, copied: Copied) -> None:
        """Write a copy of the committed state, with all changes submitted before.

        ``take_done`` then returns ``copied`` with its fault: of a disk, for which commits may wait,
        too.  The journal commits nothing meanwhile.
        """
        with self._changed:
            self._begin()
            self._copies.append((target, copied))
            self._start()

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
            self._file.close(mark=True)
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
        copies = list[tuple[Path, Copied]]()
        try:
            while True:
                with self._changed:
                    self._working = False
                    while not (self._gathered or self._tickets or self._copies or self._closing):
                        self._changed.wait()
                    changes, self._gathered = self._gathered, []
                    tickets, self._tickets = self._tickets, []
                    copies += self._copies
                    self._copies.clear()
                    self._working = True
                if not (changes or tickets or copies):
                    break
                self._commit([change for change in changes if change], copies)
                self._hand_out(tickets)
                while copies:
                    target, copied = copies.pop(0)
                    self._hand_out([partial(copied, self._copy(target))])
        except BaseException as error:
            logger.error("%s: %s", self.path, error)
            with self._changed:
                self._failure = error
            self._refuse(copies, str(error))
        finally:
            self._file.close(mark=True)

    def _commit(self, changes: list[Change], copies: list[tuple[Path, Copied]]) -> None:
        while True:
            last = self._closing
            try:
                with self.named():
                    self._write(changes)
                break
            except _Passing as error:
                if last:
                    raise ServerError(f"closed with commits unsaved: {error}") from None
                if not self.fault:
                    logger.error("%s; commits wait until that is over", error)
                self.fault = str(error)
                self._refuse(copies, self.fault)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, _RETRY_S)
        if self.fault:
            logger.warning("%s: commits go on", self.path)
            self.fault = ""

    def _write(self, changes: list[Change]) -> None:
        """Append the gathered changes, in a new file where this one is full."""
        try:
            self._append(changes)
        except NoRoom:
            self._replace_file(sum(len(part) for change in changes for part in encoded(change)))
            self._append(changes)

    def _append(self, changes: Sequence[Change]) -> None:
        if changes:
            parts = [part for change in changes for part in encoded(change)]
            self._table.apply(changes, self._file.write(parts), sum(map(len, parts)))
            self.commits += 1
            self.committed_at = time.monotonic()

    def _replace_file(self, next_bytes: int) -> None:
        """Go on in a new file, with room for a record of ``next_bytes``."""
        old = self._file
        old.sync_name()
        with JournalFile.new(self.path, self._owner) as file:
            table = self._written(file)
            least = file.at + record_bytes(next_bytes)
            file.publish(max(least, self._next_size(file.at, least)), least, self._durable)
        old.close()
        self._file, self._table = file, table

    def _written(self, file: JournalFile) -> LiveTable:
        """Write the live state to a new file; return the table of what is there."""
        table = self._new_table()
        for change in self._table.changes(self._file.read):
            if self.in_memory:
                time.sleep(_REST_S)
            parts = encoded(change)
            table.apply([change], file.write(parts), sum(map(len, parts)))
        return table

    def _new_table(self) -> LiveTable:
        return LiveTable(self.tokens, _PIECE_BYTES) if self.in_memory else LiveTable(self.tokens)

    def _next_size(self, table: int, least: int) -> int:
        """Return the bytes of the next file, with a table and at ``least`` another record."""
        size = self._file.size
        if not self.in_memory:
            size = max(size, min(4 * size, _USUAL))
            return max(size, table * (_TABLES if table <= _LARGE_TABLE else _TABLES_IF_LARGE))
        if size < _GROWS_BELOW * least:
            size = max(size, min(4 * size, _USUAL_IN_MEMORY))
        return max(size, table * _TABLES_IN_MEMORY)

    def _copy(self, target: Path) -> str:
        """Write a copy with no room for commits; return the fault, "" if there is none."""
        try:
            target.unlink(missing_ok=True)  # an unfinished copy
            with writing(target), JournalFile.new(target, self._owner) as file:
                self._written(file)
                file.publish(file.at, file.at, durable=False)
            file.sync_name()
            file.close()
        except (ValueError, OSError) as error:
            # ``writing`` has named the file where the disk is full.
            full = isinstance(error, OSError) and error.errno in FULL and error.strerror
            return full or f"{target}: {error}"
        return ""

    def _refuse(self, copies: list[tuple[Path, Copied]], fault: str) -> None:
        """Report that these copies, and those that wait for the thread, can not be made now."""
        with self._changed:
            copies += self._copies
            self._copies.clear()
        why = [
            partial(copied, f"no copy to {to} can be made now: {fault}") for to, copied in copies
        ]
        copies.clear()
        self._hand_out(why)

    def _hand_out(self, tickets: Iterable[Ticket]) -> None:
        with self._changed:
            self._done += tickets
        if self._wake_fd >= 0:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake_fd, 1)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Give errors the file's name and a remedy."""
        path = self.path
        try:
            yield
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            where = room(path, MORE_SHARED_MEMORY) if self.in_memory else room(path)
            more = f"; {where}" if error.errno in FULL else ""
            raise _Passing(f"{path}: {error.strerror}{more}") from error
        except (ValueError, struct.error) as error:
            remedy = (
                "" if self.in_memory else f": resume from a snapshot; or, {beginning_anew(path)}"
            )
            raise JournalDamaged(
                f"{path} is damaged: {error}.  Nothing is guessed{remedy}"
            ) from error


class _Passing(ServerError):
    """An error that is over when an operator makes room."""
