"""A ragged batch is the values of its rows, one after the other, with their offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.errors import DataError
from headrace_proto.layout import ALIGNMENT, aligned_bytes, array_at, strings_at
from headrace_proto.schema import OFFSETS, Field
from headrace_server.making.assemble import RaggedAssembly, ragged_schema
from headrace_server.reading.columns import Ragged

from .test_assemble import DIRT, batches, chunk_of


def joined(field: Field, rows: list[np.ndarray]) -> np.ndarray:
    """The values of all rows by the book."""
    shape = (sum(len(row) for row in rows), *field.shape[1:])
    out = np.empty(shape, object if field.dtype == BYTES else numpy_dtype(field.dtype))
    at = 0
    for row in rows:
        for value in row:
            out[at] = value
            at += 1
    return out


@given(batches())
def test_values_lie_one_after_the_other_and_nothing_else_is_written(case: Any):
    schema, parts, want = case
    schema = {name: field for name, field in schema.items() if field.ragged_dims < 2}
    ragged = [name for name, field in schema.items() if field.ragged_dims]
    assembly = RaggedAssembly(parts, schema)
    wire = ragged_schema(schema, assembly.rows)
    assert list(wire) == [*schema, *(OFFSETS + name for name in ragged)]
    slots = dict(zip(wire, assembly.slots, strict=True))
    block = aligned_bytes(assembly.nbytes + 64)
    block[:] = DIRT
    assembly.fill(block[: assembly.nbytes])
    untouched = np.ones(block.size, bool)
    for name, slot in slots.items():
        assert slot.dtype == wire[name].dtype and wire[name].admits(slot.shape)
        assert slot.offset % ALIGNMENT == 0
        untouched[slot.offset : slot.offset + slot.nbytes] = False
    assert (block[untouched] == DIRT).all()
    for name, field in schema.items():
        found = array_at(block, slots[name]) if field.dtype != BYTES else None
        if name in ragged:
            model = joined(field, want[name])
            ends = array_at(block, slots[OFFSETS + name])
            assert ends.tolist() == np.cumsum([0, *map(len, want[name])]).tolist()
        else:
            model = joined(Field(field.dtype, (None, *field.shape)), [want[name]])
        assert slots[name].shape == model.shape
        if found is None:
            assert strings_at(block, slots[name]).tolist() == model.tolist()
        else:
            assert found.tobytes() == model.tobytes()


def test_neighbouring_rows_are_copied_as_one():
    column = Ragged.from_values(np.arange(12, dtype=np.int32), np.array([0, 3, 3, 7, 12]))
    for rows in (slice(0, 4), np.array([2, 3, 0, 1, 0])):
        assembly = RaggedAssembly([(chunk_of(x=column), rows)], {"x": Field("int32", (None,))})
        block = aligned_bytes(assembly.nbytes)
        assembly.fill(block)
        want = np.concatenate([column.row(i) for i in np.arange(4)[rows]])
        assert array_at(block, assembly.slots[0]).tolist() == want.tolist()


def test_a_dense_column_beside_it_whose_rows_differ_is_refused():
    parts = [
        (chunk_of(x=np.zeros((2, 3))), slice(0, 2)),
        (chunk_of(x=np.zeros((2, 4))), slice(0, 1)),
    ]
    with pytest.raises(DataError, match="column 'x' changes its shape"):
        RaggedAssembly(parts, {"x": Field("float64", (3,))})


def test_the_schema_has_one_offset_more_than_rows_where_their_number_is_known():
    fields = {"x": Field("float32", (None, 2)), "n": Field("int64")}
    assert ragged_schema(fields, 8) == {
        "x": Field("float32", (None, 2)),
        "n": Field("int64", (8,)),
        "@offsets:x": Field("int64", (9,)),
    }
    assert ragged_schema(fields, None)["@offsets:x"] == Field("int64", (None,))
