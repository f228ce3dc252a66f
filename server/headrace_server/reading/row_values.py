"""One value per row of a chunk, from a column, a function or a constant; stages that judge by it.

A row whose value breaks the rule of the stage is a bad example; a function that raises, or gives
what is no value per row, makes the whole chunk bad.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from headrace_proto.errors import DataError, kind_of

from ..pipeline.argument_checks import Selector, selector_text
from .chunk import BadRecords, Chunk, fault_of, without
from .columns import Ragged, Strings
from .row_functions import RowFunction
from .stage import Stage

#: Short name of the fault of a whole chunk.
_REASON = "value_failed"


@dataclass(frozen=True, slots=True)
class Rule:
    """Bounds of a value: it is finite, and with ``whole`` an integer.

    ``text`` is the rule in words, ``reason`` the short name of the fault of a row that breaks it.
    """

    text: str
    reason: str = "out_of_range"
    least: float = 0
    most: float = np.inf
    whole: bool = False

    def admits(self, values: np.ndarray) -> np.ndarray:
        """Return a mask of the values that follow it."""
        sound: np.ndarray = np.isfinite(values)
        if self.whole and values.dtype.kind == "f":
            sound &= values == np.floor(values)
        sound &= (values >= self.least) & (values <= self.most)
        return sound


COST = Rule("a cost is finite and 0 or more")
LENGTH = Rule("a length is an integer", "wrong_type", -np.inf, whole=True)


def below(count: int, reason: str) -> Rule:
    """Return the rule of numbers of classes, or of other things of which there are ``count``."""
    return Rule(
        f"it must be an integer between 0 and {count - 1}", reason, most=count - 1, whole=True
    )


class Values:
    """A selector at work.

    With ``sequence`` a column of sequences is allowed, and gives their lengths.
    """

    def __init__(
        self, stage: str, argument: str, selector: Selector, sequence: bool = False
    ) -> None:
        self._kind, self._what = selector
        self._sequence = sequence
        self.label = f"{stage}: {argument} ({selector_text(selector)})"
        function = self._kind == "function"
        self._function = RowFunction(self._what, self.label, _REASON) if function else None
        if self._function is not None:
            self._function.load()

    def of(self, chunk: Chunk, bad: BadRecords) -> np.ndarray | None:
        """Return one number or bool per row; None where the whole chunk was bad and is skipped."""
        if self._kind == "constant":
            return np.full(len(chunk), self._what)
        if not len(chunk):  # nothing for a function to work on, nor a row to be named
            return np.empty(0)
        if self._function is not None:
            given = self._function.over_columns(chunk, bad, lambda given: _fault(given, len(chunk)))
            return None if given is None else _numbers(given)
        column = self._column(chunk)
        if not (fault := _fault(column, len(chunk))):
            return _numbers(column)
        bad.report(fault_of(chunk, None, f"{self.label} {fault}"), _REASON, len(chunk))
        return None

    def _column(self, chunk: Chunk) -> np.ndarray:
        column = chunk.columns.get(self._what)
        if column is None:
            raise DataError(
                f"{self.label}: there is no such column, only {', '.join(chunk.columns)}"
            )
        if isinstance(column, Ragged):
            if self._sequence:
                return column.extents[:, 0]
            raise DataError(f"{self.label} holds sequences; it must be one number per example")
        if self._sequence and len(column.shape) > 1:
            return np.full(len(chunk), column.shape[1])
        if isinstance(column, Strings):
            raise DataError(f"{self.label} holds strings; it must be one number per example")
        return column

    def sound(self, chunk: Chunk, bad: BadRecords, rule: Rule) -> tuple[Chunk, np.ndarray]:
        """Return the rows whose values follow a rule, and those values; report others."""
        values = self.of(chunk, bad)
        if values is None:
            return chunk.take(slice(0, 0)), np.empty(0)
        fine = rule.admits(values)
        if fine.all():
            return chunk, values
        faults = {
            row: (rule.reason, f"{self.label} is {values[row].item()!r}; {rule.text}")
            for row in np.flatnonzero(~fine).tolist()
        }
        return without(chunk, faults, bad), values[fine]


def _numbers(given: object) -> np.ndarray:
    values = np.asarray(given)
    small = values.dtype.kind == "V" or values.dtype == np.float16  # bfloat16 is of kind V
    return values.astype(np.float32) if small else values


def _fault(given: object, n: int) -> str:
    """Return the reason why a result is not a number or bool for each of n rows, or ""."""
    try:
        values = _numbers(given)
    except Exception as error:
        return f"gave {kind_of(given)}, which is no array: {error}"
    if values.shape == (n,) and values.dtype.kind in "biuf":
        return ""
    what = f"{values.dtype} of shape {list(values.shape)}"
    return (
        f"gave {what}; it must be one number per row, {n} in all (a function gets the columns of "
        "all rows at once: of a Ragged column .lengths has one per row)"
    )


def as_int64(values: np.ndarray) -> np.ndarray:
    """Return whole numbers of any dtype as int64; those beyond its limits become the limits."""
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
        limits = np.iinfo(np.int64)
        whole = np.clip(values, -(2.0**63), np.nextafter(2.0**63, 0)).astype(np.int64)
        return np.where(values >= 2.0**63, limits.max, whole)
    if values.dtype == np.uint64:
        values = np.minimum(values, np.uint64(2**63 - 1))
    return values.astype(np.int64)


class Sampler(Stage, ABC):
    """A stage that keeps the columns: it judges each row by one value."""

    #: The rule of values.
    rule: Rule

    def __init__(self, call: str, argument: str, selector: Selector | None) -> None:
        """``call`` and ``argument`` name the value in errors."""
        self._named = call, argument, selector or []

    def open(self) -> None:
        self.values = Values(*self._named)

    def apply(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        chunk, values = self.values.sound(chunk, bad, self.rule)
        return self.sampled(chunk, values, bad) if len(chunk) else chunk

    @abstractmethod
    def sampled(self, chunk: Chunk, values: np.ndarray, bad: BadRecords) -> Chunk:
        """Return the remaining rows of those with sound values, or their copies."""
