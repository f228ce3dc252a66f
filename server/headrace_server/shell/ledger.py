"""Changes of a partition as bytes of a journal, and the live state after the last of them.

    Change, Change, … ─► merged() ─► Entry ─► parts of a record      record ─► Entry ─► Ledger.apply
                                                                     Ledger.table() ─► next lap

The last word on a line, a chunk or a name is the only one that an entry holds.  A ledger keeps the
states in the file: it knows the place of each, and its checksum for the day it is copied into the
next lap.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import google_crc32c
import msgpack
import numpy as np

from headrace_proto.codec import pack

from ..core.changes import Change, Example, Saved
from .journal import record_bytes

__all__ = ["Entry", "Ledger", "merged"]

_HEAD = struct.Struct("<6IqI")  # drop, drop_chunks, done, tokens, put, 1 for a base; base; names
_COLUMNS = 9  # of an example: line, index, chunk, row, segment, count, key bytes, state bytes, crc
#: Bytes of states in one record of a table.
_PIECE_BYTES = 4 << 20

#: More than a name, a number and their lengths take beside a value.
_NAME_BYTES = 128

Read = Callable[[int, int], bytes]


@dataclass(slots=True)
class Entry:
    """The sum of several changes: one record of the journal."""

    drop: list[int] = field(default_factory=list)
    drop_chunks: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    base: int | None = None
    chunks: dict[int, bytes] = field(default_factory=dict)
    meta: dict[str, bytes] = field(default_factory=dict)
    put: np.ndarray = field(default_factory=lambda: np.zeros((0, _COLUMNS), np.int64))
    keys: bytes = b""
    states: bytes = b""

    def __bool__(self) -> bool:
        """Whether anything changes."""
        lists = (self.drop, self.drop_chunks, self.done, self.tokens, self.chunks, self.meta)
        return any(lists) or self.base is not None or len(self.put) > 0

    def parts(self) -> list[bytes]:
        """The entry as bytes."""
        names = pack([list(self.chunks.items()), list(self.meta.items())])
        lists = (self.drop, self.drop_chunks, self.done, self.tokens)
        head = _HEAD.pack(
            *map(len, lists), len(self.put), self.base is not None, self.base or 0, len(names)
        )
        numbers = np.array([n for one in lists for n in one], np.int64)
        return [head, numbers.tobytes(), self.put.tobytes(), names, self.keys, self.states]

    @classmethod
    def parse(cls, data: bytes) -> tuple[Entry, int]:
        """The entry of a record, its states left out, and where they begin."""
        *counts, put, based, base, nbytes = _HEAD.unpack_from(data)
        at = _HEAD.size
        lists: list[list[int]] = []
        for count in counts:
            lists.append(np.frombuffer(data, "<i8", count, at).tolist())
            at += 8 * count
        drop, drop_chunks, done, tokens = lists
        rows = np.frombuffer(data, "<i8", put * _COLUMNS, at).reshape(put, _COLUMNS)
        at += rows.nbytes
        chunks, meta = msgpack.unpackb(data[at : at + nbytes], strict_map_key=False)
        at += nbytes
        keys = data[at : at + int(rows[:, 6].sum())]
        entry = cls(drop, drop_chunks, done, tokens, base if based else None)
        entry.chunks, entry.meta, entry.put, entry.keys = dict(chunks), dict(meta), rows, keys
        return entry, at + len(keys)


def merged(changes: Iterable[Change]) -> Entry:
    """Return the sum of changes, applied one after the other."""
    examples: dict[int, Example | None] = {}
    chunks: dict[int, bytes | None] = {}
    done: dict[int, None] = {}
    entry = Entry()
    for change in changes:
        examples.update((example.line, example) for example in change.put)
        examples.update(dict.fromkeys(change.drop))
        chunks.update(change.chunks)
        chunks.update(dict.fromkeys(change.drop_chunks))
        done.update(dict.fromkeys(change.done))
        if change.base is not None:
            entry.base = change.base if entry.base is None else max(change.base, entry.base)
            done = {number: None for number in done if number >= change.base}
        entry.meta.update(change.meta)
        entry.tokens += change.tokens
    entry.drop = [line for line, example in examples.items() if example is None]
    entry.drop_chunks = [number for number, value in chunks.items() if value is None]
    entry.chunks = {number: value for number, value in chunks.items() if value is not None}
    entry.done = list(done)
    put = [example for example in examples.values() if example is not None]
    if put:
        checksum = google_crc32c.value
        entry.put = np.array(
            [
                (
                    *(e.line, e.index, e.chunk, e.row, e.segment, e.count),
                    *(len(e.key), len(e.state), checksum(e.state)),
                )
                for e in put
            ],
            np.int64,
        )
        entry.keys = b"".join(e.key for e in put)
        entry.states = b"".join(e.state for e in put)
    return entry


class _Live(NamedTuple):
    """An example that is live: its numbers, its key, and where its state lies."""

    numbers: list[int]
    key: bytes
    place: int

    def example(self, read: Read) -> Example:
        line, index, chunk, row, segment, count, *_ = self.numbers
        return Example(line, index, chunk, row, segment, count, self.key, self.state(read))

    def state(self, read: Read) -> bytes:
        data = read(self.place, self.numbers[7])
        if google_crc32c.value(data) != self.numbers[8]:
            raise ValueError(f"the state of example {self.key[:80]!r} fails its checksum")
        return data


class Ledger:
    """All that is live; ``tokens`` is how many of the last ones stay."""

    def __init__(self, tokens: int) -> None:
        self._examples: dict[int, _Live] = {}
        self._chunks: dict[int, bytes] = {}
        self._done: set[int] = set()
        self._base: int | None = None
        self._meta: dict[str, bytes] = {}
        self._tokens: deque[int] = deque(maxlen=tokens)

    def apply(self, entry: Entry, states_at: int) -> None:
        """An entry is in the file, its states from ``states_at`` on."""
        for line in entry.drop:
            self._examples.pop(line, None)
        key_at = 0
        for numbers in entry.put.tolist():
            key = entry.keys[key_at : key_at + numbers[6]]
            self._examples[numbers[0]] = _Live(numbers, key, states_at)
            key_at += numbers[6]
            states_at += numbers[7]
        for number in entry.drop_chunks:
            self._chunks.pop(number, None)
        self._chunks.update(entry.chunks)
        if entry.base is not None:
            self._done = {number for number in self._done if number >= entry.base}
            self._base = entry.base
        self._done.update(entry.done)
        self._meta.update(entry.meta)
        self._tokens.extend(entry.tokens)

    def saved(self, read: Read) -> Saved:
        """All of it: examples by insertion index, tokens as they came."""
        examples = [live.example(read) for live in self._examples.values()]
        examples.sort(key=lambda example: example.index)
        return Saved(
            dict(self._meta), examples, dict(self._chunks), sorted(self._done), list(self._tokens)
        )

    def table_bytes(self) -> int:
        """Bytes that the records of ``table`` take, at most."""
        named = [*self._chunks.values(), *self._meta.values()]
        numbers = 8 * (len(self._done) + len(self._tokens))
        first = record_bytes(_HEAD.size + numbers + sum(_NAME_BYTES + len(v) for v in named))
        rest = sum(sum(live.numbers[6:8], 8 * _COLUMNS) for live in self._examples.values())
        return first + rest + (rest // _PIECE_BYTES + 1) * record_bytes(_HEAD.size + _NAME_BYTES)

    def table(self, read: Read) -> Iterator[Entry]:
        """All of it, as entries for a new lap."""
        chunks, meta = dict(self._chunks), dict(self._meta)
        yield Entry([], [], list(self._done), list(self._tokens), self._base, chunks, meta)
        some: list[_Live] = []
        nbytes = 0
        for live in [*self._examples.values(), None]:
            if live is not None:
                some.append(live)
                nbytes += live.numbers[7]
            if some and (live is None or nbytes >= _PIECE_BYTES):
                yield Entry(
                    put=np.array([one.numbers for one in some], np.int64),
                    keys=b"".join(one.key for one in some),
                    states=b"".join(one.state(read) for one in some),
                )
                some, nbytes = [], 0
