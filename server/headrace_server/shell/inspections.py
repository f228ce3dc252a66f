"""Questions for an example, on their way to the workers of a feed and back.

    begin(request, workers) ─► answer(), answer() … ─► take_done()      all answered, or time is up

A worker that is at work on user code answers late or never, so what is known by then is told, with
the partitions that have not answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..feed.sequence_feed import SequenceFeed
from .worker_messages import Seek, Sought

__all__ = ["MOST_FOUND", "Inspection", "Inspections", "sought"]

_PATIENCE_S = 3.0
#: Examples of one key that are told of.
MOST_FOUND = 64


def sought(order: Seek, worker: int, runs: Mapping[tuple[str, int], Any]) -> Sought:
    """What a worker answers, whose partitions are these."""
    found = [
        [partition, *example]
        for (feed, partition), run in runs.items()
        if feed == order.feed and isinstance(run, SequenceFeed)
        for example in run.seek(order.key)
    ]
    return Sought(order.feed, order.request, worker, found[:MOST_FOUND])


@dataclass(slots=True)
class Inspection:
    """One question.  ``found`` as in ``Sought``."""

    request: int
    feed: str
    unheard: set[int]
    until: float
    found: list[Any] = field(default_factory=list)


class Inspections:
    """Those of one router."""

    def __init__(self) -> None:
        self._open: dict[int, Inspection] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(self, request: int, feed: str, workers: Iterable[int], now: float) -> None:
        """These workers were asked."""
        self._open[request] = Inspection(request, feed, set(workers), now + _PATIENCE_S)

    def answer(self, message: Sought) -> None:
        """One of them says what it has."""
        asked = self._open.get(message.request)
        if asked is not None and message.worker in asked.unheard:
            asked.unheard.discard(message.worker)
            asked.found += message.found

    def take_done(self, now: float) -> list[Inspection]:
        """Those that wait no longer."""
        done = [i for i in self._open.values() if not i.unheard or i.until <= now]
        for inspection in done:
            del self._open[inspection.request]
        return done
