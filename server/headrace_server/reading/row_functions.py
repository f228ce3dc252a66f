"""User functions over the rows of a chunk: those of ``map``, ``filter`` and selectors.

    chunk ─► examples_of / columns_of ─► one call for each example (or one for all) ─► checked
                                            given ─► learn ─► fields
                                              └────► collect ─► columns

A function sees read-only views, since columns share buffers with mapped files and other
chunks.  It gives one value per row and column: a list, an array, or a column.

An example that breaks a rule (a function raises on it, or its result does not fit) is named by
its origin and goes to ``BadRecords``.  A vectorized function is responsible for all its rows:
when it raises, or does not return n rows, they are all bad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from headrace_proto import dtypes
from headrace_proto.errors import DataError, HeadraceError, brief, kind_of
from headrace_proto.schema import Field

from ..pipeline.examples import Misfit, infer_field
from ..pipeline.function_names import Sent, error_with_place, resolve
from ..shaping import chance
from .chunk import BadRecords, Chunk, Faults, fault_of, without
from .columns import Column, Ragged, Strings, column_from_rows, field_of, fitted, misfit, row_of

#: One value per row: a list, an array [n, …] (of objects: strings or arrays), or a column.
Given = Any
Fields = Mapping[str, Field]

_COLUMNS = (Strings, Ragged)
#: Forms of values that a function may return; any other iterable becomes a list.
_HELD = (list, np.ndarray, *_COLUMNS)


def _shown(column: Column) -> Any:
    """Return a column as a vectorized function sees it."""
    if isinstance(column, np.ndarray):
        view = np.asarray(column).view()
        view.flags.writeable = False
        return view
    if isinstance(column, Strings):
        return column.to_objects()
    numbers = isinstance(column.raw, np.ndarray)
    return replace(column, raw=_shown(column.raw)) if numbers else column


def columns_of(chunk: Chunk) -> dict[str, Given]:
    """Return the columns by name: arrays (read-only), object arrays of bytes, and Ragged."""
    return {name: _shown(column) for name, column in chunk.columns.items()}


def examples_of(chunk: Chunk) -> list[dict[str, Given]]:
    """Return the rows as dicts of numpy scalars, arrays (read-only) and bytes."""
    listed = []
    for shown in columns_of(chunk).values():
        if isinstance(shown, np.ndarray):
            listed.append(list(shown))
        else:
            listed.append([shown.row(i) for i in range(len(shown))])
    names = list(chunk.columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*listed, strict=True)]


class Results:
    """Makes columns of what a function gives, by the fields declared or shown by its first rows."""

    def __init__(self, fields: Fields | None, *wording: str) -> None:
        """``wording``: what stands before the text of a fault, and after it."""
        self.fields = fields
        self._wording = wording

    def put(
        self, chunk: Chunk, given: Mapping[str, Given], before: Fields, bad: BadRecords
    ) -> Chunk:
        """Return the rows of a chunk with the columns given for them; others are reported."""
        columns: dict[str, Column] = {}
        faults: Faults = {}
        try:
            given = {n: v if isinstance(v, _HELD) else list(v) for n, v in given.items()}
            fields = self.fields or _learn(given, before, len(chunk), faults, *self._wording)
            if fields is not None:
                columns = collect(given, fields, len(chunk), faults, *self._wording)
        except (ValueError, TypeError) as error:  # of a dtype that is not allowed, mostly
            whole = fault_of(chunk, None, f"{self._wording[0]}no column: {error}")
            bad.report(whole, "wrong_type", len(chunk))
            return chunk.take(slice(0, 0))
        chunk = without(chunk, faults, bad)
        if not len(chunk):
            return chunk
        self.fields = fields
        return chunk.with_columns(columns)


def _learn(
    given: Mapping[str, Given], before: Fields, n: int, faults: Faults, said: str, remedy: str
) -> dict[str, Field] | None:
    """Return the fields that ``n`` rows show (None where no row is left); note the faults of rows.

    A dimension varies where rows differ in it, and where it varied in a field ``before`` of the
    same name, dtype and rank.
    """
    fields: dict[str, Field] = {}
    for name, value in given.items():
        field = _shown_field(value)
        while field is None:
            rows = [i for i in range(n) if i not in faults]
            if not rows:
                return None
            try:
                field = infer_field([value[i] for i in rows])
            except Misfit as misfit:
                text = f"{said}column {name!r}: {misfit}{remedy}"
                faults[rows[misfit.row]] = "wrong_type", text
        fields[name] = _widened(field, before.get(name))
    return fields


def _shown_field(value: Given) -> Field | None:
    """Return the field that a value shows as a whole; None where its rows must be inspected."""
    if isinstance(value, _COLUMNS):
        return field_of(value)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "SUO":
        return Field(dtypes.canonical(value.dtype.newbyteorder("=")), value.shape[1:])
    return None


def _widened(field: Field, before: Field | None) -> Field:
    if before is None or before.dtype != field.dtype or len(before.shape) != len(field.shape):
        return field
    pairs = zip(field.shape, before.shape, strict=True)
    return Field(field.dtype, tuple(None if old is None else new for new, old in pairs))


def collect(
    given: Mapping[str, Given], fields: Fields, n: int, faults: Faults, said: str, remedy: str
) -> dict[str, Column]:
    """Return the columns of the rows without a fault; note the faults of rows that do not fit.

    The text of a fault stands between ``said`` and ``remedy``.
    """
    columns: dict[str, Column] = {}
    for name, field in fields.items():
        try:
            columns[name] = _fitted(given[name], field)
        except (ValueError, TypeError, OverflowError):
            for i in range(n):
                if i not in faults and (text := _misfit(given[name], i, field)):
                    faults[i] = "wrong_type", f"{said}column {name!r}: {text}{remedy}"
            if not faults:
                raise
    if not faults:
        return columns
    keep = [i for i in range(n) if i not in faults]
    return {
        name: column_from_rows([row_of(given[name], i) for i in keep], field)
        for name, field in fields.items()
    }


def _misfit(value: Given, i: int, field: Field) -> str:
    """Return the fault of a row, or ""."""
    try:
        row = row_of(value, i)
    except (ValueError, TypeError, IndexError) as error:
        return f"its row can not be taken out of its buffer: {error}"
    text, shown = misfit(row, field), brief(row)
    return text and (text if text.startswith(shown) else f"{shown} {text}")


def _fitted(value: Given, field: Field) -> Column:
    if isinstance(value, _COLUMNS):
        return fitted(value, field)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "SUO":
        return fitted(np.ascontiguousarray(value).reshape(value.shape), field)
    return column_from_rows(list(value), field)


@contextmanager
def user_code(name: str, bad: BadRecords) -> Iterator[None]:
    """Run code of a class of the user's: name it while it runs, and in the error that it raises."""
    bad.enters(name)
    try:
        yield
    except (HeadraceError, ImportError):
        raise
    except Exception as error:
        raise DataError(f"{name}: it raised {error_with_place(error)}") from error
    bad.enters("")


def theirs(name: str, chunk: object, fields: Fields, bad: BadRecords) -> Chunk:
    """Return the rows that fit the fields of a class of the user's; report the others."""
    if not isinstance(chunk, Chunk):
        raise DataError(f"{name} gave {kind_of(chunk)}, and not a Chunk")
    if not len(chunk):
        return chunk.with_columns(Chunk.empty(fields).columns)
    if chunk.columns.keys() != fields.keys():
        raise DataError(
            f"{name}: it gave the columns {list(chunk.columns)}, and its fields are {list(fields)}"
        )
    results = Results(fields, f"{name}: ", "; that is what its fields say")
    return results.put(chunk, chunk.columns, {}, bad)


# ── Random generators for user functions: one for each example, independent of earlier draws.
#
#     seed, stage, epoch ─► key of Philox ─┐
#     ordinal ─► its counter ──────────────┴─► Generator: 2**128 numbers that no other example has
#
# Each call gets a new generator, so a resume and a retry draw the same numbers.


class Draws:
    """The generators of one stage; ``stage`` distinguishes stages of one seed."""

    def __init__(self, seed: int, stage: int) -> None:
        self._seed = chance.derive(seed, chance.MAPS, stage)

    def generator(self, epoch: int, ordinal: int, segment: int = 0) -> np.random.Generator:
        """Return the generator of one example in an epoch, or of one segment of it."""
        key = chance.key(self._seed, chance.MAPS, epoch)
        counter = np.array([0, 0, ordinal & (2**64 - 1), segment], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class RowFunction:
    """A user function, and the texts of its faults."""

    def __init__(self, name: str | Sent, label: str, reason: str, vectorized: bool = False) -> None:
        """``label`` names it in errors, ``reason`` in counts."""
        self._named, self.name = name, str(name)
        self.label, self.reason, self.vectorized = label, reason, vectorized
        self.call: Callable[..., Given]
        self.draws: Draws | None = None

    def load(self) -> None:
        """Import it, before it is called.  ImportError where there is none."""
        function: Callable[..., Given] = resolve(self._named)
        if not callable(function):
            raise ImportError(f"{self.label} is {kind_of(function)}, not a function")
        self.call = function

    def fault(
        self, chunk: Chunk, row: int | None, text: str, cause: Exception | None = None
    ) -> DataError:
        """Return the fault of a row, or (None) of the whole chunk."""
        return fault_of(chunk, row, f"{self.label} {text}", cause)

    def tried(
        self, check: Callable[[object], str], *given: object
    ) -> tuple[Given, str, Exception | None]:
        """Return the result, its fault or "", and the exception that was raised instead."""
        try:
            result = self.call(*given)
        except Exception as error:
            text = f"raised {error_with_place(error)}"
            if "read-only" in text:
                text += ".  It gets read-only views: copy an array before changing it in place"
            return None, text, error
        return result, check(result), None

    def over_rows(
        self, chunk: Chunk, bad: BadRecords, check: Callable[[object], str], epoch: int = 0
    ) -> tuple[list[int], list[Given]]:
        """Return the rows whose results pass ``check``, and these results."""
        rows, results = [], []
        progress, draws = bad.progress, self.draws
        bad.enters(self.name)
        for i, example in enumerate(examples_of(chunk)):
            progress()
            drawn = () if draws is None else (draws.generator(epoch, int(chunk.ordinals[i])),)
            result, fault, cause = self.tried(check, example, *drawn)
            if fault:
                bad.report(self.fault(chunk, i, fault, cause), self.reason)
                continue
            rows.append(i)
            results.append(result)
        bad.enters("")
        return rows, results

    def over_columns(
        self, chunk: Chunk, bad: BadRecords, check: Callable[[object], str], epoch: int = 0
    ) -> Given | None:
        """Return the function's result for the whole chunk; None for a bad one, which it reports.

        It gets the generator of the chunk's first example: where a seed is declared, each read is a
        group of a fixed number of examples.
        """
        draws = self.draws
        drawn = () if draws is None else (draws.generator(epoch, int(chunk.ordinals[0])),)
        bad.enters(self.name)
        result, fault, cause = self.tried(check, columns_of(chunk), *drawn)
        bad.enters("")
        if not fault:
            return result
        bad.report(self.fault(chunk, None, fault, cause), self.reason, len(chunk))
        return None
