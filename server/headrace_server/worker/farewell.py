"""Whether the end of a feed has reached its trainers, so that the server may end.

present, and has not acknowledged the end ─┐
away: its connection is lost               ├─► the server waits for it, for a lease's TTL at most
of the server before: may be on its way    ┘
has acknowledged, left, died, was given up ──► the server does not wait
"""

from __future__ import annotations

#: Time in which trainers of an earlier server return: they send a Hello every second.
RETURN_S = 3.0


class Farewell:
    """The farewell of one feed.  Nonces name trainers."""

    def __init__(self, lease_ttl_s: float) -> None:
        self._ttl_s = lease_ttl_s
        self._away: dict[bytes, float] = {}  # by nonce: the time until which it may come back
        self._ended_at: float | None = None

    def lost(self, trainer: bytes, seen: float) -> None:
        """Note that the connection of a trainer is lost; its last message came at ``seen``."""
        self._away = {one: until for one, until in self._away.items() if until > seen}
        self._away[trainer] = seen + self._ttl_s

    def back(self, trainer: bytes) -> None:
        """Note that a trainer is back."""
        self._away.pop(trainer, None)

    def done(self, deaf: int, now: float, began_ended: bool = False) -> bool:
        """Return whether the server waits for no trainer, now that the feed has ended.

        ``deaf``: present trainers that have not acknowledged the end.  ``began_ended``: the feed
        had ended before this life began.
        """
        if self._ended_at is None:
            self._ended_at = now
        if now >= self._ended_at + self._ttl_s:
            return True
        if began_ended and now < self._ended_at + RETURN_S:
            return False
        return not deaf and not any(until > now for until in self._away.values())
