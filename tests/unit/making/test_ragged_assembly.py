"""A ragged batch is the values of its rows, one after the other, with their offsets."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.layout import ALIGNMENT, aligned_bytes, array_at, strings_at
from headrace_proto.schema import OFFSETS, Field
from headrace_server.making.assemble import RaggedAssembly, ragged_schema

from .test_assemble import DIRT, batches


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
def test_values_lie_one_after_the_other_and_nothing_else_is_written(case):
    schema, parts, want = case
    schema = {name: field for name, field in schema.items() if field.ragged_dims < 2}
    ragged = [name for name, field in schema.items() if field.ragged_dims]
    assembly = RaggedAssembly(parts, schema, dynamic_pad=False)
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
