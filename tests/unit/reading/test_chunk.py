"""Chunks keep rows, ordinals and origins together."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_proto.schema import Field
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import column_from_rows
from tests.unit.readers import numbered


def chunk(file: str, first: int, texts: list[str], offsets: bool = True) -> Chunk:
    record = np.arange(first, first + len(texts))
    columns = {
        "text": column_from_rows(texts, Field("bytes")),
        "length": column_from_rows([list(range(len(t))) for t in texts], Field("int64", (None,))),
    }
    return Chunk(columns, record, Origin.single(file, record, record * 10 if offsets else None))


def test_rows_taken_carry_their_origin() -> None:
    taken = chunk("a", 5, ["x", "yy", "zzz"]).take(np.array([2, 0]))
    assert numbered(taken) == [
        (7, "a, record 7, byte 70", {"text": b"zzz", "length": [0, 1, 2]}),
        (5, "a, record 5, byte 50", {"text": b"x", "length": [0]}),
    ]


def test_joined_chunks_name_each_file_once() -> None:
    parts = [chunk("a", 0, ["x"]), chunk("b", 3, ["y", "z"]), chunk("a", 1, ["w"])]
    joined = Chunk.join(parts)
    assert joined.origin.files == ("a", "b")
    assert numbered(joined) == [row for part in parts for row in numbered(part)]
    assert Chunk.join(parts[:1]) is parts[0]


def test_offsets_are_dropped_where_a_part_has_none() -> None:
    joined = Chunk.join([chunk("a", 0, ["x"]), chunk("b", 0, ["y"], offsets=False)])
    assert [joined.origin.describe(i) for i in range(2)] == ["a, record 0", "b, record 0"]


def test_no_chunks_do_not_join() -> None:
    with pytest.raises(ValueError, match="no chunks"):
        Chunk.join([])


def test_columns_are_replaced_and_the_rest_stays() -> None:
    before = chunk("a", 0, ["x", "y"])
    after = before.with_columns({"n": np.array([1, 2])})
    assert list(after.columns) == ["n"]
    assert after.origin is before.origin
    assert len(after) == 2
