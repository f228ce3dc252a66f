"""Refused connections and messages, by reason: counted, and logged without flooding the log.

The first refusal of a peer for a reason is logged at once.  Further ones, and those of many peers,
are logged once a minute, with their number.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from ..core.bounded_map import BoundedMap

logger = logging.getLogger("headrace.trainers")

_QUIET_S = 60.0
#: Lines at once about peers that were not seen before; a storm comes from many addresses.
_AT_ONCE = 20
#: Peers that are remembered, so that each is logged once only.
_REMEMBERED = 10_000


@dataclass(slots=True)
class _Unlogged:
    since: float
    count: int = 0


@dataclass(slots=True)
class Refusals:
    """All refusals of one server."""

    counts: Counter[str] = field(default_factory=Counter)
    _peers: BoundedMap[tuple[str, str], None] = field(
        default_factory=lambda: BoundedMap(_REMEMBERED)
    )
    _unlogged: dict[str, _Unlogged] = field(default_factory=dict)
    _lines: int = 0
    _window: float = -_QUIET_S

    def add(self, reason: str, peer: str, text: str, now: float) -> None:
        """Count a refusal.  ``peer`` is its name as far as known, ``text`` the line of the log.

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
            logger.warning("%s", text)
            return
        self._unlogged.setdefault(reason, _Unlogged(now)).count += 1

    def tick(self, now: float) -> None:
        """Log the number of those that were not logged one by one."""
        for reason, unlogged in list(self._unlogged.items()):
            if now - unlogged.since >= _QUIET_S:
                del self._unlogged[reason]
                logger.warning("%d more were refused (%s)", unlogged.count, reason)
