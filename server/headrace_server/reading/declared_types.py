"""Columns as a file or a function gives them become columns as they were declared.

    dtype     where no value loses what it means
    shape     equal rank; a dimension declared fixed must have that size in every row, one
              declared as varying may be fixed in the file

Nothing is copied where only the view changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from headrace_proto import dtypes
from headrace_proto.schema import Field

from ..pipeline.declaration import Feature
from ..pipeline.examples import as_array, cast
from .columns import (
    Column,
    Ragged,
    Strings,
    column_from_rows,
    column_of,
    field_of,
    ragged_of,
    window,
)


def default_column(name: str, feature: Feature) -> Column:
    """Return the default of a feature as a column of one row; ValueError where it does not fit."""
    value = feature.default
    try:
        if feature.kind == "fixed":  # one value fills it
            value = np.broadcast_to(as_array(value), feature.shape)
        return column_from_rows([value], feature.field)
    except ValueError as error:
        reason = str(error).removeprefix("row 0: ")
        raise ValueError(
            f"feature {name!r}: default {feature.default!r:.80} does not fit {feature.field}: "
            f"{reason}"
        ) from None


def defaults_of(features: Mapping[str, Feature]) -> dict[str, Column]:
    """Return the defaults of features that have one, as columns of one row."""
    return {name: default_column(name, f) for name, f in features.items() if f.has_default}


def clash(have: Field, want: Field) -> str | None:
    """Return the reason why no row of the one can be a row of the other; None where some may."""
    text = f"is {have} in the file and {want} in the declaration"
    if len(have.shape) != len(want.shape) or (have.dtype == "bytes") != (want.dtype == "bytes"):
        return text
    if any(
        a is not None and b is not None and a != b
        for a, b in zip(have.shape, want.shape, strict=True)
    ):
        return text
    return None


def misfit(row: Any, want: Field) -> str:
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
    inner = tuple(d for d in want.shape[want.ragged_dims :] if d is not None)
    extra = column.inner[: max(0, want.ragged_dims - column.extents.shape[1])]
    extents = column.extents[:, : want.ragged_dims]
    if extra:
        extents = np.hstack([extents, np.tile(np.array(extra, np.int64), (len(column), 1))])
    return replace(column, extents=extents, inner=inner)


def _dense(column: Ragged, want: Field) -> Column:
    shape = tuple(d for d in want.shape if d is not None)
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
