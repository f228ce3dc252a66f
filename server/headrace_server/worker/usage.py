"""How far this server and earlier ones have used a feed: a trainer that joins is warned of it.

The store of a partition counts its commits over all servers, and has the times of the first and the
last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Usage(NamedTuple):
    """The use of a feed: times are Unix times, 0 without commits."""

    finished: bool
    batches: int
    since: float
    until: float


def usage_of(finished: bool, stored: Iterable[Sequence[float] | None]) -> Usage:
    """Return the use of a feed; ``stored``: by partition, see ``Stores.used``."""
    known = [commits for commits in stored if commits is not None]
    if not known:
        return Usage(finished, 0, 0.0, 0.0)
    counts, firsts, lasts = zip(*(commits[:3] for commits in known), strict=True)
    return Usage(finished, int(sum(counts)), min(firsts), max(lasts))
