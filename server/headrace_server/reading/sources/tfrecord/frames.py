"""The framing of a TFRecord file: where each record lies, and its checksums.

    u64 length | u32 crc(length) | payload | u32 crc(payload)        little-endian, crc32c, masked

A file is walked once: the walk checks lengths and their checksums, and the result is one array of
frame bounds.  A wrong length can not be stepped over (nothing in the format marks the next
frame), so it ends the usable part of the file: the index then names the damage instead of
raising, and the records before it stay readable.  Payload checksums are checked when a record is
first read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from ....files.extras import require
from ...columns import window

crc32c = require("google_crc32c", "server", "read_tfrecord")

HEAD: Final = 12
FOOT: Final = 4
#: Maximum length of a protobuf message; a greater length is damage, even with a right checksum.
MAX_RECORD_BYTES: Final = 2**31 - 1

CORRUPT: Final = 1
TRUNCATED: Final = 2

_HEADER = struct.Struct("<QI")
_MASK_DELTA: Final = 0xA282EAD8
#: Maximum number of sound header values remembered, to skip their checksums.
_KNOWN_LENGTHS = 65536
#: Positions are moved from a list (36 bytes each) to an array (8 bytes each) this many at a time.
_FLUSH = 65536
#: Size of a payload from which on a call per record costs little beside its checksum.
_BIG_PAYLOAD = 4096


def length_is_sound(header: bytes) -> bool:
    """Return whether the first 12 bytes of a frame hold a length with its checksum."""
    length, crc = _HEADER.unpack(header)
    return bool(crc == _masked(crc32c.value(header[:8])) and length <= MAX_RECORD_BYTES)


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def scan(
    size: int,
    read: Callable[[int], memoryview],
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Return the bounds of the frames of a whole file, and its damage: 0, or the number.

    Frame i is bound i … bound i + 1; at the last bound the damage begins, if any.  ``read`` returns
    what follows a byte, HEAD bytes at least where the file has them.  ``progress`` is called now
    and then with the number of bytes scanned.
    """
    view, begin = read(0), 0
    unpack = _HEADER.unpack_from
    parts: list[np.ndarray] = []
    fresh: list[int] = []
    known: dict[int, int] = {}
    position, damage = 0, 0
    while size - position >= HEAD:
        at = position - begin
        if at + HEAD > len(view):
            view, begin, at = read(position), position, 0
        length, crc = unpack(view, at)
        if known.get(length) != crc:
            if not length_is_sound(bytes(view[at : at + HEAD])):
                damage = CORRUPT
                break
            if len(known) >= _KNOWN_LENGTHS:
                known.clear()
            known[length] = crc
        stop = position + length + HEAD + FOOT
        if stop > size:
            damage = TRUNCATED
            break
        fresh.append(position)
        position = stop
        if len(fresh) == _FLUSH:
            parts.append(np.array(fresh, np.int64))
            fresh.clear()
            progress(position)
    else:
        damage = TRUNCATED if position < size else 0
    return np.concatenate([*parts, np.array([*fresh, position, damage], np.int64)])


def bad_payloads(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the rows whose payload does not match its checksum."""
    stored = window(data, FOOT)[starts + lengths].view("<u4") - np.uint32(_MASK_DELTA)
    expected = (stored >> np.uint32(17)) | (stored << np.uint32(15))
    distinct = np.unique(lengths)
    if distinct.size * 16 > starts.size or distinct[-1] >= _BIG_PAYLOAD:
        payloads = map(slice, starts.tolist(), (starts + lengths).tolist())
        values = map(crc32c.value, map(data.__getitem__, payloads))
        got = np.fromiter(values, np.uint32, starts.size)
        return np.flatnonzero(got != expected)
    got = np.zeros(starts.size, np.uint32)
    for length in distinct.tolist():
        if length:  # the checksum of no bytes is 0
            rows = np.flatnonzero(lengths == length)
            payloads = window(data, length)[starts[rows]].view(np.uint8).reshape(-1, length)
            got[rows] = list(map(crc32c.value, payloads))
    return np.flatnonzero(got != expected)
