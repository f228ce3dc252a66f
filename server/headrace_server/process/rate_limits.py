"""Rate limits and bans of connections: those that only make work are muted.

    garbage      answered once per connection; after 100 the connection is mute
    too many     messages in a second: Refused (limit), and the connection is mute
    fault        of this program at a message: Refused (server), and the connection is mute

The receiver drops messages of a mute connection unread.  A trainer that reconnects has another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace_proto.errors import HeadraceError, LimitExceeded, code_of
from headrace_proto.messages import Refused

from .bounded_map import BoundedMap
from .refusals import Refusals

#: Number of garbage messages after which a connection is mute.
_PATIENCE = 100
#: Maximum number of connections to remember; a forgotten one is answered once more.
_REMEMBERED = 10_000
_SECOND = 1.0


@dataclass(eq=False)
class RateLimits:
    """All connections of one public socket.

    ``send`` sends a message to one of them; ``end`` ends the session that it may have.
    """

    most: int  # max_messages_per_s
    refusals: Refusals
    send: Callable[[bytes, Any], bool]
    end: Callable[[bytes], None]

    def __post_init__(self) -> None:
        self.muted: BoundedMap[bytes, None] = BoundedMap(_REMEMBERED)
        self._bad: BoundedMap[bytes, int] = BoundedMap(_REMEMBERED)
        self._strays: Counter[bytes] = Counter()
        self._second = 0.0

    def drop(self) -> None:
        """Count a message of a mute connection."""
        self.refusals.counts["muted"] += 1

    def bad(self, connection: bytes, who: str, error: HeadraceError, now: float) -> None:
        """Count bytes that are no message, and answer the first ones."""
        count = self._bad[connection] = self._bad.pop(connection, 0) + 1
        said = str(error)[:1000]
        text = f"refused a message of {who}: {said}" if count == 1 else ""
        self.refusals.add("garbage", text, now)
        if count == 1:
            self.send(connection, Refused(code_of(error), said))
        if count >= _PATIENCE:
            self._mute(connection)

    def bears(self, connection: bytes, now: float) -> bool:
        """Return whether a connection may send one more sessionless message in this second."""
        self._strays[connection] += 1
        return not self.is_too_much(self._strays[connection], connection, "a trainer", now)

    def is_too_much(self, messages: int, connection: bytes, who: str, now: float) -> bool:
        """Return whether these are too many messages in a second; then the connection is muted."""
        if messages <= self.most:
            return False
        text = f"a trainer has sent more than max_messages_per_s={self.most} in a second"
        self.silence("messages", connection, who, LimitExceeded(text), now)
        return True

    def silence(
        self,
        reason: str,
        connection: bytes,
        who: str,
        error: HeadraceError,
        now: float,
        fault: Exception | None = None,
    ) -> None:
        """Mute a connection, after a last message with the reason.

        ``fault``: the exception by which this program failed to handle its message.
        """
        text = f"{who} is not listened to any more: {error}"
        self.refusals.add(reason, text, now, fault)
        self.send(connection, Refused(code_of(error), str(error)[:1000]))
        self._mute(connection)

    def second_is_over(self, now: float) -> bool:
        """Return whether a second has passed since this was last true; then counts begin anew."""
        if now - self._second < _SECOND:
            return False
        self._second = now
        self._strays.clear()
        return True

    def _mute(self, connection: bytes) -> None:
        self._bad.pop(connection, None)
        self.muted[connection] = None
        self.end(connection)
