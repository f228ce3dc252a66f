"""How long a wait for the other end polls before it sleeps.

    waits of 200 µs ─► budget 400 µs ─► the answer came while polling: no wake, warm caches
           │                    └─────► in vain: counted; off for a while once half of them are
           └── 500 µs and more, one core, a quota of one: 0, sleep at once

A process that sleeps is woken late and runs cold, which costs more than a short wait by polling.
Polling pays only while the other end runs at the same time, and the answer is near.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

#: Waits that take so long are slept through: polling would cost more than the wake that it saves.
_LONGEST_S = 500e-6
#: A budget in recent waits: most answers come within it, though they vary.
_TIMES = 2.0
#: Weight of the last wait in the recent one, and what one late answer counts at most.
_WEIGHT, _MOST_S = 0.25, 2 * _LONGEST_S
#: The share of spins that are worth it: weight of the last one, and where polling ends.  It takes
#: eleven vain ones: two that slept ran in turns on one core, and until the kernel moves one of them
#: to another core each spin of one holds up the other.
_JUDGED, _TOO_FEW = 1 / 16, 0.5
#: So long waits are slept through then, the first time and at most: each vain trial doubles it.
_PAUSE_S, _MOST_PAUSE_S = 0.25, 30.0


class Spin:
    """The budget of one waiter.  All times are seconds of one clock that only grows."""

    __slots__ = ("_again_at", "_allowed", "_budget_s", "_pause_s", "_recent_s", "_worth")

    def __init__(self, cores: float) -> None:
        """``cores`` is how many this process may use at a time."""
        self._allowed = cores >= 2
        self._recent_s = inf
        self._budget_s = 0.0  # of the wait under way
        self._worth = 1.0  # share of the last spins
        self._pause_s = _PAUSE_S
        self._again_at = 0.0

    def budget_s(self, now: float) -> float:
        """How long the wait that begins may poll."""
        polls = self._allowed and self._recent_s < _LONGEST_S and now >= self._again_at
        self._budget_s = _TIMES * self._recent_s if polls else 0.0
        return self._budget_s

    def wait(
        self,
        poll: Callable[[float], T],
        at_most_s: float,
        expects: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> T:
        """Wait by ``poll``, which takes seconds; what it tells.

        It is asked without sleep for as long as the budget allows, where anybody is expected to
        come at all.  A look of no seconds is no wait.
        """
        if at_most_s <= 0:
            return poll(0.0)
        began = now = clock()
        budget_s = self.budget_s(began)
        if not expects:
            budget_s = self._budget_s = 0.0
        end = began + min(budget_s, at_most_s)
        while now < end:
            heard = poll(0.0)
            if heard:
                break
            now = clock()
        else:
            heard = poll(at_most_s)
        now = clock()
        self.waited(now - began, now)
        return heard

    def waited(self, wait_s: float, now: float) -> None:
        """The wait has ended, after ``wait_s``."""
        if self._budget_s:
            self._judge(wait_s <= self._budget_s, now)
        recent_s, wait_s = self._recent_s, min(wait_s, _MOST_S)
        self._recent_s = wait_s if recent_s == inf else recent_s + _WEIGHT * (wait_s - recent_s)

    def _judge(self, worth: bool, now: float) -> None:
        self._worth += _JUDGED * (worth - self._worth)
        if self._worth < _TOO_FEW:
            self._worth = 1.0
            self._again_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
        elif worth:
            self._pause_s = _PAUSE_S
