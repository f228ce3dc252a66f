"""``filter``: the examples for which a function gives True."""

from __future__ import annotations

import numpy as np

from headrace_proto.errors import brief, kind_of

from ...pipeline.function_names import Sent
from ..chunk import BadRecords, Chunk
from ..row_functions import RowFunction
from ..stage import Stage


class Filter(Stage):
    """A function of the user's judges each row, or with ``vectorized`` all of a chunk."""

    repeatable = True

    def __init__(self, function: str | Sent, vectorized: bool = False) -> None:
        self._function = RowFunction(
            function, f"filter function {function}", "filter_failed", vectorized
        )

    def open(self) -> None:
        self._function.load()

    def apply(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        if self._function.vectorized:
            mask = self._function.over_columns(chunk, bad, lambda r: _mask_fault(r, len(chunk)))
            if mask is None:
                return chunk.take(slice(0, 0))
            return self.kept(chunk, np.asarray(mask), "filtered")
        rows, verdicts = self._function.over_rows(chunk, bad, _verdict_fault)
        if len(rows) < len(chunk):
            chunk = chunk.take(np.array(rows, np.int64))
        return self.kept(chunk, np.array(verdicts, bool), "filtered")


def _verdict_fault(result: object) -> str:
    if isinstance(result, (bool, np.bool_)):
        return ""
    if isinstance(result, np.ndarray) and result.dtype == bool and result.ndim == 0:
        return ""
    return f"gave {brief(result)}, {kind_of(result)}; a filter gives True or False"


def _mask_fault(result: object, n: int) -> str:
    try:
        mask = np.asarray(result)
    except Exception:
        mask = np.empty(0)
    if mask.dtype == bool and mask.shape == (n,):
        return ""
    what = f"{mask.dtype} of shape {list(mask.shape)}"
    return f"gave {what}; a vectorized filter gives a bool array of shape [{n}]"
