"""Indexes of files: made once, and valid as long as the file is the same.

    <directory>/<hash of path, size, stamp, kind>.idx      header | array | array | …
                                              .lock        held while one process builds

Where several processes want the same entry, one builds it and the others wait for its lock, which
the kernel frees should the builder die.  Both report progress now and then, for a file may be
large.  An entry appears whole (it is written beside and renamed) and carries checksums: one that is
cut off, altered or of another file is built again, never used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .durable_file import writing
from .manifest import DataFile
from .remote_copies import RemoteCopies

logger = logging.getLogger("headrace.data")

Build = Callable[[], Mapping[str, np.ndarray]]

_MAGIC = b"HRINDEX1"
_PREFIX = struct.Struct("<8sII")  # magic, header bytes, crc32 of the header
_MAX_HEADER = 1 << 20
_ALIGN = 64
#: How often is looked whether another process has made an entry.
_LOOK_S = 0.02
#: Least time of making an index that is logged.
_LONG_S = 5.0


@dataclass(eq=False)
class IndexCache:
    """Arrays per (file, kind): on disk under a directory, or in memory where that is None.

    ``progress`` is called with the number of bytes of a file that were scanned, at the end all of
    them, and with 0 while another process builds the entry.  ``read_only``: entries that the
    directory lacks are made in memory.  ``copies`` are those of remote files.
    """

    directory: str | None
    progress: Callable[[DataFile, int], None] = lambda file, done: None
    read_only: bool = False
    copies: RemoteCopies | None = None

    def __post_init__(self) -> None:
        self._kept: dict[str, dict[str, np.ndarray]] = {}

    def progress_of(self, file: DataFile) -> Callable[[int], None]:
        """Return the function that a builder reports the number of scanned bytes to."""
        return partial(self.progress, file)

    def get(self, file: DataFile, kind: str, build: Build) -> dict[str, np.ndarray]:
        """Return the read-only arrays of an entry; ``build`` makes them where there is none yet."""
        identity = [*file.to_plain(), kind]
        name = hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()
        if self.directory is None:
            return self._in_memory(name, file, build)
        path = Path(self.directory) / f"{name}.idx"
        found = _load(path, identity)
        if found is not None:
            return found
        if self.read_only:
            return self._in_memory(name, file, build)
        try:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_suffix(".lock"), lambda: self.progress(file, 0)):
                found = _load(path, identity)  # by the process that held the lock before
                if found is None:
                    arrays = self._in_memory(name, file, build)
                    nbytes = sum(array.nbytes for array in arrays.values())
                    with writing(path, nbytes):
                        _store(path, identity, arrays)
                    found = _load(path, identity)
        except OSError as error:
            logger.warning("index of %s is kept in memory only: %s", file.path, error)
            return self._in_memory(name, file, build)
        if found is None:
            raise OSError(f"{path} was written and can not be read back; is another program there?")
        self._kept.pop(name, None)
        return found

    def _in_memory(self, name: str, file: DataFile, build: Build) -> dict[str, np.ndarray]:
        if name not in self._kept:
            began = time.monotonic()
            arrays = {key: np.ascontiguousarray(array) for key, array in build().items()}
            seconds = time.monotonic() - began
            if seconds > _LONG_S:
                logger.info("indexed %s (%d bytes) in %.0f s", file.path, file.size, seconds)
            self.progress(file, file.size)
            for array in arrays.values():
                array.flags.writeable = False
            self._kept[name] = arrays
        return self._kept[name]


@contextmanager
def _locked(path: Path, waits: Callable[[], None]) -> Iterator[None]:
    """Holds the file's flock.  The file stays: removing it would let two processes hold 'it'.

    ``waits`` is called again and again while another process has it.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waits()
                time.sleep(_LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _raw(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _store(path: Path, identity: list[Any], arrays: Mapping[str, np.ndarray]) -> None:
    entries = [
        [name, array.dtype.str, list(array.shape), zlib.crc32(_raw(array))]
        for name, array in arrays.items()
    ]
    header = json.dumps({"of": identity, "arrays": entries}).encode()
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(_PREFIX.pack(_MAGIC, len(header), zlib.crc32(header)))
            stream.write(header)
            for array in arrays.values():
                stream.write(bytes(_padded(stream.tell()) - stream.tell()))
                stream.write(_raw(array))
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _load(path: Path, identity: list[Any]) -> dict[str, np.ndarray] | None:
    """Return the arrays of an entry, mapped; None where it is missing or is not sound."""
    try:
        with open(path, "rb") as stream:
            magic, size, crc = _PREFIX.unpack(stream.read(_PREFIX.size))
            header = stream.read(min(size, _MAX_HEADER))
        if magic != _MAGIC or zlib.crc32(header) != crc:
            raise ValueError("its header is damaged")
        described = json.loads(header)
        if described["of"] != identity:
            raise ValueError("it belongs to another file")
        return _arrays(path, _PREFIX.size + size, described["arrays"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, struct.error) as error:
        logger.warning("index %s is built again: %s", path, error)
        return None


def _arrays(path: Path, position: int, entries: list[Any]) -> dict[str, np.ndarray]:
    mapped = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    arrays = {}
    for name, dtype, shape, crc in entries:
        kind = np.dtype(dtype)
        position = _padded(position)
        stop = position + kind.itemsize * int(np.prod(shape, dtype=np.int64))
        if stop > mapped.size:
            raise ValueError(f"it is cut off at byte {mapped.size}")
        raw = mapped[position:stop]
        if zlib.crc32(raw.data) != crc:
            raise ValueError(f"its array {name!r} is damaged")
        arrays[name] = raw.view(kind).reshape(shape)
        position = stop
    return arrays
