"""The input of one partition: chunks after all stages, read in the declared order.

reader ─► share of the partition ─► stages ─► chunk          what was dropped is counted
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ..pipeline.declaration import Declaration, is_theirs
from ..shaping.plan import Position, Read, Stages, State
from .chunk import BadRecords, Chunk
from .partition_rows import MixedShare, numbered, partition_reader
from .source import StreamSource, read_on
from .stages import RowStages
from .stages.mix import Mix
from .stages.stratified_sample import StratifiedSample

#: A chunk should take about this long to read and map: long enough to work on whole arrays, short
#: enough that commits and new orders are taken in between.
_CHUNK_SECONDS = 0.03
_FIRST_CHUNK = 64
_LARGEST_CHUNK = 4096
#: Number of rows read at once to infer a schema that was not declared; the same for all
#: partitions …
_PROBE_ROWS = 64
#: … and maximum number of rows, when filters let none through.
_MOST_PROBE_ROWS = 2**20


class Intake:
    """One partition's reader and stages."""

    def __init__(
        self,
        reader: StreamSource,
        declaration: Declaration,
        partition: int,
        partitions: int,
        bad: BadRecords,
    ) -> None:
        self.bad = bad  # shared by the partitions of a reader: emptied after each read
        self.dropped: dict[str, int] = {}  # by reason; those that broke a rule start with "bad:"
        self.partition = partition
        self._source = reader
        self._reader = partition_reader(reader, declaration.order, partition, partitions, bad)
        #: The number of examples of an epoch; None where only reading shows it.
        self.share: int | None = self._reader.share
        #: The position at which every epoch starts.
        self.start: Position = self._reader.start
        #: Whether it reads a log, of which it releases what it has used.
        self.bound = self._reader.bound
        self._suspects = bad.hand.suspects.get(partition, set())
        self.stages = RowStages(declaration.stages, reader.fields)
        self.stages.check_names()
        for step in self.stages.steps:
            step.announces = partition == 0
        self.count_dropped()  # faults found when the source was opened
        if self.stages.fields is None:
            again = partial(RowStages, declaration.stages, reader.fields)
            probe(reader, self.stages, self.bad, again)
            bad.counts.clear()  # the same rows are read and counted again later
        # Rates and draws are computed over whole groups of the source: each read is one group.
        self._group = max((step.group or 0 for step in self.stages.steps), default=0)
        self._policy = declaration.policy
        self.rows_read = 0  # rows read by this life
        self._limit = _FIRST_CHUNK
        self._started = 0.0
        self._waits_since = 0.0  # when the source was found to have nothing yet
        # Sources of the user's code, which may wait.
        named = [leaf.options.get("function", leaf.kind) for leaf in declaration.source.leaves]
        self.awaited = ", ".join(str(name) for name in named if is_theirs(name))

    @property
    def fields(self) -> dict[str, Field] | None:
        """The schema of an example after the stages."""
        known = self.stages.fields
        return None if known is None else dict(known)

    def first_chunks(self) -> Iterator[Chunk]:
        """Yield the first examples of the source after the stages; they are read later all the
        same."""
        for chunk in _from_the_start(self._source, 1):
            self.bad.hand.hold(chunk, 0)
            yield self.stages.probe(chunk, self.bad)

    @property
    def stratified(self) -> list[StratifiedSample]:
        """The stages with target proportions."""
        return [step for step in self.stages.steps if isinstance(step, StratifiedSample)]

    @property
    def mix(self) -> Mix | None:
        """The stage of a mix, which is the first."""
        return next((step for step in self.stages.steps if isinstance(step, Mix)), None)

    def _weigh(self, read: Read) -> None:
        """Have the reader of a mix draw by the weights of its stage."""
        if isinstance(self._reader, MixedShare) and self.mix is not None:
            numbered = self._reader.number
            self._reader.schedule = self.mix.schedule(read.epoch, read.position[0], numbered)

    def limit(self, most: int | None) -> int:
        """Return the number of rows to read at once, with a bound of the shape's own.

        Rows are read one by one while some are ahead that a worker had at hand when it died.
        """
        return self._group or (1 if self._suspects else min(self._limit, most or _LARGEST_CHUNK))

    def ready(self, read: Read) -> int:
        """Return how many rows of a read are there, at most its limit."""
        self._weigh(read)
        n = self._reader.ready(read.epoch, read.position, read.limit)
        now = time.monotonic()
        if self._waits_since:
            self.stages.seconds["reading"] += now - self._waits_since
        if self._group and n < read.limit:
            n = 0
        self._waits_since = 0.0 if n else now
        return n

    def begin(self) -> Stages:
        """Prepare a read; return the state of the stages."""
        self._started = time.monotonic()
        return self.stages.state()

    def chunk(self, read: Read) -> tuple[Chunk, Position | None]:
        """Return the rows of a read after the stages, and the next position."""
        began = time.monotonic()
        self._weigh(read)
        reading = partial(self._reader.read, read.epoch)
        if self._group:  # which is read whole
            chunk, position = read_on(reading, read.position, read.limit)
        else:
            chunk, position = reading(read.position, read.limit)
        if self._reader.counted_elsewhere:
            self.bad.counts.clear()
        self.stages.seconds["reading"] += time.monotonic() - began
        after = self.stages.apply(chunk, self.bad, read.epoch)
        self.rows_read += len(chunk)
        return after, position

    def end(self) -> None:
        """Finish a read: update counts and the size of the next read."""
        self.count_dropped()
        self.check_bad()
        if self._suspects:
            self._suspects -= self.bad.hand.touched
            self.bad.hand.touched.clear()
        seconds = time.monotonic() - self._started
        if seconds > 2 * _CHUNK_SECONDS:
            self._limit = max(1, self._limit // 2)
        elif seconds < _CHUNK_SECONDS / 2:
            self._limit = min(_LARGEST_CHUNK, self._limit * 2)

    def count_dropped(self) -> None:
        """Add rows that the stages and the reader have dropped to this partition's counts."""
        for prefix, counts in (("bad:", self.bad.counts), ("", self.stages.counts)):
            for reason, n in counts.items():
                self.count(prefix + reason, n)
            counts.clear()

    def count(self, reason: str, rows: int) -> None:
        """Count dropped rows."""
        if rows:
            self.dropped[reason] = self.dropped.get(reason, 0) + rows

    def check_bad(self) -> None:
        """Raise an error where there are more bad examples than the feed allows."""
        bad = {r[4:]: n for r, n in self.dropped.items() if r.startswith("bad:")}
        if text := self._policy.too_bad(bad):
            raise DataError(text)

    def dropped_with(self, more: Mapping[str, int]) -> dict[str, int]:
        """Return all rows dropped so far by reason, with those that a shape dropped."""
        own = self.dropped
        return {reason: own.get(reason, 0) + more.get(reason, 0) for reason in {**own, **more}}

    def progress(self, reading: State) -> dict[str, object]:
        """Return the progress of reading, in numbers for people; ``reading`` is its position."""
        at = reading["position"]
        known = at if isinstance(at, int) else None
        return {
            "read": self.rows_read,
            "epoch": reading["epoch"],
            "position": known,
            "share": None if known is None else self.share,
            "seconds": dict(self.stages.seconds),
        }

    def release(self, positions: Sequence[Position | None]) -> None:
        """Note that a later life reads from these positions on, and nothing before."""
        self._reader.release(positions)

    def resume(self, epoch: int, position: Position, dropped: dict[str, int]) -> None:
        """Resume from a cursor; its chunks were counted when first read."""
        if position is not None:
            self._reader.recall(epoch, position)
        self.stages.counts.clear()
        self.bad.counts.clear()
        self.dropped = dict(dropped)


def probe(
    reader: StreamSource, stages: RowStages, bad: BadRecords, again: Callable[[], RowStages]
) -> None:
    """Infer the schema of user functions from their first results.

    Suspects go alone through stages of their own first, since the schema depends on all rows.
    """
    seen, hand = 0, bad.hand
    suspects = [*set().union(*hand.suspects.values())]
    for chunk in _from_the_start(reader, _PROBE_ROWS):
        for place in np.flatnonzero(np.isin(chunk.ordinals, suspects)).tolist():
            one = chunk.take(slice(place, place + 1))
            hand.hold(one, 0)
            again().probe(one, bad)
        hand.hold(chunk, 0)
        if len(chunk):
            stages.probe(chunk, bad)
        if stages.fields is not None:
            return
        seen += len(chunk)
        if seen >= _MOST_PROBE_ROWS:
            raise DataError(
                f"the filters let none of the first {seen} examples through, so the schema of "
                "the columns of map can not be inferred: declare them with map(…, schema=…)"
            )


def _from_the_start(reader: StreamSource, rows: int) -> Iterator[Chunk]:
    """Yield the source from its first row on, in growing chunks; the first has ``rows``."""
    for stream in range(reader.streams):
        position: bytes | None = b""
        while position is not None:
            chunk, position = reader.read(stream, position, rows)
            yield numbered(chunk, stream)
            rows = min(2 * rows, _LARGEST_CHUNK)
