"""How long a trainer waited for batches, and how long it was busy with them.

    ask ── blocked ──► got one ── busy ──► ask …          ended, or failed: neither

Both are totals since the trainer joined the feed, running spans included, and are sent with each
heartbeat: from two of them the server computes the share of time in which a trainer starved.
"""

from __future__ import annotations


class Meter:
    """The meter of one feed.  All times are of one clock that only grows."""

    __slots__ = ("_blocked_s", "_busy_s", "_since", "_spends")

    def __init__(self) -> None:
        self._blocked_s = 0.0
        self._busy_s = 0.0
        self._spends = ""  # the kind of the running span: "", "blocked" or "busy"
        self._since = 0.0

    def asks(self, now: float) -> None:
        """Note that the trainer asks for a batch."""
        if self._spends == "busy":
            self._busy_s += now - self._since
        self._spends, self._since = "blocked", now

    def gets(self, now: float, any_came: bool = True) -> None:
        """Note that the trainer has a batch, or none, so that the next span does not count."""
        if self._spends == "blocked":
            self._blocked_s += now - self._since
        self._spends, self._since = "busy" if any_came else "", now

    def totals(self, now: float) -> tuple[float, float]:
        """Return seconds blocked and busy so far."""
        span = max(0.0, now - self._since)
        return (
            self._blocked_s + (span if self._spends == "blocked" else 0.0),
            self._busy_s + (span if self._spends == "busy" else 0.0),
        )
