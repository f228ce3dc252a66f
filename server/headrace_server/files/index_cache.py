"""Indexes of files: made once, and valid as long as the file is the same.

    <directory>/<hash of path, size, stamp, kind>.idx      integers | checksum
                                              .lock        held while one process builds

Where several processes want the same entry, one builds it and the others wait for its lock, which
the kernel frees should the builder die.  Both report progress now and then, for a file may be
large.  An entry appears whole (it is written beside and renamed), and its checksum is that of the
file's identity and the integers: one that is cut off, altered or of another file is built again,
never used.

A file may have changed although its size and stamp are the same.  Its reader compares a stored
entry with the file at some places, and one that does not fit is an error: a feed may have read the
earlier content.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from headrace_proto.errors import DataError

from .durable_file import locked, opening, writing
from .manifest import DataFile
from .mapped_files import mapped_path

logger = logging.getLogger("headrace.data")

#: Part of the identity of an entry: entries of another format are not found.
_FORMAT = "HRINDEX3"
#: Maximum number of places where a stored entry is compared with its file.
_PLACES = 64
#: Least time of making an index that is logged.
_LONG_S = 5.0


@dataclass(eq=False)
class IndexCache:
    """Integers per (file, kind): on disk under a directory, or in memory where that is None.

    ``progress`` is called with the number of bytes of a file that were scanned, at the end all of
    them, and with 0 while another process builds the entry.
    """

    directory: str | None
    progress: Callable[[DataFile, int], None] = lambda file, done: None

    def __post_init__(self) -> None:
        self._kept: dict[str, np.ndarray] = {}

    def progress_of(self, file: DataFile) -> Callable[[int], None]:
        """Return the function that a builder reports the number of scanned bytes to."""
        return partial(self.progress, file)

    def find(self, file: DataFile, kind: str) -> np.ndarray | None:
        """Return an entry (int64 [n]), read-only, where it was made."""
        name = file.digest(kind, _FORMAT)
        path = None if self.directory is None else Path(self.directory) / f"{name}.idx"
        return self._kept.get(name) if path is None else _load(path, name)

    def get(
        self,
        file: DataFile,
        kind: str,
        build: Callable[[], np.ndarray],
        fits: Callable[[np.ndarray], bool] = lambda stored: True,
    ) -> np.ndarray:
        """Return an entry (int64 [n]), read-only; ``build`` makes it where there is none yet.

        ``fits`` compares a stored entry with the file.  DataError where it returns False.
        """
        name = file.digest(kind, _FORMAT)
        path = None if self.directory is None else Path(self.directory) / f"{name}.idx"
        if path is not None and (found := _load(path, name)) is not None:
            if not fits(found):
                raise DataError(
                    f"{file.path} has changed, though its size ({file.size} bytes) and its "
                    f"{file.version} are those of its index: records do not lie where {path} says. "
                    "Give it another time (touch), so that feeds which have read it are refused"
                )
            return found
        if path is None:
            return self._in_memory(name, file, build)
        try:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            waits = partial(self.progress, file, 0)
            with opening(path), locked(path.with_suffix(".lock"), waits):
                found = _load(path, name)  # by the process that held the lock before
                if found is None:
                    integers = self._in_memory(name, file, build)
                    with writing(path, integers.nbytes):
                        _store(path, name, integers)
                    found = _load(path, name)
        except OSError as error:
            logger.warning("index of %s is kept in memory only: %s", file.path, error)
            return self._in_memory(name, file, build)
        if found is None:
            raise OSError(f"{path} was written and can not be read back; is another program there?")
        self._kept.pop(name, None)
        return found

    def _in_memory(self, name: str, file: DataFile, build: Callable[[], np.ndarray]) -> np.ndarray:
        if name not in self._kept:
            began = time.monotonic()
            integers = np.ascontiguousarray(build(), np.int64)
            seconds = time.monotonic() - began
            if seconds > _LONG_S:
                logger.info("indexed %s (%d bytes) in %.0f s", file.path, file.size, seconds)
            self.progress(file, file.size)
            integers.flags.writeable = False
            self._kept[name] = integers
        return self._kept[name]


def some_of(count: int) -> list[int]:
    """Return numbers below ``count``, the first and the last among them, for a comparison."""
    return [*{*np.linspace(0, count - 1, min(count, _PLACES)).astype(int).tolist()}]


def _store(path: Path, name: str, integers: np.ndarray) -> None:
    part = path.with_suffix(".tmp")
    try:
        with open(part, "wb") as stream:
            stream.write(integers.data)
            stream.write(np.int64(_checksum(name, integers)).tobytes())
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _checksum(name: str, integers: np.ndarray) -> int:
    return zlib.crc32(integers.data, zlib.crc32(name.encode()))


def _load(path: Path, name: str) -> np.ndarray | None:
    """Return the integers of an entry, mapped; None where it is missing or is not sound."""
    try:
        stored = mapped_path(path).view(np.int64)
        if _checksum(name, stored[:-1]) == stored[-1]:
            return stored[:-1]
        error: Exception = ValueError("it is cut off, damaged, or of another file")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as fault:
        error = fault
    logger.warning("index %s is built again: %s", path, error)
    return None
