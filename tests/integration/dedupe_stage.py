"""A stage that headrace has not, in the one file that a user writes."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

import headrace_server as hs


class Dedupe(hs.Stage):
    """Drops an example whose column has a value that one of the ``window`` before it has."""

    def __init__(self, column: str, window: int) -> None:
        if window < 1:
            raise ValueError(f"window={window} is too small: the least is 1")
        self._column, self._seen = column, deque[Any](maxlen=window)

    def fields_after(self, before: Any) -> Any:
        if before is not None and self._column not in before:
            raise ValueError(f"column={self._column!r} is not one of {', '.join(before)}")
        return before

    def apply(self, chunk: hs.Chunk, bad: Any) -> hs.Chunk:
        fresh = np.zeros(len(chunk), bool)
        for row, value in enumerate(chunk.columns[self._column].tolist()):
            fresh[row] = value not in self._seen
            self._seen.append(value)
        return self.kept(chunk, fresh, "repeated")

    def state(self) -> list[Any]:
        return list(self._seen)

    def restore(self, state: list[Any]) -> None:
        self._seen.clear()
        self._seen.extend(state)
