"""What was refused at the door, by reason: counted, and told in the log without flooding it.

The first of a reason from a peer is logged at once.  Of more, and of more peers, there is a line a
minute with their number.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Refusals"]

logger = logging.getLogger("headrace.trainers")

_QUIET_S = 60.0
#: Lines at once about peers that were not seen before; a storm comes from many addresses.
_AT_ONCE = 20
#: Peers that are remembered, to be told of once only.
_REMEMBERED = 10_000


@dataclass(slots=True)
class _Untold:
    since: float
    count: int = 0


@dataclass(slots=True)
class Refusals:
    """All refusals of one server."""

    counts: Counter[str] = field(default_factory=Counter)
    _peers: dict[tuple[str, str], None] = field(default_factory=dict)
    _untold: dict[str, _Untold] = field(default_factory=dict)
    _lines: int = 0
    _window: float = -_QUIET_S

    def add(self, reason: str, peer: str, text: str, now: float) -> None:
        """One more.  ``peer`` is who it was as far as that is known, ``text`` the line of the log.

        Without a text it is only counted.
        """
        self.counts[reason] += 1
        if not text:
            return
        if now - self._window >= _QUIET_S:
            self._window, self._lines = now, 0
        seen = (reason, peer) in self._peers
        if not seen and self._lines < _AT_ONCE:
            self._lines += 1
            self._peers[reason, peer] = None
            if len(self._peers) > _REMEMBERED:
                del self._peers[next(iter(self._peers))]
            logger.warning("%s", text)
            return
        self._untold.setdefault(reason, _Untold(now)).count += 1

    def tick(self, now: float) -> None:
        """Tell of those that were not told one by one."""
        for reason, untold in list(self._untold.items()):
            if now - untold.since >= _QUIET_S:
                del self._untold[reason]
                logger.warning("%d more were refused (%s)", untold.count, reason)
