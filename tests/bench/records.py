"""A writer of TFRecord files of tf.train.Example that costs what writing costs.

frame    length uint64 ─ masked crc ─ message ─ masked crc
message  features { name: int64_list | float_list (packed) | bytes_list }
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import google_crc32c
import numpy as np

__all__ = ["example", "field", "frame", "varint", "write"]

Value = int | bytes | np.ndarray


def example(values: Mapping[str, Value]) -> bytes:
    """A message: an int is an int64, bytes are a string, a float32 array is all its floats."""
    entries = b""
    for name, value in values.items():
        feature = _feature(value)
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def _feature(value: Value) -> bytes:
    if isinstance(value, bytes):
        return field(1, field(1, value))
    if isinstance(value, np.ndarray):
        return field(2, field(1, value.astype("<f4", copy=False).tobytes()))
    return field(3, field(1, varint(value)))


def field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(message: bytes) -> bytes:
    head = struct.pack("<Q", len(message))
    return b"".join((head, _masked(head), message, _masked(message)))


def write(path: Path, messages: Iterable[bytes]) -> None:
    """A whole file, which has its name only when it is complete."""
    unfinished = path.with_suffix(".part")
    with open(unfinished, "wb", buffering=1 << 20) as file:
        for message in messages:
            file.write(frame(message))
    unfinished.rename(path)
