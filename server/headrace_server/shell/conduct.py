"""How connections behave: those that only make work are not listened to any more.

    garbage      answered once per connection; after 100 the connection is mute
    too many     messages in a second: Refused (limit), and the connection is mute

What a mute connection sends is taken from the queue and dropped unread.  Whoever means well
connects anew, and is another connection.
"""

from __future__ import annotations

from collections import Counter

__all__ = ["Conduct"]

#: Messages that are none, after which a connection is mute.  One of these is a fault, not a mishap.
_PATIENCE = 100
#: Connections that are remembered; what is forgotten is at worst answered once more.
_REMEMBERED = 10_000
_SECOND = 1.0


class Conduct:
    """All connections of one server."""

    def __init__(self, max_messages_per_s: int) -> None:
        self.max_messages_per_s = max_messages_per_s
        self.muted: dict[bytes, None] = {}
        self._bad: dict[bytes, int] = {}
        self._strays: Counter[bytes] = Counter()
        self._second = 0.0

    def bad(self, connection: bytes) -> bool:
        """A message that is none; whether to answer it."""
        count = self._bad[connection] = self._bad.pop(connection, 0) + 1
        _forget(self._bad)
        if count >= _PATIENCE:
            self.mute(connection)
        return count == 1

    def stray(self, connection: bytes) -> bool:
        """A message outside of a session; False when that were too many in this second."""
        self._strays[connection] += 1
        return self._strays[connection] <= self.max_messages_per_s

    def mute(self, connection: bytes) -> None:
        """Listen to it no more."""
        self._bad.pop(connection, None)
        self.muted[connection] = None
        _forget(self.muted)

    def second_is_over(self, now: float) -> bool:
        """Whether a second has gone since this was last true: counts of messages begin anew."""
        if now - self._second < _SECOND:
            return False
        self._second = now
        self._strays.clear()
        return True


def _forget(entries: dict[bytes, int] | dict[bytes, None]) -> None:
    if len(entries) > _REMEMBERED:
        del entries[next(iter(entries))]
