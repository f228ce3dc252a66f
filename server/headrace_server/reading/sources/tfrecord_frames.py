"""The framing of a TFRecord file: where each record lies, and its checksums.

    u64 length | u32 crc(length) | payload | u32 crc(payload)        little-endian, crc32c, masked

A file is walked once, a large one of small records in lanes (``tfrecord_lanes``): the walk checks
lengths and their checksums, and the result is one array of frame bounds.  A wrong length can not be
stepped over (nothing in the format marks the next frame), so it ends the usable part of the file:
the index then names the damage instead of raising, and the records before it stay readable.
Payload checksums are checked when a record is first read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from headrace_server.files.extras import require
from headrace_server.reading.buffer_ranges import window

from .tfrecord_lanes import walk_in_lanes

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
#: Records walked one by one before others are walked in lanes; more after lanes found nothing.
_PATIENCE = 1024
#: Size of a payload from which on a call per record costs little beside its checksum.
_BIG_PAYLOAD = 4096


class FrameIndex(NamedTuple):
    """Frame i is ``bounds[i]`` … ``bounds[i + 1]``; at the last bound the damage begins, if any."""

    bounds: np.ndarray  # int64 [n + 1]
    damage: int = 0  # 0, CORRUPT or TRUNCATED


def length_is_sound(header: bytes) -> bool:
    """Return whether the first 12 bytes of a frame hold a length with its checksum."""
    length, crc = _HEADER.unpack(header)
    return bool(crc == _masked(crc32c.value(header[:8])) and length <= MAX_RECORD_BYTES)


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def scan(
    data: np.ndarray, verify: bool = True, progress: Callable[[int], None] = lambda done: None
) -> FrameIndex:
    """Return the frames of a whole file (uint8).  ``verify=False`` trusts every length that fits.

    ``progress`` is called now and then with the number of bytes scanned.
    """
    view, size = data.data, data.size
    unpack = _HEADER.unpack_from
    parts: list[np.ndarray] = []
    fresh: list[int] = []
    known: dict[int, int] = {}
    position, damage, patience = 0, 0, _PATIENCE
    while size - position >= HEAD:
        length, crc = unpack(view, position)
        if verify and known.get(length) != crc:
            if not length_is_sound(bytes(view[position : position + HEAD])):
                damage = CORRUPT
                break
            if len(known) >= _KNOWN_LENGTHS:
                known.clear()
            known[length] = crc
        stop = position + length + HEAD + FOOT
        if stop > size:
            # The file was cut off, or the length itself is wrong.
            sound = length_is_sound(bytes(view[position : position + HEAD]))
            damage = TRUNCATED if sound else CORRUPT
            break
        fresh.append(position)
        position = stop
        if len(fresh) >= patience:
            frames, after = walk_in_lanes(data, position, known, (position - fresh[0]) / len(fresh))
            parts += [np.array(fresh, np.int64), frames]
            fresh = []
            position = after
            patience = _PATIENCE if frames.size > patience else min(2 * patience, _FLUSH)
            progress(position)
    else:
        damage = TRUNCATED if position < size else 0
    parts.append(np.array([*fresh, position], np.int64))
    return FrameIndex(np.concatenate(parts), damage)


def bad_payloads(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the rows whose payload does not match its checksum."""
    expected = _stored(data, starts, lengths)
    distinct = np.unique(lengths)
    if distinct.size * 16 > starts.size or distinct[-1] >= _BIG_PAYLOAD:
        found = np.fromiter(sound(data, starts, lengths), bool, starts.size)
        return np.flatnonzero(~found)
    got = np.zeros(starts.size, np.uint32)
    for length in distinct.tolist():
        if length:  # the checksum of no bytes is 0
            rows = np.flatnonzero(lengths == length)
            payloads = window(data, length)[starts[rows]].view(np.uint8).reshape(-1, length)
            got[rows] = list(map(crc32c.value, payloads))
    return np.flatnonzero(got != expected)


def sound(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Iterator[bool]:
    """Yield for each payload whether it matches its checksum; each is read when it is asked for."""
    expected, stops, value = _stored(data, starts, lengths), starts + lengths, crc32c.value
    places = zip(starts.tolist(), stops.tolist(), expected.tolist(), strict=True)
    return (value(data[start:stop]) == stored for start, stop, stored in places)


def _stored(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the checksums that the file has of payloads, unmasked."""
    stored = window(data, FOOT)[starts + lengths].view("<u4") - np.uint32(_MASK_DELTA)
    unmasked: np.ndarray = (stored >> np.uint32(17)) | (stored << np.uint32(15))
    return unmasked
