"""Append-only files of frames: the record of a feed's flight, never more than a bound of it.

    file:  frame, frame, …        frame:  bytes (u32) | crc32 (u32) | msgpack
           └ header: what the file is     records are lists of their fields, integers are packed

One process writes a file, and a new process begins a new one, so only the end of a file can be torn
(by ``kill -9`` in the midst of a write, by a power cut): reading stops at the first frame that is
not whole.  Nothing is synced.  A writer holds its file's flock; of the others the oldest are
removed when all together exceed the bound.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np

from headrace_proto.codec import fields_of

from ..files.durable_file import held, remove_oldest, writing

FORMAT: Final = 4
SUFFIX: Final = ".flight"
_HEAD: Final = struct.Struct("<II")
#: All files that are being written together take this part of the bound.
_OPEN_SHARE: Final = 4
_LEAST_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 1 << 24
#: Advice in the error of a full disk.
_REMEDY: Final = "make room there, or set record_bytes lower, or record='off'"


class FlightFile:
    """The file that one process appends to; it begins another when it is full.

    ``name`` is of one life of one process; ``writers`` is the number of such processes.
    """

    def __init__(self, directory: Path, name: str, limit_bytes: int, writers: int) -> None:
        self._directory = directory
        self._name = name
        self._limit = limit_bytes
        self._file_bytes = min(
            max(limit_bytes // (_OPEN_SHARE * writers), _LEAST_BYTES), _MOST_BYTES
        )
        self._path = directory  # the present file
        self._count = 0
        self._fd = -1
        self._size = 0  # of the file
        self._header = b""  # of a file without frames, written with the first of them

    def fits(self, nbytes: int) -> bool:
        """Return whether ``nbytes`` more bytes fit into the present file."""
        return self._fd >= 0 and self._size + nbytes <= self._file_bytes

    def begin(self, header: bytes, nbytes: int) -> None:
        """Begin the next file with a header; it has room for at least ``nbytes`` more."""
        self.close()
        if nbytes > self._limit // 2:
            text = f"{nbytes} bytes; record_bytes={self._limit} bounds all that is kept"
            raise ValueError(f"a frame is too large: {text}")
        path = self._path = self._directory / f"{self._name}-{self._count:06d}{SUFFIX}"
        with writing(path, nbytes, _REMEDY):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._sweep(max(self._file_bytes, nbytes))
            self._count += 1
            self._fd = held(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        self._size = 0
        self._header = header

    def write(self, data: bytes) -> None:
        """Append whole frames.  OSError where it could not; the file then ends before them."""
        if self._header:
            data, self._header = self._header + data, b""
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._size)
                raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes could be written")
        except OSError:
            with writing(self._path, len(data), _REMEDY):
                raise
        self._size += written

    def _sweep(self, wanted: int) -> None:
        """Remove the oldest files that no process writes, until ``wanted`` bytes are free."""
        closed_bytes = self._limit - self._limit // _OPEN_SHARE
        remove_oldest(self._directory.glob(f"*{SUFFIX}"), closed_bytes - wanted)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def frame(value: Any) -> bytes:
    """Return the bytes of a frame."""
    # A file's name need not be UTF-8.
    data: bytes = msgpack.packb(value, default=_plain, unicode_errors="surrogateescape")
    return _HEAD.pack(len(data), zlib.crc32(data)) + data


def _plain(value: Any) -> Sequence[Any]:
    """Return integers packed, and a record as its fields."""
    if isinstance(value, slice):
        return value.start, 1, value.stop - value.start
    return packed(value) if isinstance(value, np.ndarray) else fields_of(value)


def frames(path: Path, at: int = 0) -> Iterator[tuple[int, Any]]:
    """Give the whole frames of a file in order, from one on: where each lies, and its value.

    The file may grow meanwhile, or be gone.
    """
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as stream:
        stream.seek(at)
        upto = os.fstat(stream.fileno()).st_size
        while len(head := stream.read(_HEAD.size)) == _HEAD.size:
            size, crc = _HEAD.unpack(head)
            data = stream.read(size) if size <= upto else b""
            if not size or len(data) < size or zlib.crc32(data) != crc:
                return
            yield at, msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape")
            at += len(head) + size


def frame_at(path: Path, at: int) -> Any:
    """Return the value of one frame; None where it is there no more."""
    _, value = next(frames(path, at), (at, None))
    return value


def packed(numbers: np.ndarray) -> list[Any]:
    """Pack integers: an even progression as its first, step and count, else the bytes."""
    n = len(numbers)
    if not n:
        return [0, 0, 0]
    first = int(numbers[0])
    step = int(numbers[1]) - first if n > 1 else 0
    if int(numbers[-1]) == first + step * (n - 1) and (numbers[1:] - numbers[:-1] == step).all():
        return [first, step, n]
    low, high = int(np.minimum.reduce(numbers)), int(np.maximum.reduce(numbers))
    bits, size = max(high, -1 - low).bit_length() + (low < 0), 1
    while 8 * size < bits:
        size *= 2
    kind = f"<{'i' if low < 0 else 'u'}{size}"
    return [kind, numbers.astype(kind).tobytes()]


def packed_rows(table: np.ndarray) -> list[list[Any]]:
    """Pack each row of a table of int64: the bytes of 8 or 16 bits for a number, else of all 64.

    For a batch of segments that takes a third of the time of ``packed`` row by row.
    """
    highest = np.maximum.reduce(table.view(np.uint64), 1, initial=0).tolist()
    narrow, size = table.astype("<u2").tobytes(), 2 * table.shape[1]
    rows: list[list[Any]] = []
    for row, high in enumerate(highest):
        at = row * size
        if high < 1 << 8:
            rows.append(["<u1", narrow[at : at + size : 2]])
        elif high < 1 << 16:
            rows.append(["<u2", narrow[at : at + size]])
        else:
            rows.append(["<i8", table[row].astype("<i8").tobytes()])
    return rows


def unpacked(plain: list[Any]) -> np.ndarray:
    """Unpack integers of ``packed``, as int64."""
    if len(plain) == 3:
        first, step, n = plain
        even: np.ndarray = first + step * np.arange(n, dtype=np.int64)
        return even
    kind, data = plain
    return np.frombuffer(data, np.dtype(kind)).astype(np.int64)
