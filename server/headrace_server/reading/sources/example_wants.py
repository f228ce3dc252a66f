"""The features that are wanted of a record, compared with those found in one.

    Feature (declared) ─► Want ── plan(Found) ─► Recipe: how to take the values of every record
                                                 that is laid out like this one

A recipe is made of one record; ``Fault`` gives the reason why the record can not be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, Literal, NamedTuple

import numpy as np

from headrace_proto import dtypes
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.columns import Column, row_of

from .declared_columns import default_column
from .example_wire import BYTES, FLOATS, INTS, KIND_NAMES, FoundValues

_DTYPES: Final = {FLOATS: "a floating dtype", INTS: "an integer dtype"}


class Fault(Exception):
    """A record that can not be used: the reason by its short name, and in words."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


class Recipe(NamedTuple):
    """The way to take the values of one feature from a record, by parts as in ``FoundValues``.

    ``loose`` parts hold for no other record and are read one by one.  ``values`` is the number
    of values, -1 where only reading them shows it.  One packed varint is what the declaration asks
    for, not yet what the bytes hold.
    """

    form: Literal["default", "run", "ints", "texts", "loose"]
    values: int = -1
    parts: Sequence[tuple[int, ...]] = ()


DEFAULT: Final = Recipe("default")
_NO_FLOATS: Final = ((0, 0, 0, 1),)


@dataclass(frozen=True, slots=True, eq=False)
class WantedFeature:
    """One feature wanted.  ``count`` values make a row, or one step of a sequence."""

    name: str
    kind: int
    sequence: bool
    shape: tuple[int, ...]
    count: int
    dtype: np.dtype | None  # None: byte strings
    default_column: Column | None  # of one row; None: the feature must be there

    @property
    def default(self) -> np.ndarray:
        """The numbers of the default, flat."""
        assert self.default_column is not None
        return np.asarray(row_of(self.default_column, 0), self.dtype).reshape(-1)

    def plan(self, found: FoundValues | None) -> Recipe:
        if found is None or (found.kind == 0 and found.steps is None):
            if self.default_column is not None:
                return DEFAULT
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
            seen = min(found.widths - {self.count})
            raise self.miscount(seen, "in a step")
        return self._plan(found)

    def _plan(self, found: FoundValues) -> Recipe:
        parts = found.parts
        if self.kind == FLOATS:
            count = sum(size // 4 * times for _, size, _, times in parts)
            self.check(count)
            return Recipe("run" if len(parts) < 2 else "loose", count, parts or _NO_FLOATS)
        count = len(parts)
        if self.kind == BYTES:
            self.check(count)
            return Recipe("texts", count, parts)
        if not any(part[2] for part in parts):
            self.check(count)
        elif count > 1 or self.sequence or self.count > 1:
            count = -1
        return Recipe("ints", count, parts)

    def check(self, count: int) -> None:
        """Fault unless so many values make a row."""
        if count % self.count if self.sequence else count != self.count:
            raise self.miscount(count)

    def miscount(self, count: int, where: str = "") -> Fault:
        wanted = f"a multiple of {self.count}" if self.sequence and not where else f"{self.count}"
        shape = list(self.shape)
        return Fault(
            "wrong_type",
            f"feature {self.name!r} has {count} values{where and ' ' + where}, wanted {wanted} for "
            + (f"steps of shape {shape}" if self.sequence else f"shape {shape}"),
        )

    def _remedy(self, found: FoundValues) -> str:
        if found.kind == BYTES:
            return ". Declare it as bytes and decode it in a map"
        return f". Declare it with {_DTYPES[found.kind]}" if found.kind else ""


def want_of(name: str, feature: Feature) -> WantedFeature:
    """The want of a declared feature; ValueError for one that TFRecord can not give."""
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
    return WantedFeature(name, kind, sequence, feature.shape, count, dtype, default)
