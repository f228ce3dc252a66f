"""Ragged columns of a batch, and false offsets."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from headrace.batch import RaggedBatch, columns_of, facts_of
from headrace.framework import NumpyFramework, RaggedRows
from headrace_proto.errors import ProtocolError
from headrace_proto.layout import aligned_bytes, arrange, array_at, slots_of
from headrace_proto.messages import Given
from headrace_proto.schema import OFFSETS, Field


def batch_and_block(
    columns: Mapping[str, np.ndarray], rows: int = 3
) -> tuple[RaggedBatch, np.ndarray]:
    slots, nbytes = arrange([(c.dtype.name, c.shape, 0) for c in columns.values()])
    block = aligned_bytes(nbytes)
    for slot, column in zip(slots, columns.values(), strict=True):
        array_at(block, slot)[...] = column
    described = [[slot.offset, slot.nbytes, list(slot.shape)] for slot in slots]
    schema = {n: Field(c.dtype.name, (None, *c.shape[1:])) for n, c in columns.items()}
    delivery = Given(4, 77, 2, 5, 0, 5, 0, rows, nbytes, described)
    return RaggedBatch(delivery, slots_of(delivery, schema), block, NumpyFramework()), block


def batch_of(columns: Mapping[str, np.ndarray], rows: int = 3) -> RaggedBatch:
    return batch_and_block(columns, rows)[0]


def ends(*offsets: int) -> np.ndarray:
    return np.array(offsets, np.int64)


def test_users_see_rows_where_values_and_offsets_travel():
    layout = {
        "x": Field("float32", (None, 2)),
        "n": Field("int64", (8,)),
        "@length": Field("int32", (8,)),
        "@offsets:x": Field("int64", (9,)),
    }
    assert columns_of(layout) == {
        "x": Field("float32", (8, None, 2), ragged=True),
        "n": Field("int64", (8,)),
    }
    assert str(columns_of(layout)["x"]) == "ragged float32[8, ?, 2]"
    assert list(facts_of(layout)) == ["length"]
    layout["@offsets:x"] = Field("int64", (None,))
    assert columns_of(layout)["x"].shape == (None, None, 2)


def test_a_ragged_column_is_values_and_offsets_on_the_memory_of_the_batch():
    columns = {"x": np.arange(5), "n": np.arange(3), OFFSETS + "x": ends(0, 2, 2, 5)}
    batch, block = batch_and_block(columns)
    assert list(batch) == ["x", "n"] and len(batch) == 2 and OFFSETS + "x" not in batch
    with pytest.raises(KeyError, match="not a column"):
        batch[OFFSETS + "x"]
    x = batch["x"]
    assert isinstance(x, RaggedRows) and x is batch["x"]
    assert x.values.tolist() == [0, 1, 2, 3, 4] and x.offsets.tolist() == [0, 2, 2, 5]
    assert np.shares_memory(x.values, block) and np.shares_memory(x.offsets, block)
    assert batch["n"].tolist() == [0, 1, 2]
    assert batch.array("x").tolist() == [0, 1, 2, 3, 4]
    assert batch.array("@offsets:x").tolist() == [0, 2, 2, 5]
    assert isinstance(batch.to("cpu"), RaggedBatch)


def test_columns_of_equal_lengths_share_their_offsets():
    columns = {name: np.arange(5) for name in "xyz"}
    offsets = {"x": ends(0, 2, 2, 5), "y": ends(0, 2, 2, 5), "z": ends(0, 1, 2, 5)}
    batch = batch_of({**columns, **{OFFSETS + n: e for n, e in offsets.items()}})
    assert batch["x"].offsets is batch["y"].offsets is not batch["z"].offsets


@pytest.mark.parametrize(
    "offsets",
    [[0, 2, 5], [1, 2, 2, 5], [0, 2, 2, 4], [0, 3, 2, 5], [], [0, -1, 2, 5]],
    ids=["too few", "a start after 0", "an end before the end", "falling", "none", "negative"],
)
def test_offsets_that_lie_reach_no_framework(offsets: list[int]):
    batch = batch_of({"x": np.arange(5), OFFSETS + "x": ends(*offsets)})
    for look in (lambda: batch["x"], lambda: batch.array("@offsets:x"), lambda: batch.to("cpu")):
        with pytest.raises(ProtocolError, match="the offsets of column 'x' do not fit"):
            look()
