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

__all__ = ["example", "write"]

Value = int | bytes | np.ndarray


def example(values: Mapping[str, Value]) -> bytes:
    """A message: an int is an int64, bytes are a string, a float32 array is all its floats."""
    entries = b""
    for name, value in values.items():
        feature = _feature(value)
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, entries)


def _feature(value: Value) -> bytes:
    if isinstance(value, bytes):
        return _field(1, _field(1, value))
    if isinstance(value, np.ndarray):
        return _field(2, _field(1, value.astype("<f4", copy=False).tobytes()))
    return _field(3, _field(1, _varint(value)))


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    if value < 0:
        raise ValueError(f"value={value}: this writer knows no negative numbers; the least is 0")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def write(path: Path, messages: Iterable[bytes]) -> None:
    """A whole file, which has its name only when it is complete."""
    unfinished = path.with_suffix(".part")
    with open(unfinished, "wb", buffering=1 << 20) as file:
        for message in messages:
            head = struct.pack("<Q", len(message))
            file.writelines((head, _masked(head), message, _masked(message)))
    unfinished.rename(path)
