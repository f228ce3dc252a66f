"""Gathers the values of a chunk's records into columns.

    Filler: add(plan, rows, starts)          many records of one layout, as arrays
            add_spans(rows, starts, sizes)   of one span each: packed numbers, or one string
            add_one(plan, row, start)        one record; Fault where it can not be used
            finish() ─► column               rows in order; rows that broke a rule hold anything

``add`` and ``add_spans`` give back the records (as an index) that must be added one by one.

Strings, and packed floats of sequences that are wanted as float32, stay where they are: the column
points into the buffer of the records.  Everything else is gathered once, when all rows are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace_server.reading.columns import (
    Column,
    Ragged,
    RaggedStrings,
    Strings,
    concatenate,
    take,
)
from headrace_server.reading.stretches import gather, window

from .example_wants import Fault, Recipe, WantedFeature
from .example_wire import INTS, Malformed, varints

#: Called with row, reason and text of a record that broke a rule.
OnFault = Callable[[int, str, str], None]

_FLOAT = np.dtype("<f4")
_LOW_BITS = np.uint64(0x7F)


def filler_of(want: WantedFeature, data: np.ndarray, n: int) -> Filler:
    """An empty column of n rows for one want, over the buffer of the records."""
    return (_Texts if want.dtype is None else _Numbers)(want, data, n)


def _runs(data: np.ndarray, starts: np.ndarray, part: tuple[int, ...]) -> np.ndarray:
    """Floats in ``count`` runs per record, [m, values].  ``starts`` are of the first runs."""
    _, size, stride, count = part
    if size == 0 or starts.size == 0:
        return np.empty((starts.size, size * count // 4), _FLOAT)
    if count > 1:
        starts = starts[:, None] + np.arange(count, dtype=np.int64) * stride
    values: np.ndarray = window(data, size)[starts].view(_FLOAT).reshape(len(starts), -1)
    return values


def _bytes_at(data: np.ndarray, starts: np.ndarray, size: int) -> np.ndarray:
    raw: np.ndarray = window(data, size)[starts].view(np.uint8).reshape(-1, size)
    return raw


def _short_varint(data: np.ndarray, starts: np.ndarray, size: int) -> np.ndarray:
    """One varint of ``size`` bytes each."""
    raw = _bytes_at(data, starts, size)
    value = raw[:, 0].astype(np.uint64) & _LOW_BITS
    for k in range(1, size):
        value |= (raw[:, k].astype(np.uint64) & _LOW_BITS) << np.uint64(7 * k)
    signed: np.ndarray = value.view(np.int64)
    return signed


class _Numbers:
    """Numbers, of fixed shape or sequences."""

    def __init__(self, want: WantedFeature, data: np.ndarray, n: int) -> None:
        self.want, self.data, self.n = want, data, n
        # Packed floats that still lie in the buffer: rows, starts, sizes in bytes.
        self._spans: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        # Values that have been read: rows, the values of all of them, how many each has.
        self._read: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        # The same from single records, as lists.
        self._one_span: list[tuple[int, int, int]] = []
        self._one_read: list[tuple[int, np.ndarray]] = []

    def add(self, plan: Recipe, rows: np.ndarray, starts: np.ndarray) -> np.ndarray | None:
        if plan.form == "default":
            self._take_default(rows)
            return None
        if plan.form == "ints":
            return self._add_ints(plan, rows, starts)
        (part,) = plan.parts
        if part[3] == 1:
            self._spans.append((rows, starts + part[0], np.full(rows.size, part[1])))
        else:
            values = _runs(self.data, starts + part[0], part)
            self._read.append((rows, values.reshape(-1), np.full(rows.size, values.shape[1])))
        return None

    def _take_default(self, rows: np.ndarray) -> None:
        default = self.want.default
        self._read.append((rows, np.tile(default, rows.size), np.full(rows.size, default.size)))

    def _add_ints(self, plan: Recipe, rows: np.ndarray, starts: np.ndarray) -> np.ndarray | None:
        if plan.values == 1:
            ((offset, size, _),) = plan.parts
            values = _short_varint(self.data, starts + offset, size)
            self._read.append((rows, values, np.ones(rows.size, np.int64)))
            return None
        pieces = [_bytes_at(self.data, starts + part[0], part[1]) for part in plan.parts]
        if not pieces:
            pieces = [np.empty((rows.size, 0), np.uint8)]
        raw = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
        return self._decode(rows, raw.reshape(-1), np.full(rows.size, raw.shape[1]))

    def add_spans(
        self, rows: np.ndarray, starts: np.ndarray, sizes: np.ndarray
    ) -> np.ndarray | None:
        want = self.want
        if want.kind == INTS:
            ends = self.data[np.maximum(starts + sizes - 1, 0)]
            if (sizes < 1).any() or (ends >= 0x80).any():
                return np.arange(rows.size)
            return self._decode(rows, gather(self.data, starts, sizes), sizes)
        row_bytes = 4 * want.count
        wrong = np.flatnonzero(sizes % row_bytes if want.sequence else sizes != row_bytes)
        if wrong.size:
            rows, starts, sizes = (np.delete(array, wrong) for array in (rows, starts, sizes))
        self._spans.append((rows, starts, sizes))
        return wrong if wrong.size else None

    def _decode(self, rows: np.ndarray, raw: np.ndarray, sizes: np.ndarray) -> np.ndarray | None:
        """Varints of all rows, back to back.  All rows go back when the count of one is wrong."""
        want = self.want
        try:
            values, ends = varints(raw) if raw.size else (np.empty(0, np.int64),) * 2
        except Malformed:
            return np.arange(rows.size)
        until = np.searchsorted(ends, np.cumsum(sizes))
        counts = np.diff(until, prepend=0)
        wrong = counts % want.count if want.sequence else counts != want.count
        if wrong.any():
            return np.arange(rows.size)
        self._read.append((rows, values, counts))
        return None

    def add_one(self, plan: Recipe, row: int, start: int) -> None:
        if plan.form == "default":
            self._take_default(np.array([row]))
            return
        if plan.form == "run" and plan.parts[0][3] == 1:
            self._one_span.append((row, start + plan.parts[0][0], plan.parts[0][1]))
            return
        values = self._values(plan.parts, start)
        self.want.check(values.size)
        self._one_read.append((row, values))

    def _values(self, parts: Sequence[tuple[int, ...]], start: int) -> np.ndarray:
        data = self.data
        if self.want.kind != INTS:
            runs = [_runs(data, np.array([start + part[0]]), part) for part in parts]
            return np.concatenate(runs, axis=None)
        spans = [data[start + part[0] : start + part[0] + part[1]] for part in parts]
        if not spans:
            return np.empty(0, np.int64)
        try:
            return varints(np.concatenate(spans))[0]
        except Malformed as error:
            raise Fault("corrupt_record", f"feature {self.want.name!r}: {error}") from None

    def finish(self, fault: OnFault) -> Column:
        self._join_single_records()
        for k, (rows, values, counts) in enumerate(self._read):
            self._read[k] = rows, self._checked(values, rows, counts, fault), counts
        return self._finish_sequence() if self.want.sequence else self._finish_fixed()

    def _join_single_records(self) -> None:
        if self._one_span:
            rows, starts, sizes = np.array(self._one_span, np.int64).T
            self._spans.append((rows, starts, sizes))
        if self._one_read:
            counts = np.array([values.size for _, values in self._one_read], np.int64)
            rows = np.array([row for row, _ in self._one_read], np.int64)
            joined = np.concatenate([values for _, values in self._one_read])
            self._read.append((rows, joined, counts))

    def _finish_fixed(self) -> Column:
        want = self.want
        assert want.dtype is not None
        shape = (self.n, *want.shape)
        rows = np.concatenate([np.empty(0, np.int64), *(span[0] for span in self._spans)])
        starts = np.concatenate([np.empty(0, np.int64), *(span[1] for span in self._spans)])
        part = (0, 4 * want.count, 0, 1)
        if rows.size == self.n:  # put in order, so that what is gathered is the column
            ordered = np.empty(self.n, np.int64)
            ordered[rows] = starts
            return _cast(_runs(self.data, ordered, part), want.dtype).reshape(shape)
        if len(self._read) == 1 and np.array_equal(self._read[0][0], np.arange(self.n)):
            return self._read[0][1].reshape(shape)
        out = np.zeros((self.n, want.count), want.dtype)
        if rows.size:
            out[rows] = _cast(_runs(self.data, starts, part), want.dtype)
        for rows, values, _ in self._read:
            out[rows] = values.reshape(rows.size, want.count)
        return out.reshape(shape)

    def _finish_sequence(self) -> Column:
        want = self.want
        assert want.dtype is not None
        starts = np.zeros(self.n, np.int64)
        steps = np.zeros((self.n, 1), np.int64)
        if want.dtype == _FLOAT and not self._read:  # views of the buffer
            for rows, at, sizes in self._spans:
                starts[rows] = at
                steps[rows, 0] = sizes // (4 * want.count)
            return Ragged(self.data, want.dtype, starts, steps, want.shape)
        for rows, at, sizes in self._spans:
            values = gather(self.data, at, sizes).view(_FLOAT)
            self._read.append((rows, _cast(values, want.dtype), sizes // 4))
        base = 0
        for rows, values, counts in self._read:
            starts[rows] = (base + np.cumsum(counts) - counts) * want.dtype.itemsize
            steps[rows, 0] = counts // want.count
            base += values.size
        nothing = np.empty(0, want.dtype)
        joined = np.concatenate([nothing, *(values for _, values, _ in self._read)])
        return Ragged(joined.view(np.uint8), want.dtype, starts, steps, want.shape)

    def _checked(
        self, values: np.ndarray, rows: np.ndarray, counts: np.ndarray, fault: OnFault
    ) -> np.ndarray:
        """Flat values in the declared type; integers that it can not hold are faults."""
        want = self.want
        assert want.dtype is not None
        if values.dtype != want.dtype and want.kind == INTS and values.size:
            low, high = (0, 1) if want.dtype.kind == "b" else _limits(want.dtype)
            beyond = np.flatnonzero((values < low) | (values > high))
            at_rows = rows[np.searchsorted(np.cumsum(counts), beyond, "right")]
            for row, value in zip(at_rows.tolist(), values[beyond].tolist(), strict=True):
                fault(
                    row,
                    "out_of_range",
                    f"feature {want.name!r} holds {value}, which {want.dtype} can not "
                    f"({low} … {high}). Declare it as int64",
                )
        return _cast(values, want.dtype)


def _limits(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), min(int(info.max), 2**63 - 1)


def _cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):  # too large for float16 is inf there, as in any cast
        return values.astype(dtype)


class _Texts:
    """Byte strings, of fixed shape or sequences."""

    def __init__(self, want: WantedFeature, data: np.ndarray, n: int) -> None:
        self.want, self.data, self.n = want, data, n
        # rows, starts and lengths of all their strings, how many each has
        self._blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self._rows: list[int] = []
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._counts: list[int] = []
        self._defaults: list[np.ndarray] = []

    def add(self, plan: Recipe, rows: np.ndarray, starts: np.ndarray) -> np.ndarray | None:
        if plan.form == "default":
            self._defaults.append(rows)
            return None
        offsets, sizes = np.array(plan.parts, np.int64).reshape(-1, 2).T
        at = (starts[:, None] + offsets).reshape(-1)
        self._blocks.append((rows, at, np.tile(sizes, rows.size), np.full(rows.size, plan.values)))
        return None

    def add_spans(
        self, rows: np.ndarray, starts: np.ndarray, sizes: np.ndarray
    ) -> np.ndarray | None:
        if self.want.count != 1:
            return np.arange(rows.size)
        self._blocks.append((rows, starts, sizes, np.ones(rows.size, np.int64)))
        return None

    def add_one(self, plan: Recipe, row: int, start: int) -> None:
        if plan.form == "default":
            self._defaults.append(np.array([row]))
            return
        self._rows.append(row)
        for part in plan.parts:
            self._starts.append(start + part[0])
            self._lengths.append(part[1])
        self._counts.append(len(plan.parts))

    def finish(self, fault: OnFault) -> Column:
        del fault  # any bytes are a string
        if self._rows:
            listed = (self._rows, self._starts, self._lengths, self._counts)
            rows, at, sizes, counts = (np.array(values, np.int64) for values in listed)
            self._blocks.append((rows, at, sizes, counts))
        column = self._found()
        if not self._defaults:
            return column
        assert self.want.default_column is not None
        of = np.arange(self.n)
        of[np.concatenate(self._defaults)] = self.n  # the row of the default
        return take(concatenate([column, self.want.default_column]), of)

    def _found(self) -> Strings | RaggedStrings:
        """The strings that records hold, in the buffer of the records; of other rows nothing."""
        data, want = self.data, self.want
        if not want.sequence:
            starts = np.zeros((self.n, want.count), np.int64)
            lengths = np.zeros((self.n, want.count), np.int64)
            for rows, at, sizes, _ in self._blocks:
                starts[rows] = at.reshape(-1, want.count)
                lengths[rows] = sizes.reshape(-1, want.count)
            shape = (self.n, *want.shape)
            return Strings(data, starts.reshape(shape), lengths.reshape(shape))
        first = np.zeros(self.n, np.int64)
        steps = np.zeros((self.n, 1), np.int64)
        base = 0
        for rows, at, _, counts in self._blocks:
            first[rows] = base + np.cumsum(counts) - counts
            steps[rows, 0] = counts // want.count
            base += at.size
        nothing = np.empty(0, np.int64)
        at = np.concatenate([nothing, *(block[1] for block in self._blocks)])
        sizes = np.concatenate([nothing, *(block[2] for block in self._blocks)])
        return RaggedStrings(Strings(data, at, sizes), first, steps, want.shape)


Filler = _Numbers | _Texts
