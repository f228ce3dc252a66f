"""Records as peers without a reader of their own get them: framing and parsing written by hand.

    frame    length ─ crc ─ message ─ crc             checksums are stepped over, not verified
    message  features { name: one list of values }    numbers are views of the message

A file is mapped, and where its records lie is found once: any batch can be made by its number, in
any process.  That is what a reader that knows its file can do at best; no pass reads it in vain.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import sequences, workloads

_HEAD = 12  # length and its checksum
_FOOT = 4

Batch = dict[str, np.ndarray]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def features(data: memoryview) -> dict[bytes, memoryview]:
    """Return the bytes of each list of values in one message."""
    found = {}
    _, at = _varint(data, 1)
    while at < len(data):
        size, at = _varint(data, at + 1)
        end = at + size
        size, name_at = _varint(data, at + 1)
        at = name_at + size
        name = bytes(data[name_at:at])
        for _ in range(3):  # Feature, list, field
            size, at = _varint(data, at + 1)
        found[name] = data[at : at + size]
        at = end
    return found


class Mapped:
    """Messages by number.  Each process maps the file for itself, when it first reads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._data: memoryview | None = None
        self._at: list[tuple[int, int]] = []
        at, data = 0, self._mapped()
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            self._at.append((at + _HEAD, at + _HEAD + size))
            at += _HEAD + size + _FOOT

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_data": None}

    def __len__(self) -> int:
        return len(self._at)

    def _mapped(self) -> memoryview:
        if self._data is None:
            with open(self._path, "rb") as file:
                self._data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        return self._data

    def messages(self, rows: Sequence[int]) -> list[memoryview]:
        data = self._mapped()
        return [data[start:end] for start, end in (self._at[row] for row in rows)]


class Stacked:
    """W1 in batches of examples one after the other, for ever."""

    def __init__(self, directory: Path) -> None:
        self._file = Mapped(workloads.w1_files(directory)[0])
        self._batches = len(self._file) // workloads.BATCH

    def batch(self, number: int) -> Batch:
        at = number % self._batches * workloads.BATCH
        found = [features(m) for m in self._file.messages(range(at, at + workloads.BATCH))]
        return {
            "label": np.array([_varint(one[b"label"], 0)[0] for one in found]),
            "x": np.stack([np.frombuffer(one[b"x"], np.float32) for one in found]),
            "id": np.array([bytes(one[b"id"]) for one in found]),
        }


class Padded:
    """W2 in batches of one bucket each, for ever; lengths are known before."""

    def __init__(self, directory: Path) -> None:
        self._file = Mapped(sequences.tfrecord_file(directory))
        self._batches: list[list[int]] = []
        waiting: dict[int, list[int]] = {}
        for row, message in enumerate(self._file.messages(range(len(self._file)))):
            length, _ = _varint(features(message)[b"length"], 0)
            bucket = int(np.searchsorted(sequences.BOUNDARIES, length, "right"))
            rows = waiting.setdefault(bucket, [])
            rows.append(row)
            if len(rows) == sequences.BATCH:
                self._batches.append(waiting.pop(bucket))

    def batch(self, number: int) -> Batch:
        rows = self._batches[number % len(self._batches)]
        found = [features(message) for message in self._file.messages(rows)]
        x = [np.frombuffer(one[b"x"], np.float32).reshape(-1, sequences.WIDTH) for one in found]
        padded = np.zeros((len(x), max(map(len, x)), sequences.WIDTH), np.float32)
        for row, steps in zip(padded, x, strict=True):
            row[: len(steps)] = steps
        return {
            "x": padded,
            "length": np.array([_varint(one[b"length"], 0)[0] for one in found]),
            "key": np.array([bytes(one[b"key"]) for one in found]),
        }


class Images:
    """W3: batches that are ready in memory, for ever."""

    def __init__(self, directory: Path) -> None:
        self._images = np.load(workloads.w3_file(directory))

    def batch(self, number: int) -> Batch:
        at = number * workloads.IMAGE_BATCH % workloads.IMAGES
        return {"image": self._images[at : at + workloads.IMAGE_BATCH]}


SOURCES = {"W1": Stacked, "W2": Padded, "W3": Images}
