"""Changes of a partition as bytes of its journal, and the live state that they lead to.

    Change ─► encoded() ─► parts of a record     record ─► decoded() ─► Changes ─► LiveTable.apply
                                                 LiveTable.changes() ─► records of the next file

A record has one change or several, in the order in which they apply.  Columns of examples are
written as they came.  The table leaves examples in the file: it numbers the rows of all records,
and knows the line of each row and the record of each row.  The last row of a line counts, unless
the line was dropped since.  It reads a row only to copy it into the next file.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgpack
import numpy as np

from headrace_proto.codec import pack

from ..files.journal_file import Buffer
from ..shaping.stored_state import Change, Column, Examples, Saved

#: Bytes of the head of a change, and of its columns of states.
_SIZES = struct.Struct("<2Q")
_NUMBERS = 7  # integers of an example
#: Bytes of states in one record of a table, about.
_PIECE_BYTES = 4 << 20

Data = bytes | memoryview
Read = Callable[[int, int], Data]


def encoded(change: Change) -> list[Buffer]:
    """Return a change as buffers, to be written one after the other."""
    put = change.put
    columns = list[Buffer]()
    widths = list[int | list[int]]()  # of a column of unequal states the length of each
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
    place: int
    nbytes: int


class LiveTable:
    """The live state; ``tokens`` is how many of the last ones stay."""

    def __init__(self, tokens: int, piece_bytes: int = _PIECE_BYTES) -> None:
        """``piece_bytes``: bytes of states in one record of ``changes``, about."""
        self._piece_bytes = piece_bytes
        self._lines = array("q")  # by row
        self._dropped, self._next_rows = array("q"), array("q")  # lines, and the next row then
        self._records: list[_Record] = []
        self._chunks: dict[int, bytes] = {}
        self._done: set[int] = set()
        self._meta: dict[str, bytes] = {}
        self._tokens: deque[int] = deque(maxlen=tokens)

    def apply(self, changes: Sequence[Change], place: int, nbytes: int) -> None:
        """Apply changes that are in the file, as a record of ``nbytes``."""
        first = len(self._lines)
        for change in changes:
            self._lines.frombytes(change.put.lines.tobytes())
            if drop := change.drop:
                self._dropped.extend(drop)
                self._next_rows.extend([len(self._lines)] * len(drop))
            self._chunks.update(change.chunks)
            for number in change.drop_chunks:
                self._chunks.pop(number, None)
            self._done.update(change.done)
            if change.base is not None:
                self._done = {number for number in self._done if number >= change.base}
            self._meta.update(change.meta)
            self._tokens.extend(change.tokens)
        if len(self._lines) > first:
            self._records.append(_Record(first, place, nbytes))

    def _live(self) -> np.ndarray:
        """Return the rows of live examples, in their order."""
        rows = len(self._lines)
        lines = np.concatenate([np.array(self._lines), np.array(self._dropped)])
        when = np.concatenate([2 * np.arange(rows) + 1, 2 * np.array(self._next_rows)])
        newest = when.argsort()[::-1]
        _, first = np.unique(lines[newest], return_index=True)
        last = newest[first]  # what came last of each line
        return np.sort(last[last < rows])

    def _examples(self, read: Read) -> Iterator[tuple[Examples, np.ndarray]]:
        """Yield the examples of each record with live ones, and the rows of these."""
        live = self._live()
        ends = [*(record.first for record in self._records[1:]), len(self._lines)]
        upto = np.searchsorted(live, ends).tolist()
        for record, begin, end in zip(self._records, [0, *upto], upto, strict=False):
            if end > begin:
                changes = decoded(read(record.place, record.nbytes))
                put = Examples.joined([change.put for change in changes])
                yield put, live[begin:end] - record.first

    def saved(self, read: Read) -> Saved:
        """Return the live state: examples by insertion index, tokens as they came."""
        examples = Examples.gathered(list(self._examples(read)), _small_pages)
        return Saved(
            dict(self._meta), examples, dict(self._chunks), sorted(self._done), list(self._tokens)
        )

    def changes(self, read: Read) -> Iterator[Change]:
        """Yield the live state as changes for the next file, one for each record."""
        chunks, meta = dict(self._chunks), dict(self._meta)
        yield Change(done=list(self._done), chunks=chunks, meta=meta, tokens=list(self._tokens))
        some, nbytes = list[Examples](), 0
        for found, rows in self._examples(read):
            some.append(found.take(rows))
            nbytes += sum(map(_nbytes, some[-1].states))
            if nbytes >= self._piece_bytes:
                yield Change(put=Examples.joined(some))
                some, nbytes = [], 0
        if some:
            yield Change(put=Examples.joined(some))


def _nbytes(column: Column) -> int:
    return sum(map(len, column)) if isinstance(column, list) else column.nbytes


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
