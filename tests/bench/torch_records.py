"""W1 for a torch DataLoader, with the record parser that people write by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import torch

_HEAD = 12  # length and its checksum
_FOOT = 4


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _value(data: bytes, at: int) -> bytes:
    """The innermost list of a Feature: kind, list, field, bytes."""
    for _ in range(2):
        size, at = _varint(data, at + 1)
    return data[at : at + size]


def parse(data: bytes) -> tuple[int, np.ndarray, bytes]:
    """The three features of one Example."""
    found = {}
    _, at = _varint(data, 1)
    while at < len(data):
        size, at = _varint(data, at + 1)
        end = at + size
        size, name_at = _varint(data, at + 1)
        at = name_at + size
        name = data[name_at:at]
        size, at = _varint(data, at + 1)
        found[name] = _value(data, at)
        at = end
    return (
        _varint(found[b"label"], 0)[0],
        np.frombuffer(found[b"x"], np.float32).copy(),
        found[b"id"],
    )


class Records(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """One file for ever.  Each of several workers takes every n-th batch's worth of records."""

    def __init__(self, path: str, block: int = 256) -> None:
        self._path = path
        self._block = block

    def __iter__(self) -> Iterator[tuple[int, np.ndarray, bytes]]:
        info = torch.utils.data.get_worker_info()
        me, of = (0, 1) if info is None else (info.id, info.num_workers)
        while True:
            number = 0
            with open(self._path, "rb", buffering=1 << 20) as file:
                while head := file.read(_HEAD):
                    data = file.read(struct.unpack_from("<Q", head)[0] + _FOOT)
                    if (number // self._block) % of == me:
                        yield parse(data[:-_FOOT])
                    number += 1
