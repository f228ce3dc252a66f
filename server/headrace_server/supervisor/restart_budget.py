"""The restart budget of a worker: so many deaths within a window are forgiven.

A death that something explains, such as a row that kills, is no case for the budget.
"""

from __future__ import annotations

from collections import deque

#: Deaths of one worker that are forgiven within the window; the next one fails the feeds.
FORGIVEN = 3
WINDOW_S = 60.0


class RestartBudget:
    """The budget of one worker."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque()

    def explain(self) -> None:
        """Forget the deaths up to now: their cause is known."""
        self._deaths.clear()

    def forgives(self, now: float) -> bool:
        """Note a death at this moment; return whether the worker is started again."""
        self._deaths.append(now)
        while self._deaths[0] < now - WINDOW_S:
            self._deaths.popleft()
        return len(self._deaths) <= FORGIVEN
