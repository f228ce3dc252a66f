"""A batch equals numpy's stacked and padded rows, to the last byte of a reused block."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.errors import DataError
from headrace_proto.layout import ALIGNMENT, aligned_bytes, array_at, strings_at
from headrace_proto.schema import Field
from headrace_server.making.assemble import Assembly
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import Column, Ragged, Strings

DIRT = 0xAA
DTYPES = ("bool", "int8", "uint16", "int64", "float16", "float32", "complex128", "bfloat16")


def texts(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    out = np.empty(shape, object)
    out.reshape(-1)[:] = [rng.bytes(int(rng.integers(0, 5))) for _ in range(prod(shape))]
    return out


def value(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """An example's value: any bytes that are one."""
    if dtype == BYTES:
        return texts(rng, shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    resolved = numpy_dtype(dtype)
    return np.frombuffer(rng.bytes(prod(shape) * resolved.itemsize), resolved).reshape(shape)


def scattered(rng: np.random.Generator, pieces: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The pieces in one buffer in any order, with gaps, at odd places: data and starts."""
    starts = np.zeros(len(pieces), np.int64)
    data = b""
    for i in rng.permutation(len(pieces)):
        data += b"?" * int(rng.integers(0, 4))
        starts[i] = len(data)
        data += pieces[i]
    return np.frombuffer(data, np.uint8), starts


def strings(rng: np.random.Generator, flat: list[bytes]) -> Strings:
    data, starts = scattered(rng, flat)
    return Strings(data, starts, np.array([len(text) for text in flat], np.int64))


def column(rng: np.random.Generator, field: Field, rows: list[np.ndarray]) -> Column:
    """The column of some rows as a reader might give it."""
    n, varying = len(rows), field.ragged_dims
    inner = tuple(field.shape[varying:])
    extents = np.array([row.shape[:varying] for row in rows], np.int64).reshape(n, varying)
    if field.dtype != BYTES:
        dtype = numpy_dtype(field.dtype)
        if not varying:
            return np.array(rows, dtype).reshape(n, *field.shape)
        raw, starts = scattered(rng, [row.tobytes() for row in rows])
        return Ragged(raw, dtype, starts, extents, inner)
    if not varying:
        flat = [text for row in rows for text in row.reshape(-1).tolist()]
        return strings(rng, flat).reshape(n, *field.shape)
    order = rng.permutation(n)
    starts = np.zeros(n, np.int64)
    flat = []
    for i in order:
        flat.append(b"between")
        starts[i] = len(flat)
        flat += rows[i].reshape(-1).tolist()
    return Ragged(strings(rng, flat), np.dtype(object), starts, extents, inner)


def padded(field: Field, rows: list[np.ndarray]) -> np.ndarray:
    """The batch by the book."""
    extent = tuple(max(dims) for dims in zip(*(row.shape for row in rows), strict=True))
    shape = (len(rows), *extent)
    if field.dtype == BYTES:
        out = np.full(shape, b"", object)
    else:
        out = np.zeros(shape, numpy_dtype(field.dtype))
    for i, row in enumerate(rows):
        if row.ndim:
            out[(i, *map(slice, row.shape))] = row
        else:
            out[i] = row[()]
    return out


@st.composite
def fields(draw: st.DrawFn) -> Field:
    varying = draw(st.integers(0, 4))
    inner = draw(st.lists(st.integers(0, 3), max_size=2))
    leading = [draw(st.sampled_from([None, None, 2])) for _ in range(max(0, varying - 1))]
    shape = (*leading, *([None] if varying else []), *inner)
    return Field(draw(st.sampled_from([*DTYPES, BYTES, BYTES])), shape)


@st.composite
def batches(draw: st.DrawFn) -> tuple[dict[str, Field], list[Any], dict[str, list[np.ndarray]]]:
    """Fields, the parts of a batch, and the values of its rows by field."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    schema = {f"f{i}": field for i, field in enumerate(draw(st.lists(fields(), min_size=1)))}
    longest = draw(st.sampled_from([0, 1, 3]))
    parts, want = [], {name: [] for name in schema}
    for number in range(draw(st.integers(1, 3))):
        n = draw(st.integers(1, 5))
        values = {
            name: [
                value(
                    rng,
                    field.dtype,
                    tuple(
                        int(rng.integers(0, longest + 1)) if d is None else d for d in field.shape
                    ),
                )
                for _ in range(n)
            ]
            for name, field in schema.items()
        }
        columns = {name: column(rng, field, values[name]) for name, field in schema.items()}
        records = np.arange(n, dtype=np.int64)
        chunk = Chunk(columns, records, Origin.single(f"file{number}", records))
        if draw(st.booleans()):
            start = draw(st.integers(0, n - 1))
            rows: Any = slice(start, draw(st.integers(start + 1, n)))
            chosen = list(range(n))[rows]
        else:
            chosen = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=6))
            rows = np.array(chosen, np.int64)
        parts.append((chunk, rows))
        for name in schema:
            want[name] += [values[name][i] for i in chosen]
    return schema, parts, want


@given(batches())
def test_a_batch_is_its_rows_padded_with_zeros_and_nothing_of_what_lay_there_before(case):
    schema, parts, want = case
    assembly = Assembly(parts, schema, dynamic_pad=True)
    block = aligned_bytes(assembly.nbytes + 64)
    block[:] = DIRT
    assembly.fill(block[: assembly.nbytes])
    untouched = np.ones(block.size, bool)
    assert assembly.rows == len(next(iter(want.values())))
    for slot, (name, field) in zip(assembly.slots, schema.items(), strict=True):
        model = padded(field, want[name])
        assert (slot.dtype, slot.shape) == (field.dtype, model.shape)
        assert slot.offset % ALIGNMENT == 0
        written = block[slot.offset : slot.offset + slot.nbytes].tobytes()
        if field.dtype == BYTES:
            flat = model.reshape(-1).tolist()
            offsets = np.cumsum([0, *map(len, flat)], dtype=np.int64)
            assert written == offsets.tobytes() + b"".join(flat)
            assert strings_at(block, slot).tolist() == model.tolist()
        else:
            assert written == model.tobytes()
            assert array_at(block, slot).tobytes() == model.tobytes()
        untouched[slot.offset : slot.offset + slot.nbytes] = False
    assert (block[untouched] == DIRT).all()


@given(batches())
def test_without_padding_rows_of_unequal_shapes_are_refused_with_both_origins(case):
    schema, parts, want = case
    origins = [
        f"file{number}, record {i}"
        for number, (chunk, rows) in enumerate(parts)
        for i in np.arange(len(chunk))[rows].tolist()
    ]
    for name, field in schema.items():
        rows = want[name]
        other = next((i for i, row in enumerate(rows) if row.shape != rows[0].shape), None)
        if other is None:
            Assembly(parts, {name: field}, dynamic_pad=False)
            continue
        with pytest.raises(DataError) as caught:
            Assembly(parts, {name: field}, dynamic_pad=False)
        text = str(caught.value)
        assert f"column {name!r}" in text and "dynamic_pad=True" in text
        assert f"{list(rows[0].shape)} ({origins[0]})" in text
        assert f"{list(rows[other].shape)} ({origins[other]})" in text


def chunk_of(**columns: Column) -> Chunk:
    n = len(next(iter(columns.values())))
    numbers = np.arange(n, dtype=np.int64)
    return Chunk(columns, numbers, Origin.single("here", numbers))


def filled(chunk: Chunk, rows: Any, field: Field) -> np.ndarray:
    assembly = Assembly([(chunk, rows)], {"x": field}, dynamic_pad=True)
    block = aligned_bytes(assembly.nbytes)
    block[:] = DIRT
    assembly.fill(block)
    return array_at(block, assembly.slots[0])


@pytest.mark.parametrize("rows", [slice(1, 4), np.array([3, 1, 1])], ids=["slice", "numbers"])
def test_numbers_of_the_other_byte_order_become_native_ones(rows):
    swapped = np.arange(10, dtype=">f4").reshape(5, 2)
    got = filled(chunk_of(x=swapped), rows, Field("float32", (2,)))
    assert got.dtype.isnative and got.tolist() == swapped[rows].tolist()
