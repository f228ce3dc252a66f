"""The use of a feed by this server and by earlier ones.

a store that is opened ─► add() ─┐
a commit ─► now() ───────────────┴─► total(): what a trainer that joins is warned of
"""

from __future__ import annotations

import time
from math import inf, isfinite
from typing import NamedTuple


class Usage(NamedTuple):
    """The use of a feed: times are Unix times, 0 without commits."""

    finished: bool
    batches: int
    since: float
    until: float


class FeedUse:
    """The use of one feed."""

    def __init__(self) -> None:
        self._earlier: list[tuple[int, float, float]] = []  # of earlier servers, by partition
        # Unix times of this server's first and last stored commit
        self._since, self._until = inf, -inf

    @property
    def before(self) -> bool:
        """Whether an earlier server has stored commits."""
        return bool(self._earlier)

    def add(self, batches: int, since: float, until: float) -> None:
        """Add the commits of a partition that earlier servers have stored."""
        self._earlier.append((batches, since, until))

    def now(self) -> None:
        """Note a commit."""
        self._until = now = time.time()
        if now < self._since:
            self._since = now

    def total(self, ended: bool, batches: int) -> Usage:
        """Return the use by all servers; this one has stored ``batches``."""
        counts, since, until = zip(*self._earlier, (batches, self._since, self._until), strict=True)
        return Usage(ended, sum(counts), _known(min(since)), _known(max(until)))


def _known(at: float) -> float:
    return at if isfinite(at) else 0.0
