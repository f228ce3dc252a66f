"""``filter``: the examples for which a function gives True."""

from __future__ import annotations

import numpy as np

from headrace_proto.errors import brief, kind_of

from ...pipeline.function_names import Sent
from ..chunk import BadRecords, Chunk
from ..row_functions import RowFunction
from ..stage import Stage


class Filter(Stage):
    """A function of the user's judges each row."""

    repeatable = True

    def __init__(self, function: str | Sent, columns: list[str] | None = None) -> None:
        """``columns``: those that the function gets, and not all."""
        self._function = RowFunction(function, f"filter function {function}", "filter_failed")
        self._columns = columns

    def open(self) -> None:
        self._function.load()

    def apply(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        seen = chunk
        if self._columns is not None:
            seen = chunk.with_columns({name: chunk.columns[name] for name in self._columns})
        rows, verdicts = self._function.over_rows(seen, bad, _verdict_fault)
        if len(rows) < len(chunk):
            chunk = chunk.take(np.array(rows, np.int64))
        return self.kept(chunk, np.array(verdicts, bool), "filtered")


def _verdict_fault(result: object) -> str:
    if isinstance(result, (bool, np.bool_)):
        return ""
    if isinstance(result, np.ndarray) and result.dtype == bool and result.ndim == 0:
        return ""
    return f"gave {brief(result)}, {kind_of(result)}; a filter gives True or False"
