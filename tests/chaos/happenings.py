"""The faults of a run, with their times and victims, and those that are still to be undone."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable

from .judge import Finding, Harm

__all__ = ["Happenings"]


class Happenings:
    """The happenings of one run."""

    def __init__(self) -> None:
        self.harms: list[Harm] = []
        self.full: list[Harm] = []  # times in which the disk of a server was full
        self.findings: list[Finding] = []
        self._undo: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def note(self, seconds: float, to: str) -> None:
        """Record harm from now on: to a trainer ("t0") or a server ("s0")."""
        now = time.monotonic()
        self.harms.append(Harm(now, now + seconds, to))

    def find(self, law: str, text: str) -> None:
        self.findings.append(Finding(law, text))

    def later(self, seconds: float, undo: Callable[[], object]) -> None:
        """Call a function in ``seconds``."""
        heapq.heappush(self._undo, (time.monotonic() + seconds, next(self._order), undo))

    def undo(self, until: float = float("inf")) -> None:
        """Make the calls that are due at a time."""
        while self._undo and self._undo[0][0] <= until:
            heapq.heappop(self._undo)[2]()
