"""The flight recorder: the rows of every batch, its trainer, and the end of its lease.

    worker ── Trace of a batch it made ─► RowsRecorder  ─► rows-….flight    before it is announced
    owner  ── effects of one round     ─► LeaseRecorder ─► leases-….flight  before they are acted on

A worker owns the leases of its partitions.  Each of its lives has a number of its own, so there is
a file of leases for each.

Frames of rows:    [0, id, name of a file]
                   [1, partition, chunk, source]
                   [2, partition, number, rows, parts of chunks, meta]
                   [3, partition, number, rows, segments, meta, states]
Frames of leases:  [time, entries of one round], see ``leases.py``

Each file is self-contained: all references of its frames are within it.  A fault is logged once and
stops nothing; after a while a new file is tried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from headrace_proto.messages import Hello

from ..core.handover import Answer, Effect, Reclaimed, Returned, Send
from ..core.plan import Part
from ..core.slots import Segments
from ..process.config import RunConfig
from ..reading.trace import ChunkTrace, Trace
from .files import FORMAT, FlightFile, frame, packed

logger = logging.getLogger("headrace.flight")

#: Pause after a fault before the next attempt.
_PAUSE_S: Final = 10.0


class RowsFrame:
    """Kinds of frames of rows."""

    FILE, SOURCE, PARTS, SEGMENTS = range(4)


class LeasesEntry:
    """Kinds of entries of leases."""

    SENT, COMMITTED, STALE, REFUSED, ENDED, JOINED, HELD = range(7)


def flight_directory(state: str | Path, feed: str) -> Path:
    """Return where a feed's flight is recorded."""
    return Path(state) / "feeds" / feed / "flight"


class _Recorder:
    """The part of one feed's record that one life of one worker writes."""

    def __init__(
        self, config: RunConfig, feed: str, name: str, header: Callable[[], list[Any]]
    ) -> None:
        assert config.state_directory is not None
        directory = flight_directory(config.state_directory, feed)
        self._feed = feed
        self._file = FlightFile(directory, name, config.record_bytes, 2 * config.workers, header)
        self._logged = False
        self._pause_until = 0.0

    def _write(self, data: Callable[[], bytes]) -> bool:
        """Append frames, made once more where they begin a file; return whether it worked."""
        if self._pause_until and time.monotonic() < self._pause_until:
            return False
        try:
            frames = data()
            if not self._file.fits(len(frames)):
                self._forget()
                frames = data()
                self._file.begin(len(frames))
            self._file.write(frames)
        except Exception as error:
            self._file.close()
            self._pause_until = time.monotonic() + _PAUSE_S
            if not self._logged:
                self._logged = True
                what = f"{type(error).__name__}: {error}"
                text = "the record of feed %r has gaps (logged once; the feed goes on): %s"
                logger.error(text, self._feed, what)
            return False
        return True

    def _forget(self) -> None:
        """Forget the definitions of the present file."""

    def close(self) -> None:
        self._file.close()


class RowsRecorder(_Recorder):
    """Records the batches of one feed that one life of a worker makes."""

    def __init__(self, config: RunConfig, feed: str, worker: int, life: int) -> None:
        header = [FORMAT, "rows", feed, config.start, worker, life]
        name = f"rows-{config.start:010d}-{worker:04d}-{life:06d}"
        super().__init__(config, feed, name, lambda: header)
        self._known: set[tuple[int, int]] = set()  # partition and chunk of sources in the file
        self._names: dict[str, int] = {}

    def _forget(self) -> None:
        self._known.clear()
        self._names.clear()

    def made(self, partition: int, number: int, rows: int, trace: Trace) -> None:
        """Record a batch that was made."""
        if self._write(lambda: b"".join(self._frames(partition, number, rows, trace))):
            self._known.update((partition, chunk) for chunk in trace.sources)

    def _frames(self, partition: int, number: int, rows: int, trace: Trace) -> Iterator[bytes]:
        for chunk, source in trace.sources.items():
            if (partition, chunk) not in self._known:
                yield from self._source(partition, chunk, source)
        batch, meta = [partition, number, rows], dict(trace.meta)
        if trace.segments is None:
            yield frame([RowsFrame.PARTS, *batch, [_part(part) for part in trace.parts], meta])
        else:
            states = None if trace.states is None else dict(trace.states)
            yield frame([RowsFrame.SEGMENTS, *batch, _segments(trace.segments), meta, states])

    def _source(self, partition: int, chunk: int, source: ChunkTrace) -> Iterator[bytes]:
        origin, read = source.origin, source.read
        for name in origin.files:
            if name not in self._names:
                self._names[name] = len(self._names)
                yield frame([RowsFrame.FILE, self._names[name], name])
        files = [self._names[name] for name in origin.files]
        offset = None if origin.offset is None else packed(origin.offset)
        rows = [packed(source.ordinals), files, packed(origin.file), packed(origin.record), offset]
        how = [read.epoch, read.position, read.limit, source.stages]
        yield frame([RowsFrame.SOURCE, partition, chunk, how, rows, list(source.keys)])


def _part(part: Part) -> list[Any]:
    if isinstance(part.rows, slice):
        return [part.chunk, int(part.rows.start), int(part.rows.stop)]
    return [part.chunk, packed(part.rows)]


def _segments(batch: Segments) -> list[Any]:
    columns = [batch.chunks, batch.rows, batch.segments, batch.counts, batch.indices]
    return [*map(packed, [*columns, batch.lanes, batch.starts]), batch.stripe]


class LeaseRecorder(_Recorder):
    """Records the batches of one feed that one life of an owner hands out."""

    def __init__(
        self, config: RunConfig, feed: str, owner: int = 0, by_number: bool = True
    ) -> None:
        """``by_number``: a trainer takes batches of several owners in the order of the feed."""
        kind = [FORMAT, "leases", feed, config.start]
        super().__init__(
            config,
            feed,
            f"leases-{config.start:010d}",
            lambda: [*kind, list(self._trainers.values()), owner, by_number],
        )
        self._trainers: dict[int, list[Any]] = {}
        self._joined: list[list[Any]] = []
        self._last_token = 0

    def joined(self, session: int, hello: Hello) -> None:
        """Record with the next round that a trainer has a session."""
        trainer = [session, hello.host, hello.rank, hello.world_size, hello.process, hello.nonce]
        self._trainers[session] = trainer
        self._joined.append([LeasesEntry.JOINED, *trainer])

    def left(self, session: int) -> None:
        """Forget a session: files that begin from now on do not list it."""
        self._trainers.pop(session, None)

    def note(self, effects: Sequence[Effect]) -> None:
        """Record the effects of one round, which are about to be acted on."""
        entries = self._joined
        for effect in effects:
            if isinstance(effect, Send):
                if effect.token > self._last_token:  # else it is sent once more
                    self._last_token = effect.token
                    batch = effect.batch
                    place = [effect.token, batch.partition, batch.number, batch.rows]
                    entries.append([LeasesEntry.SENT, *place, effect.session, effect.seq])
            elif isinstance(effect, Answer):
                if effect.committed:
                    entries.append([LeasesEntry.COMMITTED, *effect.committed])
                if effect.stale:
                    entries.append([LeasesEntry.STALE, *effect.stale])
                entries += [[LeasesEntry.REFUSED, *fault] for fault in effect.faults]
            elif isinstance(effect, Returned):
                entries.append([LeasesEntry.ENDED, effect.token, effect.why])
            elif isinstance(effect, Reclaimed):
                entries.append([LeasesEntry.HELD, effect.token])
        if entries:
            self._joined = []
            self._write(lambda: frame([time.time(), entries]))
