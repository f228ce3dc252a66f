"""Time that counts against a timeout: only time in which the process ran and looked.

    monotonic   look  look  look ──── suspended ──── look  look
    AwakeClock  0     0.1   0.2                      1.2   1.3     gap_s=1: no gap counts for more

A process that was suspended (SIGSTOP, a frozen cgroup, a migrated machine) finds its deadlines
expired when it wakes, though the other end could not answer meanwhile, or the answer is unread.  So
every timeout of headrace is measured by an ``AwakeClock``, or is a ``Deadline``, which has one.
Machines that take the time as an argument need nothing more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: The longest single step of a wait.
_STEP_S = 0.5
#: Maximum counted time between two looks: twice a step, since a busy machine delays a look.
_GAP_S = 2 * _STEP_S


class AwakeClock:
    """Monotonic seconds, of which at most ``gap_s`` count between two calls from any thread.

    Some thread has to call it more often than that.  A process that blocks all its threads for
    longer does not count that time either.
    """

    __slots__ = ("_gap_s", "_lock", "_looked", "_source", "slept_s")

    def __init__(self, gap_s: float = _GAP_S, source: Callable[[], float] = time.monotonic) -> None:
        self._gap_s = gap_s
        self._source = source
        self._lock = threading.Lock()  # each gap counts once
        self._looked = source()
        self.slept_s = 0.0  # seconds that did not count

    def __call__(self) -> float:
        now = self._source()
        if 0.0 <= now - self._looked <= self._gap_s:  # no call, so no other thread runs up to …
            self._looked = now
            return now - self.slept_s  # … here
        with self._lock:
            passed_s = max(0.0, now - self._looked)  # 0: another thread has looked since
            self.slept_s += max(0.0, passed_s - self._gap_s)
            self._looked += passed_s
            return self._looked - self.slept_s


class Deadline:
    """The end of a wait, in time that counts.

    A caller that looks less often than twice a second gives the longest time between two looks as
    ``gap_s``.
    """

    __slots__ = ("_clock", "_end")

    def __init__(
        self,
        seconds: float,
        gap_s: float = _GAP_S,
        source: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = AwakeClock(gap_s, source)
        self._end = self._clock() + seconds

    @property
    def left_s(self) -> float:
        """Seconds until the end; 0 when it has come."""
        return max(0.0, self._end - self._clock())

    def wait(self, step: Callable[[float], T]) -> T:
        """Call ``step`` with seconds to wait until it returns something true, or the end comes.

        It is called once more, with 0, at the end: a process that was suspended looks again before
        it gives up.
        """
        while True:
            left_s = self.left_s
            result = step(min(left_s, _STEP_S))
            if result or not left_s:
                return result

    def join(self, thread: threading.Thread) -> bool:
        """Wait for a thread; return whether it has ended."""

        def ended(at_most_s: float) -> bool:
            thread.join(at_most_s)
            return not thread.is_alive()

        return self.wait(ended)
