"""The wanted features of records, and the columns that their values become, by where they lie.

    layout, template, walk ─► spans of records ─► all spans, in the order of the rows ─► column

A span holds packed numbers, one number, or one string.  Strings, and packed floats of sequences
that are wanted as float32, stay where they are: the column points into the buffer of the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from headrace_proto import dtypes

from ....pipeline.declaration import Feature
from ...chunk import Faults
from ...columns import (
    Column,
    Ragged,
    Strings,
    column_from_rows,
    column_of,
    concatenate,
    defaults_of,
    gather,
    ranges,
    repeated,
    take,
)
from .walk import BYTES, FLOATS, INTS, KIND_NAMES, MOST_BYTES, FoundValues, Span, varints, written

_DTYPES: Final = {FLOATS: "a floating dtype", INTS: "an integer dtype"}
_FLOAT = np.dtype("<f4")
NO_NUMBERS = np.empty(0, np.int64)


class Fault(Exception):
    """A record can not be used: the reason by its short name, and in words."""


class WantedFeature:
    """One wanted feature.  ``count`` values make a row, or one step of a sequence."""

    def __init__(self, name: str, feature: Feature) -> None:
        """Raise ValueError for a feature that TFRecord can not have."""
        self.name, self.field, self.shape = name, feature.field, feature.shape
        #: The dtype, None for byte strings.
        self.dtype = None if feature.dtype == dtypes.BYTES else dtypes.numpy_dtype(feature.dtype)
        if self.dtype is None:
            self.kind = BYTES
        elif self.dtype.kind == "c":
            raise ValueError(
                f"feature {name!r} has dtype {self.dtype}: TFRecord holds no complex numbers. "
                "Declare the parts as floats and join them in a map"
            )
        else:
            self.kind = INTS if self.dtype.kind in "iub" else FLOATS
        self.sequence, self.count = feature.kind == "sequence", prod(feature.shape)
        #: The bytes before the floats of a step in a feature_list, as writers write them, and all
        #: bytes of such a step.
        self.head = b""
        for tag in (0x0A, 0x12, 0x0A) if self.sequence and self.kind == FLOATS else ():
            size = 4 * self.count + len(self.head)
            self.head = bytes([tag]) + written(size) + self.head
        self.stride = len(self.head) + 4 * self.count
        if self.sequence and not self.count:
            shape = list(feature.shape)
            raise ValueError(f"feature {name!r}: a step of shape {shape} holds nothing")
        #: A column of one row; None: the feature must be there.
        self.default = defaults_of({name: feature}).get(name)
        nothing = np.full([d or 0 for d in self.field.shape], b"" if self.dtype is None else 0)
        blank = column_from_rows([nothing.astype(self.dtype or object)], self.field)
        #: A column of one row, for records that do not have the feature.
        self.filling: Column = blank if self.default is None else self.default

    def spans_of(self, found: FoundValues | None) -> Sequence[Span] | None:
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
        return found.spans

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


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Spans of records, back to back; ``counts`` are those of each record."""

    rows: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray

    def take(self, records: np.ndarray) -> _Spans:
        counts = self.counts[records]
        if self.single:
            return _Spans(self.rows[records], self.starts[records], self.sizes[records], counts)
        spans = ranges((np.cumsum(self.counts) - self.counts)[records], counts)
        return _Spans(self.rows[records], self.starts[spans], self.sizes[spans], counts)

    @property
    def single(self) -> bool:
        """Whether each record has one span."""
        return len(self.sizes) == len(self.rows) and bool(self.counts.all())

    def bytes_of_rows(self) -> np.ndarray:
        """Return the number of bytes in the spans of each record."""
        if self.single:
            return self.sizes
        before = np.concatenate([[0], np.cumsum(self.sizes)])
        ends = np.cumsum(self.counts)
        sizes: np.ndarray = before[ends] - before[ends - self.counts]
        return sizes


class Filler:
    """Gathers the spans of one feature in n records that lie in ``data``, then makes a column."""

    def __init__(self, want: WantedFeature, data: np.ndarray, n: int) -> None:
        self._want, self._data, self._n = want, data, n
        self._added: list[_Spans] = []
        # The same from single records, as lists.
        self._rows: list[int] = []
        self._spans: list[Span] = []
        self._counts: list[int] = []

    def add(self, rows: np.ndarray, starts: np.ndarray, sizes: np.ndarray, steps: bool) -> None:
        """Add records of equally many spans [rows, spans].  ``rows`` are in order.

        ``steps``: a span is a feature_list of floats, a step after the other.
        """
        counts, starts, sizes = np.full(rows.size, starts.shape[1]), starts.ravel(), sizes.ravel()
        if steps:
            head, stride = len(self._want.head), self._want.stride
            counts = sizes // stride
            within = ranges(np.zeros_like(counts), counts)
            starts = np.repeat(starts + head, counts) + within * stride
            sizes = np.full(starts.size, stride - head)
        self._added.append(_Spans(rows, starts, sizes, counts))

    def add_one(self, row: int, start: int, spans: Sequence[Span]) -> None:
        """Add one record, which begins at ``start``."""
        self._rows.append(row)
        self._spans += [(start + at, size) for at, size in spans]
        self._counts.append(len(spans))

    def finish(self, faults: Faults) -> Column:
        """Return the column.  Rows that were not added hold the default, else anything."""
        spans, want = self._joined(), self._want
        if not len(spans.rows):
            return repeated(want.filling, self._n)
        values, counts = self._values(spans, faults)
        wrong = counts % want.count if want.sequence else counts != want.count
        if wrong.any():
            for i in np.flatnonzero(wrong).tolist():
                text = want.miscount(int(counts[i]))
                faults.setdefault(int(spans.rows[i]), ("wrong_type", text))
            spans = spans.take(np.flatnonzero(wrong == 0))
            values, counts = self._values(spans, faults)
        if want.kind == INTS:
            self._check_range(values, np.repeat(spans.rows, counts), faults)
        return self._placed(spans.rows, self._column(spans, values, counts))

    def _joined(self) -> _Spans:
        """Return all spans, in the order of their rows."""
        if self._rows:
            rows, counts = np.array(self._rows, np.int64), np.array(self._counts, np.int64)
            starts, sizes = np.array(self._spans, np.int64).reshape(-1, 2).T
            self._added.append(_Spans(rows, starts, sizes, counts))
        if len(self._added) == 1:
            return self._added[0]
        parts = [(one.rows, one.starts, one.sizes, one.counts) for one in self._added]
        spans = _Spans(*map(np.concatenate, zip((NO_NUMBERS,) * 4, *parts, strict=True)))
        places = np.full(self._n, -1)  # cheaper than to sort them
        places[spans.rows] = np.arange(spans.rows.size)
        return spans.take(places if spans.rows.size == self._n else places[places >= 0])

    def _values(self, spans: _Spans, faults: Faults) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers in the spans, and how many values each record has.

        Strings are not read, and floats only where the column does not point to them.  Numbers
        that are too long are faults of their records.
        """
        if self._want.kind == BYTES:
            return NO_NUMBERS, spans.counts
        sizes = spans.bytes_of_rows()
        if self._want.kind == FLOATS:
            if self._points(spans):
                return NO_NUMBERS, sizes // 4
            return gather(self._data, spans.starts, spans.sizes).view(_FLOAT), sizes // 4
        raw = gather(self._data, spans.starts, spans.sizes)
        values, ends = varints(raw)
        if len(values) == len(raw):  # a byte each
            return values, sizes
        bounds = np.cumsum(sizes)
        if np.array_equal(ends + 1, bounds):  # a number each
            counts = np.ones_like(bounds)
        else:
            counts = np.diff(ends.searchsorted(bounds), prepend=0)
        if (long := np.diff(ends, prepend=-1) > MOST_BYTES).any():
            text = f"feature {self._want.name!r}: a number of more than {MOST_BYTES} bytes"
            for row in np.repeat(spans.rows, counts)[long].tolist():
                faults.setdefault(row, ("corrupt_record", text))
        return values, counts

    def _points(self, spans: _Spans) -> bool:
        """Return whether the column can point to the floats: at most one span for each record."""
        want = self._want
        if not want.sequence or want.dtype != _FLOAT:
            return False
        return spans.single or bool((spans.counts <= 1).all())

    def _check_range(self, values: np.ndarray, rows: np.ndarray, faults: Faults) -> None:
        dtype = self._want.dtype
        assert dtype is not None
        if dtype == values.dtype or not values.size:
            return
        low, high = (0, 1) if dtype.kind == "b" else _limits(dtype)
        beyond = np.flatnonzero((values < low) | (values > high))
        for row, value in zip(rows[beyond].tolist(), values[beyond].tolist(), strict=True):
            text = f"{value}, which {dtype} can not ({low} … {high}). Declare it as int64"
            text = f"feature {self._want.name!r} holds {text}"
            faults.setdefault(row, ("out_of_range", text))

    def _column(self, spans: _Spans, values: np.ndarray, counts: np.ndarray) -> Column:
        """Return the column of the records that were added."""
        want = self._want
        extents = np.empty((len(counts), 0), np.int64)
        if want.sequence:
            extents = (counts // want.count)[:, None]
        if want.dtype is None:
            return column_of(Strings(self._data, spans.starts, spans.sizes), want.field, extents)
        if want.kind == FLOATS and self._points(spans):
            starts = np.zeros(len(counts), np.int64)
            starts[spans.counts == 1] = spans.starts
            return Ragged(self._data, _FLOAT, starts, extents, want.shape)
        if values.dtype != want.dtype:
            with np.errstate(all="ignore"):  # too large for float16 is inf there, as in any cast
                values = values.astype(want.dtype)
        return column_of(values, want.field, extents)

    def _placed(self, rows: np.ndarray, column: Column) -> Column:
        """Return the column of all n records."""
        if len(rows) == self._n:
            return column
        places = np.zeros(self._n, np.int64)
        if self._want.default is not None or not len(rows):
            places[:] = len(rows)
            column = concatenate([column, self._want.filling])
        places[rows] = np.arange(len(rows))
        return take(column, places)


def _limits(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), min(int(info.max), 2**63 - 1)
