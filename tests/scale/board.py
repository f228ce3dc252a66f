"""A mapped file in which trainers count the batches that they took, for the measuring process.

    word 0: start  word 1: over  │ here  batches  rows │ here  batches  rows │ …
                                   trainer 0             trainer 1

Looking at it costs the trainers nothing, so all processes can be measured while they run.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

__all__ = ["Board"]

_HEAD, _EACH = 2, 3


class Board:
    def __init__(self, path: str | Path, trainers: int = 0) -> None:
        """With ``trainers`` it is made; without, it is there."""
        if trainers:
            Path(path).write_bytes(bytes(8 * (_HEAD + _EACH * trainers)))
        self._words = np.memmap(path, np.int64, mode="r+").view(np.ndarray)
        self._lines = self._words[_HEAD:].reshape(-1, _EACH)

    # The trainers' side

    def here(self, trainer: int) -> None:
        """A trainer is connected."""
        self._lines[trainer, 0] = 1

    def wait_for_start(self) -> None:
        while not self._words[0]:
            time.sleep(0.001)

    def took(self, trainer: int, rows: int) -> None:
        line = self._lines[trainer]
        line[1] += 1
        line[2] += rows

    @property
    def over(self) -> bool:
        return bool(self._words[1])

    # The measuring side

    def start(self) -> None:
        self._words[0] = 1

    def end(self) -> None:
        self._words[1] = 1

    @property
    def all_here(self) -> bool:
        return bool(self._lines[:, 0].all())

    @property
    def batches(self) -> list[int]:
        """By trainer."""
        return [int(n) for n in self._lines[:, 1]]

    @property
    def rows(self) -> int:
        return int(self._lines[:, 2].sum())
