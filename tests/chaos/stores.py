"""The content of a journal at the end, read without the server's code."""

from __future__ import annotations

import struct
from pathlib import Path

import msgpack

__all__ = ["tokens_of"]

_START, _HEAD = 4096, 64
_TABLE, _END, _COMMIT = 1, 2, 3
_MOST_TOKENS = 65_536
_SIZES = struct.Struct("<2Q")  # of a change: bytes of its head, and of its states


def tokens_of(path: Path) -> list[int]:
    """Return the tokens of all commits, in their order."""
    data = path.read_bytes()
    (half,) = struct.unpack_from("<Q", data, 16)
    laps = [_lap(data, start, start + half) for start in (_START, _START + half)]
    whole = [(lap, tokens) for lap, tokens, ended in laps if ended]
    if not whole:
        raise ValueError(f"{path}: no table is whole")
    return max(whole)[1][-_MOST_TOKENS:]


def _lap(data: bytes, at: int, stop: int) -> tuple[int, list[int], bool]:
    """Return the number of a lap, its tokens, and whether its table is complete."""
    lap, tokens, ended, last, newest = 0, list[int](), False, 0, 0
    while data[at : at + 4] == b"HRJR" and at + _HEAD <= stop:
        kind, of, place, nbytes, opening, before, crc = struct.unpack_from("<IQQQIII", data, at + 4)
        lap = lap or of
        if (of, place, before) != (lap, at, last) or opening < newest:
            break
        last, newest = crc, opening
        ended |= kind == _END
        if kind in (_TABLE, _COMMIT):
            tokens += _tokens_in(data, at + _HEAD, at + _HEAD + nbytes)
        at += _HEAD + -(-nbytes // _HEAD) * _HEAD
    return lap, tokens, ended


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
