"""Rows of several parts come in the order asked, less those that a part leaves out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.schema import Field
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import Rows
from headrace_server.reading.source import PartsReader


class Numbers:
    """A part that holds its rows' numbers, and leaves some out."""

    def __init__(self, first: int, rows: int, without: set[int]) -> None:
        self.length = rows
        self._first, self._without = first, without
        self.closed = False

    def take(self, rows: Rows) -> Chunk:
        index = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        assert len(index)
        assert 0 <= index.min() <= index.max() < self.length
        kept = np.array([n for n in index if n + self._first not in self._without], np.int64)
        return Chunk({"n": kept + self._first}, kept, Origin.single("f", kept))

    def close(self) -> None:
        self.closed = True


@given(st.lists(st.integers(0, 5), max_size=5), st.data())
def test_slices_and_takes_give_what_parts_keep(sizes: list[int], data: st.DataObject) -> None:
    total = sum(sizes)
    without = data.draw(st.sets(st.integers(0, max(0, total - 1))))
    starts = np.cumsum([0, *sizes])[:-1].tolist()
    parts = [Numbers(a, n, without) for a, n in zip(starts, sizes, strict=True)]
    reader = PartsReader({"n": Field("int64")}, parts)
    assert reader.length == total
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    at = st.integers(0, max(0, total - 1))
    taken = data.draw(st.lists(at, max_size=9)) if total else []
    for chunk, asked in (
        (reader.take(slice(start, stop)), range(start, stop)),
        (reader.take(np.array(taken, np.int64)), taken),
    ):
        want = [n for n in asked if n not in without]
        assert chunk.ordinals.tolist() == want
        assert np.asarray(chunk.columns["n"]).tolist() == want
        assert chunk.origin.record.tolist() == [n - max(s for s in starts if s <= n) for n in want]
    reader.close()
    assert all(part.closed for part in parts)


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 4), (2, 1)])
def test_slices_outside_are_refused(start: int, stop: int) -> None:
    reader = PartsReader({"n": Field("int64")}, [Numbers(0, 3, set())])
    with pytest.raises(IndexError, match="of 3"):
        reader.take(slice(start, stop))
