"""A column as flat values in C order, as files store it and checksums cover it.

    numbers   values                        of all rows, back to back
    strings   bytes back to back, lengths
    both      the shape of each row

Equal rows give equal bytes, however a source stores them and chunks divide them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from .columns import Column, Strings


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """``lengths`` None: numbers.  ``shapes`` is int64 [rows, rank]."""

    values: np.ndarray
    lengths: np.ndarray | None
    shapes: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.lengths is None else 4 * len(self.lengths))


def flattened(column: Column) -> Flat:
    """Return the values of a column, copied unless they lie back to back already."""
    if isinstance(column, np.ndarray):
        return Flat(np.ascontiguousarray(column).reshape(-1), None, _same(column.shape))
    if isinstance(column, Strings):
        return _texts(column.reshape(-1), _same(column.shape))
    inner = np.broadcast_to(np.array(column.inner, np.int64), (len(column), len(column.inner)))
    shapes = np.concatenate([column.extents, inner], axis=1)
    values = column.values()
    return _texts(values, shapes) if isinstance(values, Strings) else Flat(values, None, shapes)


def _same(shape: tuple[int, ...]) -> np.ndarray:
    n, *inner = shape
    return np.broadcast_to(np.array(inner, np.int64), (n, len(inner)))


def _texts(strings: Strings, shapes: np.ndarray) -> Flat:
    return Flat(strings.joined(), strings.lengths.reshape(-1), shapes)


class ColumnSum:
    """A checksum over the rows of a column so far."""

    def __init__(self) -> None:
        self._sums = [0, 0, 0]
        self._rows = 0

    def add(self, flat: Flat) -> None:
        # The inner dimensions of an array without elements mean nothing, and files do not keep
        # them: they count as 0.
        empty = np.cumsum(flat.shapes == 0, axis=1) > 0
        lengths = np.empty(0, np.int64) if flat.lengths is None else flat.lengths
        for i, part in enumerate((flat.values, lengths, np.where(empty, 0, flat.shapes))):
            plain = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            self._sums[i] = zlib.crc32(plain.data, self._sums[i])
        self._rows += len(flat.shapes)

    @property
    def text(self) -> str:
        """The sum and the number of rows."""
        return "-".join(f"{value:08x}" for value in (*self._sums, self._rows))
