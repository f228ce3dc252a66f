"""How long a wait for the other end polls before it sleeps.

    waits of 200 µs ─► budget 400 µs ─► the answer came while polling: no wake, warm caches
           │                    └─────► in vain: counted; off for a while once half of them are
           └── 500 µs and more, one core, a quota of one: 0, sleep at once

A process that sleeps is woken late and runs cold, which costs more than a short wait by polling.
Polling pays only while the other end runs at the same time and answers soon.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

#: Maximum time to poll: in longer waits polling costs more than the wake that it saves.
_LONGEST_S = 500e-6
#: The budget as a multiple of the recent wait: most answers come within it, though they vary.
_TIMES = 2.0
#: Minimum budget where polling pays at all: once in a while an owner does more between two batches,
#: such as a part of a record of commits, and the wake that follows a sleep costs another 100 µs.
_LEAST_S = 250e-6
#: Weight of the last wait in the recent mean, and the most that one late answer counts.
_WEIGHT, _MOST_S = 0.25, 2 * _LONGEST_S
#: Weight of the last spin in the mean share of useful ones, and the share below which polling ends:
#: after eleven useless ones.  Two processes that slept may share a core, and until the kernel moves
#: one of them to another core, each spin of one delays the other.
_JUDGED, _TOO_FEW = 1 / 16, 0.5
#: Time without polling after that, at first and at most: each useless trial doubles it.
_PAUSE_S, _MOST_PAUSE_S = 0.25, 30.0


def cores(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return how many cores this process may use: by affinity, or by a lower quota of its cgroup.

    In a container ``own`` may name a path of the host that does not exist: then ``root`` is used.
    """
    found = [float(len(os.sched_getaffinity(0)))]
    with contextlib.suppress(OSError):
        at = root / own.read_text().rpartition("0::")[2].strip().lstrip("/")
        for directory in (at, *at.parents):
            with contextlib.suppress(OSError, ValueError):  # ValueError: the quota is "max"
                quota, period = (directory / "cpu.max").read_text().split()
                found.append(int(quota) / int(period))
    return min(found)


class Spin:
    """The budget of one waiter.  All times are seconds of one clock that only grows."""

    __slots__ = ("_again_at", "_allowed", "_budget_s", "_pause_s", "_worth", "recent_s")

    def __init__(self, cores: float) -> None:
        """``cores`` is how many this process may use at a time."""
        self._allowed = cores >= 2
        self.recent_s = inf  # mean of the last waits, of at most a millisecond each
        self._budget_s = 0.0  # for the current wait
        self._worth = 1.0  # recent share of useful spins
        self._pause_s = _PAUSE_S
        self._again_at = 0.0

    def budget_s(self, now: float) -> float:
        """Return how long the wait that begins may poll."""
        polls = self._allowed and self.recent_s < _LONGEST_S and now >= self._again_at
        self._budget_s = max(_TIMES * self.recent_s, _LEAST_S) if polls else 0.0
        return self._budget_s

    def wait(
        self,
        poll: Callable[[float], T],
        at_most_s: float,
        expects: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> T:
        """Wait by ``poll``, which takes a timeout in seconds; return its result.

        It is called without sleep for as long as the budget allows, if a message is expected to
        come at all.  With ``at_most_s=0`` it does not wait.
        """
        if at_most_s <= 0 or not self._allowed:
            return poll(max(0.0, at_most_s))
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
        """Note that a wait ended after ``wait_s``."""
        if self._budget_s:
            self._judge(wait_s <= self._budget_s, now)
        recent_s, wait_s = self.recent_s, min(wait_s, _MOST_S)
        self.recent_s = wait_s if recent_s == inf else recent_s + _WEIGHT * (wait_s - recent_s)

    def _judge(self, worth: bool, now: float) -> None:
        self._worth += _JUDGED * (worth - self._worth)
        if self._worth < _TOO_FEW:
            self._worth = 1.0
            self._again_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
        elif worth:
            self._pause_s = _PAUSE_S
