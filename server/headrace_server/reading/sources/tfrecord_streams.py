"""Frames of one file read forward, decompressed as they are wanted.

    file ─► 256 kB ─► inflate, member after member ─► at most 1 MB ─► frames

Memory holds the requested records and one block, never the whole file.  A file that ends or
breaks in the middle gives all earlier records, then the damage.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal

import numpy as np

from headrace_server.files.manifest import DataFile, open_stream

from .record_streams import Damaged
from .tfrecord_frames import FOOT, HEAD, MAX_RECORD_BYTES, length_is_sound

Compression = Literal["gzip", "zlib"] | None

_WINDOW_BITS: Final = {"gzip": 31, "zlib": 15}
_READ = 256 * 1024
_INFLATE = 1024 * 1024
_LENGTH = struct.Struct("<Q")


def detect(file: DataFile) -> Compression:
    """Return the compression of a file, by its first bytes, or by its name where it has too few."""
    with open_stream(file) as stream:
        head = stream.read(HEAD)
    if len(head) == HEAD and length_is_sound(head):
        return None
    if head[:3] == b"\x1f\x8b\x08":
        return "gzip"
    if len(head) >= 2 and head[0] & 0x8F == 8 and int.from_bytes(head[:2]) % 31 == 0:
        return "zlib"
    name = file.path.lower()
    if name.endswith((".gz", ".gzip")):
        return "gzip"
    return "zlib" if name.endswith((".zlib", ".zz")) else None


@dataclass(frozen=True, slots=True)
class Frames:
    """Records back to back in one buffer, and where the payloads lie."""

    data: np.ndarray  # uint8
    starts: np.ndarray  # int64 [n]
    lengths: np.ndarray  # int64 [n]
    ended: bool  # the stream ends here, undamaged
    damage: Damaged | None  # the fault where these records end


class FrameStream:
    """The frames of one file, from a byte of its decompressed content on."""

    def __init__(self, file: DataFile, compression: Compression, verify: bool) -> None:
        self._offset = 0
        self._verify = verify
        self._stream = open_stream(file)
        self._blocks = _inflated(file, self._stream, compression)
        self._pending = bytearray()  # decompressed, from the offset on
        self._broken: Damaged | None = None

    def close(self) -> None:
        self._stream.close()

    def seek(self, offset: int) -> bool:
        """Goes forward to a byte; False where the stream ends before it."""
        while self._offset + len(self._pending) < offset:
            self._offset += len(self._pending)
            self._pending.clear()
            if not self._fill():
                return False
        del self._pending[: offset - self._offset]
        self._offset = offset
        return True

    def read(self, limit: int) -> Frames:
        """Return at most ``limit`` records; seek to the next record before the next call."""
        bounds = [0]
        damage: Damaged | None = None
        try:
            while len(bounds) <= limit and self._has(bounds[-1], 1):
                bounds.append(self._frame_end(bounds[-1]))
            ended = not self._has(bounds[-1], 1)
        except Damaged as error:
            damage, ended = error, False
        whole = np.array(bounds, np.int64)
        data = np.frombuffer(bytes(memoryview(self._pending)[: bounds[-1]]), np.uint8)
        return Frames(data, whole[:-1] + HEAD, np.diff(whole) - (HEAD + FOOT), ended, damage)

    def _has(self, start: int, size: int) -> bool:
        """Return whether ``size`` bytes from ``start`` on are pending, after reads as needed."""
        while len(self._pending) < start + size:
            if not self._fill():
                return False
        return True

    def _frame_end(self, start: int) -> int:
        if not self._has(start, HEAD):
            raise self._cut_off(start)
        header = bytes(self._pending[start : start + HEAD])
        length: int = _LENGTH.unpack_from(header)[0]
        if length > MAX_RECORD_BYTES or (self._verify and not length_is_sound(header)):
            raise Damaged("the length of the record, or its checksum, is wrong")
        if not self._has(start, HEAD + length + FOOT):
            raise self._cut_off(start)
        return start + HEAD + length + FOOT

    def _cut_off(self, start: int) -> Damaged:
        end = self._offset + len(self._pending)
        begin = self._offset + start
        text = f"truncated at byte {end}: the frame that begins at byte {begin} is not complete"
        return Damaged(text, "truncated_file")

    def _fill(self) -> bool:
        """Read one more block; return False at the end.  It raises Damaged at each call."""
        if self._broken is not None:
            raise self._broken
        try:
            block = next(self._blocks, b"")
        except Damaged as error:
            self._broken = error
            raise
        self._pending += block
        return bool(block)


def _inflated(file: DataFile, stream: BinaryIO, compression: Compression) -> Iterator[bytes]:
    """Yield the content of a file by blocks.  Damaged where it is damaged or cut off."""
    raw, inflater = b"", None
    while True:
        raw = raw or stream.read(_READ)
        at_end = not raw
        if compression == "gzip" and inflater is None:
            raw = raw.lstrip(b"\0")  # zeros may fill up the last block of a tape
        if inflater is None and not raw:
            if at_end:
                return
            continue
        if compression is None:
            yield raw
            raw = b""
            continue
        inflater = inflater or zlib.decompressobj(_WINDOW_BITS[compression])
        try:
            block = inflater.decompress(raw, _INFLATE)  # at the end: the rest in the inflater
        except zlib.error as error:
            raise Damaged(f"the {compression} data is damaged ({error})") from None
        if inflater.eof:  # of this member; another may follow
            raw, inflater = inflater.unused_data, None
        else:
            raw = inflater.unconsumed_tail
        if block:
            yield block
        elif at_end and inflater is not None:
            text = f"truncated at byte {file.size}: the {compression} data is not complete"
            raise Damaged(text, "truncated_file")
