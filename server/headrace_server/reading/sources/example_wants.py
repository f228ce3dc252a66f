"""The features that are wanted of a record, compared with those found in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from headrace_proto import dtypes
from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.columns import Column, column_from_rows
from headrace_server.reading.fitting import default_column

from .example_wire import BYTES, FLOATS, INTS, KIND_NAMES, FoundValues, Run

_DTYPES: Final = {FLOATS: "a floating dtype", INTS: "an integer dtype"}


class Fault(Exception):
    """A record can not be used: the reason by its short name, and in words."""


@dataclass(frozen=True, slots=True, eq=False)
class WantedFeature:
    """One wanted feature.  ``count`` values make a row, or one step of a sequence."""

    name: str
    kind: int
    field: Field
    sequence: bool
    shape: tuple[int, ...]
    count: int
    dtype: np.dtype | None  # None: byte strings
    default: Column | None  # of one row; None: the feature must be there

    @property
    def filling(self) -> Column:
        """A column of one row, for records that do not have the feature."""
        if self.default is not None:
            return self.default
        nothing = np.full([d or 0 for d in self.field.shape], b"" if self.dtype is None else 0)
        return column_from_rows([nothing.astype(self.dtype or object)], self.field)

    def runs_of(self, found: FoundValues | None) -> Sequence[Run] | None:
        """Return the values found in a record; None: use the default.  Fault without either."""
        if found is None or (found.kind == 0 and found.steps is None):
            if self.default is not None:
                return None
            raise Fault(
                "missing_feature",
                f"feature {self.name!r} is missing, and has no default. Declare one, or skip such "
                f"records with on_bad_example='skip'",
            )
        if found.kind != self.kind and found.steps != 0:
            raise Fault(
                "wrong_type",
                f"feature {self.name!r} holds {KIND_NAMES[found.kind]}, wanted "
                f"{KIND_NAMES[self.kind]} for dtype {self.dtype or 'bytes'}{self._remedy(found)}",
            )
        if found.steps and found.widths != {self.count}:
            raise Fault("wrong_type", self.miscount(min(found.widths - {self.count}), "in a step"))
        return found.runs

    def miscount(self, count: int, where: str = "") -> str:
        """Return the text of the fault of a record that has so many values."""
        wanted = f"a multiple of {self.count}" if self.sequence and not where else f"{self.count}"
        shape = list(self.shape)
        return (
            f"feature {self.name!r} has {count} values{where and ' ' + where}, wanted {wanted} for "
            + (f"steps of shape {shape}" if self.sequence else f"shape {shape}")
        )

    def _remedy(self, found: FoundValues) -> str:
        if found.kind == BYTES:
            return ". Declare it as bytes and decode it in a map"
        return f". Declare it with {_DTYPES[found.kind]}" if found.kind else ""


def want_of(name: str, feature: Feature) -> WantedFeature:
    """Return the want of a declared feature; ValueError for one that TFRecord can not have."""
    dtype = None if feature.dtype == dtypes.BYTES else dtypes.numpy_dtype(feature.dtype)
    if dtype is None:
        kind = BYTES
    elif dtype.kind in "iub":
        kind = INTS
    elif dtype.kind == "c":
        raise ValueError(
            f"feature {name!r} has dtype {dtype}: TFRecord holds no complex numbers. Declare the "
            f"parts as floats and join them in a map"
        )
    else:
        kind = FLOATS
    count = prod(feature.shape)
    sequence = feature.kind == "sequence"
    if sequence and not count:
        raise ValueError(f"feature {name!r}: a step of shape {list(feature.shape)} holds nothing")
    default = default_column(name, feature) if feature.has_default else None
    return WantedFeature(name, kind, feature.field, sequence, feature.shape, count, dtype, default)
