"""Changes of a partition as bytes of a journal, and the live state that they lead to.

    Change ─► encoded() ─► parts of a record        record ─► decoded() ─► Changes ─► Ledger.apply
                                                    Ledger.table() ─► records of the next lap

A record has one change or several, in the order in which they apply.  Columns of examples are
written as they came.  A ledger leaves examples in the file: it numbers the rows of all records, and
knows the row of each line and the record of each row, and reads a row only to copy it into the next
lap.
"""

from __future__ import annotations

import mmap
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgpack
import numpy as np

from headrace_proto.codec import pack

from ..shaping.stored_state import Change, Column, Examples, Saved
from .journal import record_bytes

#: Bytes of the head of a change, and of its columns of states.
_SIZES = struct.Struct("<2Q")
_NUMBERS = 7  # integers of an example
#: Bytes of examples in one record of a table, about.
_PIECE_BYTES = 4 << 20
#: Upper bounds: bytes of a head without its content, of an integer, of a name, a number and their
#: lengths beside a value, and of a key's epoch and length beside its bytes.
_HEAD_BYTES = 128
_INTEGER_BYTES = 9
_NAME_BYTES = 128
_KEY_BYTES = 16

Data = bytes | memoryview
Read = Callable[[int, int], Data]


def encoded(change: Change) -> list[Any]:
    """Return a change as buffers, to be written one after the other."""
    put = change.put
    widths, columns = list[Any](), list[Any]()  # of a column of unequal states the length of each
    for column in put.states:
        if isinstance(column, list):
            widths.append([*map(len, column)])
            columns.append(b"".join(column))
        else:
            widths.append(column.shape[1])
            columns.append(column.reshape(-1))
    lists = (change.drop, change.drop_chunks, change.done, change.tokens)
    named = (list(change.chunks.items()), list(change.meta.items()))
    head = pack([*lists, change.base, *named, put.numbers.tobytes(), put.keys, widths])
    return [_SIZES.pack(len(head), sum(map(len, columns))) + head, *columns]


def decoded(data: Data) -> list[Change]:
    """Return the changes of a record; their states are views of its bytes."""
    changes, at = [], 0
    while at < len(data):
        head, rest = _SIZES.unpack_from(data, at)
        at += _SIZES.size + head
        changes.append(_change(data[at - head : at], data[at : at + rest]))
        at += rest
    return changes


def _change(head: Data, data: Data) -> Change:
    fields = msgpack.unpackb(head, strict_map_key=False, use_list=False)
    *lists, base, chunks, meta, numbers, keys, widths = fields
    drop, drop_chunks, done, tokens = map(list, lists)
    states, at = list[Column](), 0
    for width in widths:
        if isinstance(width, tuple):
            bounds = [*accumulate(width, initial=at)]
            states.append([bytes(data[a:b]) for a, b in pairwise(bounds)])
            at = bounds[-1]
        else:
            found = np.frombuffer(data, np.uint8, len(keys) * width, at)
            states.append(found.reshape(len(keys), width))
            at += found.size
    if at != len(data):
        raise ValueError(f"a change with {len(data)} bytes of states has states of {at}")
    examples = Examples(np.frombuffer(numbers, "<i8").reshape(_NUMBERS, -1), keys, states)
    return Change(examples, drop, done, base, dict(chunks), drop_chunks, dict(meta), tokens)


class _Record(NamedTuple):
    """A record that has examples."""

    first: int  # number of its first row
    row_bytes: int  # bytes of its largest example
    place: int
    nbytes: int


class Ledger:
    """The live state; ``tokens`` is how many of the last ones stay."""

    def __init__(self, tokens: int, piece_bytes: int = _PIECE_BYTES) -> None:
        """``piece_bytes``: bytes of examples in one record of a table, about."""
        self._piece_bytes = piece_bytes
        self._row_of: dict[int, int] = {}  # line → number of its row
        self._records: list[_Record] = []
        self._next_row = 0
        self._chunks: dict[int, bytes] = {}
        self._done: set[int] = set()
        self._meta: dict[str, bytes] = {}
        self._tokens: deque[int] = deque(maxlen=tokens)

    def apply(self, changes: Sequence[Change], place: int, nbytes: int) -> None:
        """Apply changes that are in the file, as a record of ``nbytes``."""
        first, row_bytes = self._next_row, 0
        for change in changes:
            if len(change.put):
                row_bytes = max(row_bytes, _row_bytes(change.put))
                row = self._next_row
                self._next_row += len(change.put)
                self._row_of.update(
                    zip(change.put.lines.tolist(), range(row, self._next_row), strict=True)
                )
            self._apply(change)
        if self._next_row > first:
            self._records.append(_Record(first, row_bytes, place, nbytes))

    def _apply(self, change: Change) -> None:
        for line in change.drop:
            self._row_of.pop(line, None)
        self._chunks.update(change.chunks)
        for number in change.drop_chunks:
            self._chunks.pop(number, None)
        self._done.update(change.done)
        if change.base is not None:
            self._done = {number for number in self._done if number >= change.base}
        self._meta.update(change.meta)
        self._tokens.extend(change.tokens)

    def _live(self) -> Iterator[tuple[_Record, np.ndarray]]:
        """Yield the records with live examples, and the rows of these."""
        live = np.sort(np.fromiter(self._row_of.values(), np.int64, len(self._row_of)))
        ends = [*(record.first for record in self._records[1:]), self._next_row]
        upto = np.searchsorted(live, ends).tolist()
        for record, begin, end in zip(self._records, [0, *upto], upto, strict=False):
            if end > begin:
                yield record, live[begin:end] - record.first

    def _examples(self, read: Read) -> Iterator[tuple[Examples, np.ndarray]]:
        """Yield the examples of each record, and the rows of live ones."""
        for record, rows in self._live():
            changes = decoded(read(record.place, record.nbytes))
            yield Examples.joined([change.put for change in changes]), rows

    def saved(self, read: Read) -> Saved:
        """Return the live state: examples by insertion index, tokens as they came."""
        examples = Examples.gathered(list(self._examples(read)), _small_pages)
        return Saved(
            dict(self._meta), examples, dict(self._chunks), sorted(self._done), list(self._tokens)
        )

    def table_bytes(self) -> int:
        """Return an upper bound of the bytes that the records of ``table`` take."""
        named = [*self._chunks.values(), *self._meta.values()]
        numbers = _INTEGER_BYTES * (len(self._done) + len(self._tokens))
        first = record_bytes(_HEAD_BYTES + numbers + sum(_NAME_BYTES + len(v) for v in named))
        rest = sum(record.row_bytes * len(rows) for record, rows in self._live())
        return first + rest + (rest // self._piece_bytes + 1) * record_bytes(_HEAD_BYTES)

    def table(self, read: Read) -> Iterator[Change]:
        """Yield the live state as changes for a new lap, one for each record."""
        chunks, meta = dict(self._chunks), dict(self._meta)
        done, tokens = list(self._done), list(self._tokens)
        yield Change(done=done, chunks=chunks, meta=meta, tokens=tokens)
        some: list[Examples] = []
        nbytes = 0
        for found, rows in self._examples(read):
            examples = found.take(rows)
            some.append(examples)
            nbytes += len(examples) * _row_bytes(examples)
            if nbytes >= self._piece_bytes:
                yield Change(put=Examples.joined(some))
                some, nbytes = [], 0
        if some:
            yield Change(put=Examples.joined(some))


def _small_pages(shape: tuple[int, int]) -> np.ndarray:
    """Return memory without huge pages, as numpy has for large arrays.

    A virtual machine gets a huge page from its host when it is first touched: 3 s for each GB.
    Small ones are mostly there, since some process has had them before.
    """
    size = shape[0] * shape[1]
    if not size:
        return np.empty(shape, np.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.frombuffer(mmap.mmap(-1, size, flags), np.uint8).reshape(shape)


def _row_bytes(put: Examples) -> int:
    """Return an upper bound of the bytes of the largest of some examples."""
    states = sum(
        _INTEGER_BYTES + (max(map(len, column)) if isinstance(column, list) else column.shape[1])
        for column in put.states
    )
    longest = max(map(len, [key for _, key in put.keys]))
    return 8 * _NUMBERS + _KEY_BYTES + longest + states
