"""The script of a replay: which recorded batches it makes, in which order.

    the batches that an operator has chosen ─► Replay ─► Script ─► a draft for each, when wanted

A draft is a recorded batch, whose record says how its rows were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from headrace_proto.errors import DataError

from ..core.plan import Draft, stored
from .feed_record import FeedRecord
from .rows import BatchId, RecordedBatch


@dataclass(frozen=True, slots=True)
class Replay:
    """The parameters of a replay: recorded batches of a feed, in order."""

    directories: tuple[str, ...]  # state directories of the feed's servers
    feed: str
    partitions: int  # of the feed when it was recorded
    script: tuple[BatchId, ...]
    states: str = "recorded"

    def to_plain(self) -> list[Any]:
        script = [[batch.life, batch.partition, batch.number] for batch in self.script]
        return [[*self.directories], self.feed, self.partitions, script, self.states]

    @classmethod
    def from_plain(cls, plain: Any) -> Replay:
        directories, feed, partitions, script, states = plain
        batches = tuple(BatchId(*one) for one in script)
        return cls(tuple(directories), feed, partitions, batches, states)

    def recorded(self) -> FeedRecord:
        """Return the record of the lives of these batches."""
        state, *beside = map(Path, self.directories)
        return FeedRecord(state, self.feed, beside, {batch.life for batch in self.script})


class Script:
    """The shaper of a replay: each draft is a recorded batch, and no rows are read for it."""

    kind = "replay"
    hungry = False

    def __init__(self, replay: Replay) -> None:
        self._script = replay.script
        self._recorded = replay.recorded()
        self._next = 0
        self._stop = len(self._script)
        self._wanted = 0
        self.made = lru_cache(maxsize=2)(self._made)

    def _made(self, number: int) -> RecordedBatch:
        """Return the record of a batch; DataError if it was deleted."""
        batch = self._script[number]
        made = self._recorded.get(batch)
        if made is None:
            raise DataError(f"the record of batch {batch} is gone: the oldest are deleted first")
        return made

    def epoch_of(self, number: int) -> int | None:
        """Return the epoch of a batch's first row; None without a batch or its record."""
        try:
            return epoch_of(self.made(number)) if number < self._stop else None
        except DataError:
            return None

    def differ_from(self, rows: int) -> bool:
        """Return whether some batch has another number of rows."""
        places = map(self._recorded.place, self._script)
        return any(place is not None and place.rows != rows for place in places)

    @property
    def done(self) -> bool:
        return self._next >= self._stop

    def want(self, upto: int) -> None:
        """Allow batches until there have been ``upto``."""
        self._wanted = max(self._wanted, upto)

    def next_draft(self) -> Draft | None:
        if self.done or self._next >= self._wanted:
            return None
        self._next += 1
        return Draft((), self.made(self._next - 1).trace.meta)

    def finish(self, drop: bool = False) -> None:
        if drop:
            self._stop = self._next

    def offer(self, chunk: int, rows: int, facts: Mapping[str, Any]) -> None:
        raise ValueError("a replay reads by its record")

    def begin_epoch(self) -> None:
        raise ValueError("a replay has no epochs of its own")

    def chunks(self) -> set[int]:
        return set()

    def waiting(self) -> int:
        return 0

    def dropped(self) -> dict[str, int]:
        return {}

    def snapshot(self) -> dict[str, Any]:
        return {"next": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        (self._next,) = stored(state, "a replay", {"next": int})


def epoch_of(made: RecordedBatch) -> int | None:
    """Return the epoch of the first row of a batch; None of an empty batch of a rank."""
    if made.trace.segments is None:
        chunk = made.trace.parts[0].chunk
    elif len(made.trace.segments):
        chunk = int(made.trace.segments.chunks[0])
    else:
        return None
    return int(made.trace.sources[chunk].read.epoch)
