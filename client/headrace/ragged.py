"""Batches whose rows have unequal lengths: their columns for users, and on the wire.

    x: ragged int64[8, ?]  ◄── columns_of ──  x: int64[?], @offsets:x: int64[9]  of the wire
    batch["x"]             ◄── the framework's form of both, on their memory

Columns whose rows have the same lengths share one array of offsets: torch computes with several
jagged tensors only if they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import ProtocolError
from headrace_proto.layout import Slot
from headrace_proto.schema import OFFSETS, RESERVED, Field

from .batch import Batch


def columns_of(layout: Mapping[str, Field]) -> dict[str, Field]:
    """Return the columns of a batch as users see them."""
    columns = {}
    for name, field in layout.items():
        if name[0] == RESERVED:
            continue
        ends = layout.get(OFFSETS + name)
        if ends is not None:
            known = ends.shape[0]
            shape = (None if known is None else known - 1, None, *field.shape[1:])
            field = Field(field.dtype, shape, ragged=True)
        columns[name] = field
    return columns


def facts_of(layout: Mapping[str, Field]) -> dict[str, Field]:
    """Return the facts of each row of a batch, beside its columns."""
    return {
        name[1:]: field
        for name, field in layout.items()
        if name[0] == RESERVED and not name.startswith(OFFSETS)
    }


class RaggedBatch(Batch):
    """A batch with ragged columns."""

    __slots__ = ()

    def _value(self, name: str, slot: Slot) -> Any:
        if OFFSETS + name not in self._slots:
            return super()._value(name, slot)
        value = self._cache.get(name)
        if value is None:
            array, framework = self.array(name), self._framework
            if slot.dtype == BYTES:
                values = framework.strings(array)
            else:
                values = framework.numbers(array, slot.dtype, True)
            value = framework.ragged(values, self._offsets(name))
            self._cache[name] = value
        return value

    def _offsets(self, name: str) -> Any:
        """Return the framework's array of offsets, shared with columns of equal offsets."""
        own = OFFSETS + name
        array = self.array(own)
        for other, value in list(self._cache.items()):
            if other.startswith(OFFSETS) and np.array_equal(super().array(other), array):
                self._cache[own] = value
                return value
        return self._cache.setdefault(own, self._framework.numbers(array, "int64", True))

    def array(self, name: str) -> np.ndarray:
        array = super().array(name)
        if not name.startswith(OFFSETS):
            return array
        count = self._slots[name.removeprefix(OFFSETS)].shape[0]
        fits = array.shape == (self.rows + 1,) and array[0] == 0 and array[-1] == count
        if not fits or (array[1:] < array[:-1]).any():  # frameworks compute with them unchecked
            raise ProtocolError(f"the offsets of column {name.removeprefix(OFFSETS)!r} do not fit")
        return array
