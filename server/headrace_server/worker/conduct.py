"""How connections behave: those that only make work are not listened to any more.

    garbage      answered once per connection; after 100 the connection is mute
    too many     messages in a second: Refused (limit), and the connection is mute

What a mute connection sends is taken from the queue and dropped unread.  Whoever means well
connects anew, and is another connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from headrace_proto.errors import HeadraceError, LimitExceeded, code_of
from headrace_proto.messages import Refused

from ..process.refusals import Refusals

__all__ = ["Conduct"]

#: Messages that are none, after which a connection is mute.  One of these is a fault, not a mishap.
_PATIENCE = 100
#: Connections that are remembered; what is forgotten is at worst answered once more.
_REMEMBERED = 10_000
_SECOND = 1.0


class Conduct:
    """All connections of one server; ``send`` says something to one of them."""

    def __init__(
        self, max_messages_per_s: int, refusals: Refusals, send: Callable[[bytes, Any], bool]
    ) -> None:
        self.muted: dict[bytes, None] = {}
        self._most = max_messages_per_s
        self._refusals = refusals
        self._send = send
        self._bad: dict[bytes, int] = {}
        self._strays: Counter[bytes] = Counter()
        self._second = 0.0

    def drop(self) -> None:
        """A message of a mute connection."""
        self._refusals.counts["muted"] += 1

    def bad(self, connection: bytes, who: str, error: HeadraceError, now: float) -> None:
        """A message that is none."""
        count = self._bad[connection] = self._bad.pop(connection, 0) + 1
        _forget(self._bad)
        said = str(error)[:1000]
        text = f"refused a message of {who}: {said}" if count == 1 else ""
        self._refusals.add("garbage", connection.hex(), text, now)
        if count == 1:
            self._send(connection, Refused(code_of(error), said))
        if count >= _PATIENCE:
            self._mute(connection)

    def bears(self, connection: bytes, now: float) -> bool:
        """Whether a message outside of a session is not one too many in this second."""
        self._strays[connection] += 1
        return not self.is_too_much(self._strays[connection], connection, "a trainer", now)

    def is_too_much(self, messages: int, connection: bytes, who: str, now: float) -> bool:
        """Whether these are too many messages in a second; the connection is silenced then."""
        if messages <= self._most:
            return False
        text = f"a trainer has sent more than max_messages_per_s={self._most} in a second"
        self.silence("messages", connection, who, LimitExceeded(text), now)
        return True

    def silence(
        self, reason: str, connection: bytes, who: str, error: HeadraceError, now: float
    ) -> None:
        """Say why, for the last time, and listen to a connection no more."""
        self._refusals.add(reason, who, f"{who} is not listened to any more: {error}", now)
        self._send(connection, Refused(code_of(error), str(error)))
        self._mute(connection)

    def second_is_over(self, now: float) -> bool:
        """Whether a second has gone since this was last true: counts of messages begin anew."""
        if now - self._second < _SECOND:
            return False
        self._second = now
        self._strays.clear()
        return True

    def _mute(self, connection: bytes) -> None:
        self._bad.pop(connection, None)
        self.muted[connection] = None
        _forget(self.muted)


def _forget(entries: dict[bytes, int] | dict[bytes, None]) -> None:
    if len(entries) > _REMEMBERED:
        del entries[next(iter(entries))]
