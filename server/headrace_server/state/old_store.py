"""Stores of earlier releases: one SQLite file for each partition, converted once.

0.db (and 0.db-wal) ─► read_old() ─► Change ─► 0.journal
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgpack

from ..core.changes import Change, Example, Examples

OLD_SUFFIX = ".db"
_APPLICATION = 0x68647263
_VERSION = 1
_NUMBERS = struct.Struct("<3q")
_EXAMPLE = struct.Struct("<8q")


def read_old(path: Path) -> Change:
    """Return the content of an old store.  ValueError where it can not be trusted."""
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            marks = [db.execute(f"PRAGMA {of}").fetchone()[0] for of in _PRAGMAS]
            if marks != [_APPLICATION, _VERSION, "ok"]:
                raise ValueError(f"it is no store that this release converts: {marks}")
            return _all_of(db)
    except (sqlite3.Error, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"{path.name}, of an earlier release, is damaged: {error}") from error


_PRAGMAS = ("application_id", "user_version", "quick_check(1)")


def _all_of(db: sqlite3.Connection) -> Change:
    whole, examples = Change(), list[Example]()
    for line, index, chunk, row, segment, count, crc, key, state in _rows(db, "example"):
        numbers = (line, index, chunk, row, segment, count, len(key), len(state))
        _check(crc == zlib.crc32(state, zlib.crc32(key, zlib.crc32(_EXAMPLE.pack(*numbers)))))
        epoch, name = msgpack.unpackb(key)
        examples.append(Example(line, index, chunk, row, segment, count, (epoch, name), state))
    whole.put = Examples.of(examples)
    for name, crc, value in _rows(db, "meta"):
        _check(crc == _crc(zlib.crc32(name.encode()), value))
        whole.meta[name] = value
    for number, crc, value in _rows(db, "chunk"):
        _check(crc == _crc(number, value))
        whole.chunks[number] = value
    for number, crc in _rows(db, "done"):
        _check(crc == _crc(number))
        whole.done.append(number)
    for place, token, crc in _rows(db, "token ORDER BY place"):
        _check(crc == _crc(token, place=place))
        whole.tokens.append(token)
    return whole


def _rows(db: sqlite3.Connection, table: str) -> Iterator[tuple]:
    yield from db.execute(f"SELECT * FROM {table}")


def _crc(number: int, data: bytes = b"", place: int = 0) -> int:
    return zlib.crc32(data, zlib.crc32(_NUMBERS.pack(place, number, len(data))))


def _check(sound: bool) -> None:
    if not sound:
        raise ValueError("a row fails its checksum")
