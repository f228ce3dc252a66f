"""The files of one partition of a log, and the threads that write them.

    0000000007.log    the groups of its records, each as one record of a journal's file
    0000000008.log    the next one, with all its room: it is made while the one before is filled

    write(group) ─► [ the file; with "power" by the thread, and synced ] ─► stored()

durability "power"    a group is on the disk before it counts as stored
           "process"  a group outlives any process; power loss may take the last seconds back.  It
                      is written at once, unless the thread has older ones, or a file to wait for

While the disk is full, groups wait: none counts as stored, and none is lost.  Files are opened
relative to their directory, and no link is followed.  A file of an earlier life is read as a whole
before its first use, so that damage to it is found.  The last position before each group is in it,
so a log whose middle is missing is told apart from one whose end was cut short.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from headrace_proto.errors import ServerError

from ..files.durable_file import FULL, room
from ..files.journal_file import Buffer, JournalFile
from .ledger import Group
from .records import Copy

logger = logging.getLogger("headrace.log")

_NAME = re.compile(r"(\d{10})\.log")
#: Files that are mapped at once, beside those that are being written.
_MOST_MAPPED = 64
#: Parts of a group are joined up to this size: more parts cost more than the copy.
_JOINED = 1 << 20
_RETRY_S = 0.25
_CLOSE_S = 10.0

Read = Callable[[int, int], memoryview]


class LogDamaged(ServerError):
    """The files of a log can not be trusted."""


class LogFiles:
    def __init__(
        self, directory: Path, owner: str, durability: str, file_bytes: int, wake_fd: int = -1
    ) -> None:
        """Open the directory of the partition that ``owner`` names, or make it."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory, self._owner, self._size = directory, owner, file_bytes
        self.durable = durability == "power"
        self._fd = os.open(directory, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._wake_fd = wake_fd
        self._mapped: dict[int, tuple[Read, int]] = {}  # with the end of what is sound
        self._file: JournalFile | None = None  # that is being written …
        self._number = 0  # … and its number
        self._next: Future[tuple[JournalFile, Read]] | None = None
        self._maker = ThreadPoolExecutor(1, "headrace-log-room")
        self._writer = ThreadPoolExecutor(1, "headrace-log")
        self._closing = threading.Event()
        self._given = self._written = self._taken = 0  # groups
        self._failure: BaseException | None = None
        self.fault = ""  # why groups wait at the moment

    # Reading

    def numbers(self) -> list[int]:
        """Return the numbers of all files, the least first."""
        found = (_NAME.fullmatch(name) for name in os.listdir(self._fd))
        return sorted(int(name[1]) for name in found if name is not None)

    def groups(self, number: int) -> list[tuple[int, memoryview]]:
        """Return place and bytes of each group of a file of an earlier life."""
        with self._named(number):
            file, records = JournalFile.open(self._path(number), self.durable, self._title(number))
            try:
                read = file.views()
                self._mapped[number] = read, file.at
            finally:
                file.close()
        return [(record.place, read(record.place, record.nbytes)) for record in records]

    def read(self, number: int, place: int, nbytes: int) -> memoryview:
        """Return bytes of a file, not copied."""
        if number not in self._mapped:
            if len(self._mapped) >= _MOST_MAPPED:
                del self._mapped[min(self._mapped)]
            self.groups(number)
        read, end = self._mapped[number]
        if place + nbytes > end:
            with self._named(number):
                raise ValueError(
                    f"bytes {place} to {place + nbytes} are not there, it ends at {end}"
                )
        return read(place, nbytes)

    def resume(self, number: int) -> bool:
        """Go on in a file of an earlier life; False where that is not possible."""
        with self._named(number):
            file, _ = JournalFile.open(self._path(number), self.durable, self._title(number))
            if file.size != self._size:
                file.close()
                return False
        self._file, self._number, self._mapped[number] = file, number, (file.views(), self._size)
        self._next = self._maker.submit(self._make, number + 1)
        return True

    # Writing

    def write(self, group: Group) -> None:
        """Write a group soon."""
        parts = [self.read(*part) if isinstance(part, Copy) else part for part in group.parts]
        if sum(map(len, parts)) <= _JOINED:
            parts = [b"".join(parts)]  # type: ignore[arg-type]
        if not self.durable and self._given == self._written and self._is_ready(group.file):
            with contextlib.suppress(OSError):
                self._append(group.file, group.place, parts)
                self._given += 1
                self._written += 1
                return
        self._given += 1
        self._writer.submit(self._write, group.file, group.place, parts)

    def stored(self) -> int:
        """Return how many more groups are stored; ServerError where none will be any more."""
        if self._failure is not None:
            raise ServerError(f"{self.directory}: {self._failure}") from self._failure
        found, self._taken = self._written - self._taken, self._written
        return found

    def delete(self, number: int) -> None:
        self._mapped.pop(number, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(number).name, dir_fd=self._fd)

    def close(self) -> None:
        """Write what was given, trying once more where the disk is full, and close the file."""
        if self._closing.is_set():
            return
        self._closing.set()
        try:
            self._writer.submit(self._end).result(_CLOSE_S)
        except TimeoutError:
            logger.error("%s: the disk has not answered for %g s", self.directory, _CLOSE_S)
        self._writer.shutdown(wait=False)
        self._maker.shutdown(wait=False)
        os.close(self._fd)

    def _is_ready(self, number: int) -> bool:
        return number == self._number or (self._next is not None and self._next.done())

    def _append(self, number: int, place: int, parts: list[Buffer]) -> None:
        if number != self._number:
            self._roll(number)
        assert self._file is not None
        at = self._file.write(parts)
        if at != place:
            raise ValueError(f"a group lies at byte {at} of file {number}, and not at {place}")

    def _roll(self, number: int) -> None:
        """Go on in the next file."""
        making = self._next or self._maker.submit(self._make, number)
        self._next = None  # if it fails, it is made anew
        file, read = making.result()
        if self._file is not None:
            self._file.close(mark=self.durable)
        self._file, self._number, self._mapped[number] = file, number, (read, self._size)
        self._next = self._maker.submit(self._make, number + 1)

    def _make(self, number: int) -> tuple[JournalFile, Read]:
        """Make a file with all its room."""
        self.delete(number)  # an earlier life had made it, and not begun it
        with JournalFile.new(self._path(number), self._title(number)) as file:
            file.publish(self._size, self._size, self.durable)
        file.sync_name()
        return file, file.views()

    def _write(self, number: int, place: int, parts: list[Buffer]) -> None:
        """Write a group, in the thread."""
        while self._failure is None:
            last = self._closing.is_set()
            try:
                self._append(number, place, parts)
                self._written, self.fault = self._written + 1, ""
                break
            except OSError as error:
                full = error.errno in FULL
                self.fault = f"{self.directory}: {error.strerror}"
                self.fault += f"; {room(self.directory)}" if full else ""
                if last:
                    self._failure = ServerError(f"closed with records unsaved: {self.fault}")
                logger.error("%s; a log waits until that is over", self.fault)
                self._closing.wait(_RETRY_S)
            except BaseException as error:
                self._failure = error
        if self._wake_fd >= 0:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake_fd, 1)

    def _end(self) -> None:
        if self._file is not None:
            self._file.close(mark=True)
        if self._next is not None:
            with contextlib.suppress(OSError):
                self._next.result()[0].close()

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:010}.log"

    def _title(self, number: int) -> str:
        return f"{self._owner}, file {number}"

    @contextlib.contextmanager
    def _named(self, number: int) -> Iterator[None]:
        path = self._path(number)
        try:
            yield
        except (ValueError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise LogDamaged(
                f"{path} is damaged: {why}.  Nothing is guessed: put the file back as it was, or "
                f"move {self.directory} aside to begin the log anew, and its feeds with it"
            ) from error
