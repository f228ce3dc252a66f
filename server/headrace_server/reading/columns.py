"""Columns: the examples of a chunk, field by field, without a Python object per example.

    numpy array     fixed shape, numbers          [n, *shape]
    Strings         fixed shape, byte strings     starts and lengths [n, *shape] into one buffer
    Ragged          shapes that vary, numbers     byte starts [n] into one buffer, extents [n, r]
                                      strings     starts [n] into flat Strings, extents [n, r]

Starts point into a buffer that several rows, columns and chunks may share (a mapped file, say),
so taking rows moves a few integers and no payload.  The payload is copied once, by the assembler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import numpy as np

from headrace_proto import dtypes
from headrace_proto.schema import Field

from ..pipeline.declaration import Feature
from ..pipeline.examples import Misfit, cast, flat_values

# ── Gathers and joins stretches of buffers, given by their starts and numbers of elements.


#: Bytes per stretch from which on copying them one by one beats an index of every byte.
_LONG_STRETCH = 64


def join_buffers(
    buffers: list[np.ndarray], starts: list[np.ndarray], sizes: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return one buffer with the stretches of all, and their starts in it."""
    if all(buffer is buffers[0] for buffer in buffers):
        return buffers[0], np.concatenate(starts)
    moved = [_trimmed(*part) for part in zip(buffers, starts, sizes, strict=True)]
    shift = np.cumsum([0, *(sum(piece.size for piece in pieces) for pieces, _ in moved[:-1])])
    return (
        np.concatenate([piece for pieces, _ in moved for piece in pieces]),
        np.concatenate([begin + by for (_, begin), by in zip(moved, shift, strict=True)]),
    )


def _trimmed(
    buffer: np.ndarray, starts: np.ndarray, sizes: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the used part of a buffer in pieces, and the starts in these: a column may use a small
    part."""
    total = int(sizes.sum())
    if not total:
        return [buffer[:0]], np.zeros_like(starts)
    used = sizes > 0
    low, high = int(starts[used].min()), int((starts + sizes)[used].max())
    if high - low <= 2 * total:
        return [buffer[low:high]], np.where(used, starts - low, 0)
    begins = np.cumsum(sizes) - sizes
    if total > _LONG_STRETCH * len(sizes):
        return _stretches(buffer, starts, sizes), begins
    return [gather(buffer, starts, sizes)], begins


def _stretches(buffer: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    bounds = zip(starts.tolist(), sizes.tolist(), strict=True)
    return [buffer[start : start + size] for start, size in bounds]


def gather(buffer: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the stretches of a buffer, back to back."""
    size = int(sizes[0]) if len(sizes) else 0
    if size and np.logical_and.reduce(sizes == size):
        alike: np.ndarray = window(buffer, size)[starts].view(np.uint8)
        return alike
    if int(sizes.sum()) > _LONG_STRETCH * len(sizes):
        return np.concatenate(_stretches(buffer, starts, sizes))
    gathered: np.ndarray = buffer[ranges(starts, sizes)]
    return gathered


def window(buffer: np.ndarray, size: int) -> np.ndarray:
    """View every run of ``size`` bytes as one element, so that an index gathers whole runs."""
    return np.ndarray((max(buffer.size - size + 1, 0),), _run_of(size), buffer, 0, (1,))


@lru_cache(maxsize=256)
def _run_of(size: int) -> np.dtype:
    """Return the type of ``size`` bytes, which numpy would parse from its name at each call."""
    return np.dtype(f"V{size}")


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return ``starts[i], starts[i] + 1, …``, ``counts[i]`` numbers, for each i in turn."""
    before = np.cumsum(counts) - counts
    first: np.ndarray = np.repeat(starts - before, counts)
    return first + np.arange(len(first))


#: Rows by slice (with start and stop), or by number.
Rows = slice | np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Strings:
    """Byte strings of fixed array shape.  ``starts`` and ``lengths`` have that shape."""

    data: np.ndarray  # uint8 [any]
    starts: np.ndarray  # int64 [n, *shape]
    lengths: np.ndarray  # int64 [n, *shape]
    width: int = 0  # of every string, where all are known to be equally long
    dtype: ClassVar[np.dtype] = np.dtype(object)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.starts.shape)

    def take(self, rows: Rows) -> Strings:
        return Strings(self.data, self.starts[rows], self.lengths[rows], self.width)

    def reshape(self, *shape: int) -> Strings:
        starts, lengths = self.starts.reshape(shape), self.lengths.reshape(shape)
        return Strings(self.data, starts, lengths, self.width)

    @property
    def nbytes(self) -> int:
        """The bytes of all strings."""
        return self.width * self.starts.size or int(self.lengths.sum())

    def row(self, i: int) -> bytes | np.ndarray:
        """Return row i: ``bytes`` when a row is one string, else an object array of them."""
        if self.starts.ndim == 1:
            start = int(self.starts[i])
            return self.data[start : start + int(self.lengths[i])].tobytes()
        row: np.ndarray = self.take(slice(i, i + 1)).to_objects()[0]
        return row

    def to_objects(self) -> np.ndarray:
        """Return the strings as an object array of ``bytes``."""
        out = np.empty(self.starts.shape, object)
        flat = out.reshape(-1)
        starts, lengths = self.starts.reshape(-1).tolist(), self.lengths.reshape(-1).tolist()
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            flat[i] = self.data[start : start + length].tobytes()
        return out

    def joined(self) -> np.ndarray:
        """Return the bytes (uint8) of the strings in C order, back to back, maybe copied."""
        starts, lengths = self.starts.reshape(-1), self.lengths.reshape(-1)
        if not starts.size:
            return self.data[:0]
        if self.width:
            alike: np.ndarray = window(self.data, self.width)[starts].view(np.uint8)
            return alike
        # The second start alone shows most strings that are not back to back.
        if starts.size == 1 or (
            starts[1] - starts[0] == lengths[0] and (starts[1:] - starts[:-1] == lengths[:-1]).all()
        ):
            return self.data[int(starts[0]) : int(starts[-1]) + int(lengths[-1])]
        return gather(self.data, starts, lengths)

    @classmethod
    def from_objects(cls, values: np.ndarray) -> Strings:
        """Copy an object (or S / U) array of bytes and str, which is encoded as UTF-8."""
        flat = [v.encode() if isinstance(v, str) else v for v in values.reshape(-1).tolist()]
        lengths = np.fromiter((len(value) for value in flat), np.int64, len(flat))
        starts = np.cumsum(lengths) - lengths
        data = np.frombuffer(b"".join(flat), np.uint8)
        return cls(data, starts.reshape(values.shape), lengths.reshape(values.shape))

    @classmethod
    def from_views(cls, views: Sequence[memoryview]) -> Strings | None:
        """Return stretches of one array of bytes, which is not copied; None for those of others."""
        data = views[0].obj
        if not isinstance(data, np.ndarray) or any(view.obj is not data for view in views):
            return None
        places = [np.asarray(view).ctypes.data for view in views]
        lengths = np.fromiter(map(len, views), np.int64, len(views))
        return cls(data, np.array(places, np.int64) - data.ctypes.data, lengths)


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows whose leading dimensions vary.  Row i has shape ``(*extents[i], *inner)``."""

    raw: np.ndarray | Strings  # uint8 [any], C-contiguous; of byte strings one-dimensional Strings
    dtype: np.dtype  # that of objects for byte strings
    starts: np.ndarray  # int64 [n], index into raw: of bytes, not necessarily aligned
    extents: np.ndarray  # int64 [n, r]
    inner: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> np.ndarray:
        """The first dimension of each row: the steps of a sequence."""
        return self.extents[:, 0]

    @property
    def counts(self) -> np.ndarray:
        """Number of values, or strings, of each row."""
        counts: np.ndarray = np.multiply.reduce(self.extents, axis=1, dtype=np.int64)
        return counts * prod(self.inner)

    @property
    def payload(self) -> np.ndarray:
        """The bytes that contain the values; TypeError for strings."""
        if isinstance(self.raw, Strings):
            raise TypeError("a column of strings has no values of one size")
        return self.raw

    @property
    def unit(self) -> int:
        """Number of elements of ``raw`` that are one value: its bytes, or one string."""
        return 1 if isinstance(self.raw, Strings) else int(self.dtype.itemsize)

    @property
    def item_bytes(self) -> int:
        return int(self.dtype.itemsize) * prod(self.inner)

    @property
    def nbytes(self) -> int:
        """The bytes of all values."""
        if isinstance(self.raw, Strings):
            return self.raw.take(self.items).nbytes
        return int(self.counts.sum()) * self.unit

    @property
    def items(self) -> np.ndarray:
        """The indices in ``raw`` of the strings of all rows, one after the other."""
        return ranges(self.starts, self.counts)

    def take(self, rows: Rows) -> Ragged:
        return Ragged(self.raw, self.dtype, self.starts[rows], self.extents[rows], self.inner)

    def values(self) -> np.ndarray | Strings:
        """Return the values of all rows as one dimension, copied; of strings their places."""
        if isinstance(self.raw, Strings):
            return self.raw.take(self.items)
        return gather(self.payload, self.starts, self.counts * self.unit).view(self.dtype)

    def part(self, i: int) -> np.ndarray | Strings:
        """Return row i as a view (not necessarily aligned; read-only where the buffer is)."""
        shape = (*self.extents[i].tolist(), *self.inner)
        start = int(self.starts[i])
        rows = slice(start, start + prod(shape) * self.unit)
        if isinstance(self.raw, Strings):
            return self.raw.take(rows).reshape(*shape)
        view: np.ndarray = self.raw[rows].view(self.dtype).reshape(shape)
        return view

    def row(self, i: int) -> np.ndarray:
        """Return row i as a view, or as an object array of ``bytes``."""
        part = self.part(i)
        return part.to_objects() if isinstance(part, Strings) else part

    @classmethod
    def from_values(cls, values: np.ndarray | Strings, offsets: np.ndarray) -> Ragged:
        """Return one varying dimension: row i is ``values[offsets[i]:offsets[i + 1]]``."""
        offsets, inner = np.asarray(offsets, np.int64), tuple(values.shape[1:])
        return cls.back_to_back(values, np.diff(offsets)[:, None], inner, offsets[:1])

    @classmethod
    def back_to_back(
        cls,
        values: np.ndarray | Strings,
        extents: np.ndarray,
        inner: tuple[int, ...],
        first: np.ndarray | int = 0,
    ) -> Ragged:
        """Return rows that lie one after the other, from item ``first`` on.

        Numbers that are not C-contiguous are copied.
        """
        raw, item = values.reshape(-1), prod(inner)
        if not isinstance(raw, Strings):
            raw, item = np.ascontiguousarray(raw).view(np.uint8), item * raw.dtype.itemsize
        sizes = np.multiply.reduce(extents, axis=1, dtype=np.int64)
        starts = (np.cumsum(sizes) - sizes + first) * item
        return cls(raw, values.dtype, starts, extents, inner)


Column = np.ndarray | Strings | Ragged


def row_count(rows: Rows) -> int:
    return int(rows.stop - rows.start) if isinstance(rows, slice) else len(rows)


def numbers_of(rows: Rows) -> np.ndarray:
    """Return rows by number."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def take(column: Column, rows: Rows) -> Column:
    """Return the given rows of a column, in the given order."""
    if not isinstance(column, np.ndarray):
        return column.take(rows)
    flags = column.flags
    if isinstance(rows, slice) or column.ndim == 1 or not (flags.c_contiguous and flags.aligned):
        return column[rows]
    return column.take(rows, 0)  # several times as quick; copies other arrays as a whole


def measured(column: Column) -> Column:
    """Return the column, with the width of its strings if all have one length."""
    if not isinstance(column, Strings) or not column.lengths.size:
        return column
    width = int(column.lengths.flat[0])
    return replace(column, width=width) if (column.lengths == width).all() else column


def repeated(row: Column, n: int) -> Column:
    """Return a column of one row ``n`` times."""
    return row.repeat(n, 0) if isinstance(row, np.ndarray) else row.take(np.zeros(n, np.int64))


def row_of(column: Any, i: int) -> Any:
    """Return one row: a numpy scalar or array, or ``bytes``; of a list its entry."""
    return column.row(i) if isinstance(column, (Strings, Ragged)) else column[i]


def dtype_of(column: Column) -> str:
    """Return the wire name of a column's dtype."""
    return dtypes.name_of(column.dtype)


def field_of(column: Column) -> Field:
    """Return the field of a column: dimensions that its type lets vary are None."""
    if isinstance(column, Ragged):
        varying: tuple[int | None, ...] = (None,) * column.extents.shape[1]
        return Field(dtype_of(column), (*varying, *column.inner))
    return Field(dtype_of(column), tuple(column.shape[1:]))


def ragged_of(column: np.ndarray | Strings, varying: int) -> Ragged:
    """Return rows of one shape as rows of which ``varying`` dimensions may vary."""
    dims = tuple(column.shape[1:])
    extents = np.tile(np.array(dims[:varying], np.int64), (len(column), 1))
    return Ragged.back_to_back(column, extents, dims[varying:])


def inner_dims(field: Field) -> tuple[int, ...]:
    """Return the dimensions after those that may vary, which are fixed."""
    return tuple(d for d in field.shape[field.ragged_dims :] if d is not None)


def column_of(values: np.ndarray | Strings, field: Field, extents: np.ndarray) -> Column:
    """Return the column whose rows lie back to back in flat values of native byte order."""
    inner = inner_dims(field)
    if field.ragged_dims:
        return Ragged.back_to_back(values, extents, inner)
    return values.reshape(len(extents), *inner)


def column_from_rows(rows: Sequence[object], field: Field) -> Column:
    """Return a column from one value per example, checked against a field.

    ValueError names the row (counted from 0) whose value does not fit.  An empty list stands for
    an empty array of any rank.
    """
    if field.shape == () and (quick := _scalars(rows, field)) is not None:
        return quick
    values = [bytes(row) if isinstance(row, memoryview) else row for row in rows]
    try:
        flat, extents = flat_values(values, field)
    except Misfit as misfit:
        raise ValueError(f"row {misfit.row}: {misfit}") from None
    strings = field.dtype == dtypes.BYTES
    return column_of(Strings.from_objects(flat) if strings else flat, field, extents)


def _scalars(rows: Sequence[object], field: Field) -> Column | None:
    """Return the column of scalars of one plain type; None where each must be checked."""
    kinds = set(map(type, rows))
    with suppress(ValueError, OverflowError):  # one is an error of Unicode
        if field.dtype != dtypes.BYTES and kinds in ({int}, {float}, {bool}):
            return cast(np.asarray(rows), field.dtype)
        if field.dtype == dtypes.BYTES and kinds == {memoryview}:
            return Strings.from_views(rows)  # type: ignore[arg-type]
        if field.dtype == dtypes.BYTES and kinds and kinds <= {bytes, str}:
            return Strings.from_objects(np.array(rows, object))
    return None


def concatenate(columns: Iterable[Column]) -> Column:
    """Return columns of one field, one after the other.

    Columns that point into one buffer still do afterwards; for others the payload of their rows is
    copied.
    """
    first, *others = parts = list(columns)
    if not others:
        return first
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)  # type: ignore[arg-type]
    if isinstance(first, Strings):
        return _join_strings([p for p in parts if isinstance(p, Strings)])
    ragged = [p for p in parts if isinstance(p, Ragged)]
    extents = np.concatenate([p.extents for p in ragged])
    if isinstance(first.raw, Strings):
        joined = _join_strings([p.values() for p in ragged])  # type: ignore[misc]
        return Ragged.back_to_back(joined, extents, first.inner)
    sizes = [p.counts * p.unit for p in ragged]
    raw, starts = join_buffers([p.payload for p in ragged], [p.starts for p in ragged], sizes)
    return replace(first, raw=raw, starts=starts, extents=extents)


def _join_strings(parts: list[Strings]) -> Strings:
    lengths = np.concatenate([p.lengths for p in parts])
    flat = [p.starts.reshape(-1) for p in parts]
    sizes = [p.lengths.reshape(-1) for p in parts]
    data, starts = join_buffers([p.data for p in parts], flat, sizes)
    return Strings(data, starts.reshape(lengths.shape), lengths)


# ── Columns as a file or a function gives them become columns as they were declared.
#
#     dtype     where no value loses what it means
#     shape     equal rank; a dimension declared fixed must have that size in every row, one
#               declared as varying may be fixed in the file
#
# Nothing is copied where only the view changes.


def defaults_of(features: Mapping[str, Feature]) -> dict[str, Column]:
    """Return the defaults of features that have one, as columns of one row."""
    return {
        name: column_from_rows([feature.default], feature.field)
        for name, feature in features.items()
        if feature.has_default
    }


def clash(have: Field, want: Field) -> str | None:
    """Return the reason why no row of the one can be a row of the other; None where some may."""
    alike = len(have.shape) == len(want.shape)
    alike &= (have.dtype == dtypes.BYTES) == (want.dtype == dtypes.BYTES)
    for a, b in zip(have.shape, want.shape, strict=False):
        alike &= a is None or b is None or a == b
    return None if alike else f"is {have} in the file and {want} in the declaration"


def misfit(row: object, want: Field) -> str:
    """Return the reason why a row does not fit a field, or ""."""
    try:
        column_from_rows([row], want)
    except (ValueError, TypeError, OverflowError) as error:
        return str(error).removeprefix("row 0: ")
    return ""


def fitted(column: Column, want: Field) -> Column:
    """Return the column as declared.  ValueError where a row does not fit (``misfit``)."""
    if text := clash(field_of(column), want):
        raise ValueError(text)
    if isinstance(column, Ragged):
        for size, extents in zip(want.shape, column.extents.T, strict=False):
            if size is not None and (extents != size).any():
                raise ValueError(f"a row has another shape than {want}")
    column = _cast(column, want.dtype)
    if isinstance(column, Ragged):
        return _narrowed(column, want) if want.ragged_dims else _dense(column, want)
    return ragged_of(column, want.ragged_dims) if want.ragged_dims else column


def _cast(column: Column, want: str) -> Column:
    if want == dtypes.BYTES or column.dtype == dtypes.numpy_dtype(want):
        return column
    if isinstance(column, Ragged):
        values = cast(column.values(), want)  # type: ignore[arg-type]
        return column_of(values, field_of(column), column.extents)
    return cast(column, want)  # type: ignore[arg-type]


def _narrowed(column: Ragged, want: Field) -> Column:
    """Return the same rows with another number of varying dimensions."""
    extra = column.inner[: max(0, want.ragged_dims - column.extents.shape[1])]
    extents = column.extents[:, : want.ragged_dims]
    if extra:
        extents = np.hstack([extents, np.tile(np.array(extra, np.int64), (len(column), 1))])
    return replace(column, extents=extents, inner=inner_dims(want))


def _dense(column: Ragged, want: Field) -> Column:
    shape = inner_dims(want)
    if isinstance(column.raw, Strings):
        return column.raw.take(column.items).reshape(len(column), *shape)
    return rows_of_items(column.raw, column.starts, column.dtype, shape)


def rows_of_items(
    raw: np.ndarray, starts: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]
) -> np.ndarray:
    """Return rows of one fixed shape, copied from where they start in a buffer (bytes)."""
    n, size = len(starts), prod(shape) * dtype.itemsize
    if not n or not size:
        return np.empty((n, *shape), dtype)
    rows: np.ndarray = window(raw, size)[starts].view(dtype)
    return rows.reshape(n, *shape)
