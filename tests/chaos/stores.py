"""The content of a journal at the end, read without the server's code."""

from __future__ import annotations

import struct
from pathlib import Path

import msgpack

__all__ = ["tokens_of"]

_START, _HEAD = 4096, 64
_MOST_TOKENS = 65_536
_SIZES = struct.Struct("<2Q")  # of a change: bytes of its head, and of its states


def tokens_of(path: Path) -> list[int]:
    """Return the tokens of all commits, in their order."""
    data, tokens, at, last = path.read_bytes(), list[int](), _START, 0
    number, _, table_end = struct.unpack_from("<3Q", data, 16)
    while data[at : at + 4] == b"HRJR":
        of, place, nbytes, _, before, crc = struct.unpack_from("<QQQIII", data, at + 8)
        if (of, place, before) != (number, at, last):
            break
        last = crc
        tokens += _tokens_in(data, at + _HEAD, at + _HEAD + nbytes)
        at += _HEAD + -(-nbytes // _HEAD) * _HEAD
    if at < table_end:
        raise ValueError(f"{path}: its table is not whole")
    return tokens[-_MOST_TOKENS:]


def _tokens_in(data: bytes, at: int, stop: int) -> list[int]:
    """Return the tokens of one record's changes."""
    tokens = list[int]()
    while at < stop:
        head, states = _SIZES.unpack_from(data, at)
        first = at + _SIZES.size
        _drop, _chunks, _done, mine, *_ = msgpack.unpackb(
            data[first : first + head], strict_map_key=False
        )
        tokens += mine
        at = first + head + states
    return tokens
