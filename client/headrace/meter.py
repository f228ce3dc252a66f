"""How long a trainer waited for batches, and how long it was busy with them.

    ask ── blocked ──► got one ── busy ──► ask …          ended, or failed: neither

Both are totals of a feed's life in a trainer, running spans included, and are told with each
heartbeat: their difference between two looks is the share of time in which a trainer starved.
"""

from __future__ import annotations


class Meter:
    """The meter of one feed.  All times are of one clock that only grows."""

    __slots__ = ("_blocked_s", "_busy_s", "_since", "_spends")

    def __init__(self) -> None:
        self._blocked_s = 0.0
        self._busy_s = 0.0
        self._spends = ""  # what the running span is: "", "blocked" or "busy"
        self._since = 0.0

    def asks(self, now: float) -> None:
        """The trainer asks for a batch."""
        if self._spends == "busy":
            self._busy_s += now - self._since
        self._spends, self._since = "blocked", now

    def gets(self, now: float, any_came: bool = True) -> None:
        """It has one from here on; or there is none, and the time counts for nothing."""
        if self._spends == "blocked":
            self._blocked_s += now - self._since
        self._spends, self._since = "busy" if any_came else "", now

    def totals(self, now: float) -> tuple[float, float]:
        """Seconds blocked and busy so far."""
        span = max(0.0, now - self._since)
        return (
            self._blocked_s + (span if self._spends == "blocked" else 0.0),
            self._busy_s + (span if self._spends == "busy" else 0.0),
        )
