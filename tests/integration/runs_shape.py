"""A shape that headrace has not, in the one file that a user writes."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

import headrace_server as hs


class Runs(hs.RowShaper):
    """A batch ends where the value changes, and after ``most`` rows."""

    kind = "runs"

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._runs: deque[list[list[int]]] = deque()  # [chunk, row, value] of each row

    def offer(self, chunk: int, rows: int, facts: Any) -> None:
        for row, value in enumerate(facts["value"].tolist()):
            last = self._runs[-1] if self._runs else []
            if not last or last[-1][2] != value or len(last) == self._most:
                self._runs.append([])
            self._runs[-1].append([chunk, row, value])

    def finish(self, drop: bool = False) -> None:
        self._finished = True
        if drop:
            self._note_dropped("cancelled", sum(map(len, self._runs)))
            self._runs.clear()

    def next_draft(self) -> hs.Draft | None:
        if len(self._runs) < (1 if self._finished else 2):
            return None
        rows = np.array(self._runs.popleft())
        of_chunks = np.split(rows, np.flatnonzero(np.diff(rows[:, 0])) + 1)
        return hs.Draft(tuple(hs.Part(int(of[0, 0]), of[:, 1]) for of in of_chunks))

    def chunks(self) -> set[int]:
        return {row[0] for run in self._runs for row in run}

    def waiting(self) -> int:
        return sum(map(len, self._runs))

    def snapshot(self) -> dict[str, Any]:
        return {"runs": list(self._runs), "finished": self._finished, "dropped": self._dropped}

    def restore(self, state: Any) -> None:
        self._runs = deque(state["runs"])
        self._finished, self._dropped = state["finished"], dict(state["dropped"])


class InRuns(hs.Shape):
    """Batches of consecutive rows that have one value in a column."""

    def __init__(self, column: str, most: int) -> None:
        if most < 1:
            raise ValueError(f"most={most} is too small: the least is 1")
        self._column, self._most = column, most

    def machine(self, partition: int) -> Runs:
        return Runs(self._most)

    def facts(self, chunk: hs.Chunk, bad: Any) -> Any:
        return chunk, {"value": np.asarray(chunk.columns[self._column])}
