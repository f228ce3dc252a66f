"""The rows of a store: its tables, what several changes come to, and whether bytes are sound.

    change, change, … ─► Merged ─► rows with checksums         rows ─► read_rows() ─► Saved

The last word on a line, a chunk or a name is the only one that is written.  A checksum is of all
that a row says, so a wrong bit never makes plausible nonsense; SQLite's own check finds rows that
are missing.  In the journal SQLite takes what comes after a wrong bit for a commit that was cut
short, so that is looked at here.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from headrace_proto.errors import ServerError

from ..core.changes import Change, Example, Saved

__all__ = ["SCHEMA", "Merged", "StoreDamaged", "journal_fault", "read_rows"]

SCHEMA = {
    "meta": "CREATE TABLE meta (name TEXT PRIMARY KEY, crc INTEGER, value BLOB) WITHOUT ROWID",
    "example": (
        "CREATE TABLE example (line INTEGER PRIMARY KEY, place INTEGER, chunk INTEGER, "
        "row INTEGER, segment INTEGER, count INTEGER, crc INTEGER, key BLOB, state BLOB)"
    ),
    "chunk": "CREATE TABLE chunk (number INTEGER PRIMARY KEY, crc INTEGER, value BLOB)",
    "done": "CREATE TABLE done (number INTEGER PRIMARY KEY, crc INTEGER)",
    "token": "CREATE TABLE token (place INTEGER PRIMARY KEY, token INTEGER, crc INTEGER)",
}


class StoreDamaged(ServerError):
    """A file of states can not be trusted."""


_EXAMPLE = struct.Struct("<8q")
_NUMBERS = struct.Struct("<3q")


def _crc(number: int, data: bytes = b"", place: int = 0) -> int:
    return zlib.crc32(data, zlib.crc32(_NUMBERS.pack(place, number, len(data))))


def _named_crc(name: str, value: bytes) -> int:
    return _crc(zlib.crc32(name.encode()), value)


def _example_crc(
    *numbers: int,  # all of them, in the order of the table
    key: bytes,
    state: bytes,
) -> int:
    crc = zlib.crc32(_EXAMPLE.pack(*numbers, len(key), len(state)))
    return zlib.crc32(state, zlib.crc32(key, crc))


class Merged:
    """What changes come to, one after the other."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self._examples: dict[int, Example | None] = {}
        self._chunks: dict[int, bytes | None] = {}
        self._done: dict[int, None] = {}
        self._base: int | None = None
        self._meta: dict[str, bytes] = {}
        self.tokens: list[int] = []
        for change in changes:
            self._examples.update((example.line, example) for example in change.put)
            self._examples.update(dict.fromkeys(change.drop))
            self._chunks.update(change.chunks)
            self._chunks.update(dict.fromkeys(change.drop_chunks))
            self._done.update(dict.fromkeys(change.done))
            if change.base is not None:
                self._base = change.base if self._base is None else max(change.base, self._base)
                self._done = {number: None for number in self._done if number >= change.base}
            self._meta.update(change.meta)
            self.tokens += change.tokens

    def write(self, db: sqlite3.Connection, place: int, keep: int) -> None:
        """As rows.  ``place`` is the last token's so far; the last ``keep`` of them stay."""
        many = db.executemany
        gone = [(line,) for line, example in self._examples.items() if example is None]
        if gone:
            many("DELETE FROM example WHERE line = ?", gone)
        put = [_example_row(e) for e in self._examples.values() if e is not None]
        if put:
            many("INSERT OR REPLACE INTO example VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", put)
        gone = [(number,) for number, value in self._chunks.items() if value is None]
        if gone:
            many("DELETE FROM chunk WHERE number = ?", gone)
        read = [(n, _crc(n, v), v) for n, v in self._chunks.items() if v is not None]
        if read:
            many("INSERT OR REPLACE INTO chunk VALUES (?, ?, ?)", read)
        if self._base is not None:
            db.execute("DELETE FROM done WHERE number < ?", (self._base,))
        if self._done:
            many("INSERT OR REPLACE INTO done VALUES (?, ?)", [(n, _crc(n)) for n in self._done])
        if self._meta:
            named = [(name, _named_crc(name, v), v) for name, v in self._meta.items()]
            many("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", named)
        if self.tokens:
            numbered = [(n, t, _crc(t, place=n)) for n, t in enumerate(self.tokens, place + 1)]
            many("INSERT INTO token VALUES (?, ?, ?)", numbered)
            db.execute("DELETE FROM token WHERE place <= ?", (place + len(self.tokens) - keep,))


def _example_row(e: Example) -> tuple[Any, ...]:
    numbers = (e.line, e.index, e.chunk, e.row, e.segment, e.count)
    return (*numbers, _example_crc(*numbers, key=e.key, state=e.state), e.key, e.state)


def read_rows(db: sqlite3.Connection) -> Saved:
    """All rows, examples by insertion index, tokens as they came; StoreDamaged by a wrong one."""
    try:
        return _read_rows(db)
    except (TypeError, AttributeError, struct.error) as error:
        raise StoreDamaged(f"a value is of another kind than was written: {error}") from error


def _read_rows(db: sqlite3.Connection) -> Saved:
    saved = Saved({}, [], {}, [], [])
    rows = db.execute("SELECT * FROM example")
    for line, index, chunk, row, segment, count, crc, key, state in rows:
        if crc != _example_crc(line, index, chunk, row, segment, count, key=key, state=state):
            raise StoreDamaged(f"the state of example {key[:80]!r} fails its checksum")
        saved.examples.append(Example(line, index, chunk, row, segment, count, key, state))
    saved.examples.sort(key=lambda example: example.index)
    for name, crc, value in db.execute("SELECT * FROM meta"):
        _check(crc == _named_crc(name, value), "value", name)
        saved.meta[name] = value
    for number, crc, value in db.execute("SELECT * FROM chunk"):
        _check(crc == _crc(number, value), "chunk", number)
        saved.chunks[number] = value
    for number, crc in db.execute("SELECT * FROM done ORDER BY number"):
        _check(crc == _crc(number), "number", number)
        saved.done.append(number)
    for place, token, crc in db.execute("SELECT * FROM token ORDER BY place"):
        _check(crc == _crc(token, place=place), "token", token)
        saved.tokens.append(token)
    return saved


def _check(sound: bool, what: str, name: Any) -> None:
    if not sound:
        raise StoreDamaged(f"the {what} {str(name)[:80]!r} fails its checksum")


# The journal: a header of 32 bytes, then frames of 24 bytes and a page (sqlite.org/walformat.html)

_HEADER = 32
_FRAME = 24


def journal_fault(data: bytes) -> str:
    """Why a journal is damaged; empty when it is as a sudden end can leave it.

    A commit begins when the one before it is on the disk.  So of frames that fail only the last
    commit's may do so; when others follow on them, they were once there and sound.
    """
    frames = len(data) - _HEADER
    if frames <= 0:
        return ""
    magic, _, page, _, *salt, first, second = struct.unpack(">8I", data[:_HEADER])
    order = {0x377F0682: "<u4", 0x377F0683: ">u4"}.get(magic)
    if order is None or _checksum(data[: _HEADER - 8], order, (0, 0)) != (first, second):
        return "the header of its journal fails its checksum"
    before = (first, second)
    sound = True  # all frames so far
    lost = False  # a whole commit, if what follows on it is sound
    for start in range(_HEADER, len(data) - _FRAME - page + 1, _FRAME + page):
        _, commit, *rest = struct.unpack_from(">6I", data, start)
        body = data[start : start + 8] + data[start + _FRAME : start + _FRAME + page]
        told = (rest[2], rest[3])
        fits = rest[:2] == salt and _checksum(body, order, before) == told
        if fits and lost:
            return f"its journal fails its checksum before byte {start}"
        sound = sound and fits
        lost = not sound and bool(commit) and rest[:2] == salt
        before = told
    return ""


def _powers(pairs: int) -> np.ndarray:
    """What each 4-byte word adds to both sums, when so many pairs of words are summed up."""
    sums = np.zeros((2 * pairs, 2), np.uint32)
    a, b, c, d = 1, 0, 0, 1  # the sums at the end by the sums after the pair
    for pair in range(pairs - 1, -1, -1):
        sums[2 * pair] = (a + b) % 2**32, (c + d) % 2**32
        sums[2 * pair + 1] = b, d
        a, b, c, d = (n % 2**32 for n in (a + b, a + 2 * b, c + d, c + 2 * d))
    return sums


_POWERS: dict[int, np.ndarray] = {}


def _checksum(data: bytes, order: str, before: tuple[int, int]) -> tuple[int, int]:
    """SQLite's: ``s0 += x0 + s1; s1 += x1 + s0`` for each pair of words, from ``before`` on."""
    words = np.frombuffer(data, order).astype(np.uint32)
    powers = _POWERS.get(len(words))
    if powers is None:
        powers = _POWERS[len(words)] = _powers(len(words) // 2 + 1)
    # The sums before are as a pair of words (s0, s1 - s0) that comes first, from nothing on.
    first = np.array([before[0], (before[1] - before[0]) % 2**32], np.uint32)
    both = np.concatenate([first, words])
    totals = (both[:, None] * powers).sum(axis=0, dtype=np.uint32)
    return int(totals[0]), int(totals[1])
