"""The flight recorder: which rows every batch held, and whom it went to with what end.

    worker ── Trace of a batch it made ─► RowsRecorder  ─► rows-….flight    before it is announced
    owner  ── effects of one round     ─► LeaseRecorder ─► leases-….flight  before they are acted on

A worker owns the leases of its partitions.  Each of its lives has a number of its own, so there is
a file of leases for each.

Frames of rows:    [0, id, name of a file]
                   [1, partition, chunk, source]
                   [2, partition, number, rows, parts of chunks, meta]
                   [3, partition, number, rows, segments, meta, states]
Frames of leases:  [time, entries of one round], see ``flight_history``

Each file stands for itself: what its frames refer to is in it.  What goes wrong here is told once
and stops nothing; after a while a new file is tried.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from headrace_proto.messages import Hello

from ..core.handover import Answer, Batch, Effect, Reclaimed, Returned, Send
from ..core.plan import Part
from ..core.slots import Segments
from ..process.config import RunConfig
from ..reading.trace import Source, Trace
from .files import FORMAT, FlightFile, frame, packed

__all__ = [
    "COMMITTED",
    "ENDED",
    "FILE",
    "HELD",
    "JOINED",
    "PARTS",
    "REFUSED",
    "SEGMENTS",
    "SENT",
    "SOURCE",
    "STALE",
    "LeaseRecorder",
    "RowsRecorder",
    "flight_directory",
]

logger = logging.getLogger("headrace.flight")

#: Kinds of frames of rows …
FILE, SOURCE, PARTS, SEGMENTS = range(4)
#: … and of entries of leases.
SENT, COMMITTED, STALE, REFUSED, ENDED, JOINED, HELD = range(7)
#: After a fault, so long nothing is tried.
_PAUSE_S: Final = 10.0


def flight_directory(state: str | Path, feed: str) -> Path:
    """Where a feed's flight is recorded."""
    return Path(state) / "feeds" / feed / "flight"


class _Recorder(ABC):
    """One process' part of one feed's record."""

    def __init__(self, config: RunConfig, feed: str, name: str) -> None:
        assert config.state_directory is not None
        directory = flight_directory(config.state_directory, feed)
        writers = 2 * config.workers
        self._feed = feed
        self._file = FlightFile(directory, name, config.record_bytes, writers, self._header)
        self._told = False
        self._pause_until = 0.0

    @abstractmethod
    def _header(self) -> list[Any]:
        """The first entry of each of its files."""

    def close(self) -> None:
        self._file.close()

    def _failed(self, error: Exception) -> None:
        self._file.close()
        self._pause_until = time.monotonic() + _PAUSE_S
        if not self._told:
            self._told = True
            logger.error(
                "the flight of feed %r is recorded with gaps (told once; the feed goes on): %s: %s",
                *(self._feed, type(error).__name__, error),
            )

    @property
    def _resting(self) -> bool:
        return bool(self._pause_until) and time.monotonic() < self._pause_until


class RowsRecorder(_Recorder):
    """What one life of a worker made of one feed."""

    def __init__(self, config: RunConfig, feed: str, worker: int, life: int) -> None:
        super().__init__(config, feed, f"rows-{config.start:010d}-{worker:04d}-{life:06d}")
        self._about = [FORMAT, "rows", feed, config.start, worker, life]
        self._known: set[tuple[int, int]] = set()  # partition and chunk of sources in the file
        self._names: dict[str, int] = {}

    def _header(self) -> list[Any]:
        return self._about

    def made(self, partition: int, number: int, rows: int, trace: Trace) -> None:
        """A batch was made."""
        if self._resting:
            return
        try:
            data = self._data(partition, number, rows, trace)
            if not self._file.fits(len(data)):
                self._known.clear()
                self._names.clear()
                data = self._data(partition, number, rows, trace)
                self._file.begin(len(data))
            self._file.write(data)
            self._known.update((partition, chunk) for chunk in trace.sources)
        except Exception as error:
            self._failed(error)

    def _data(self, partition: int, number: int, rows: int, trace: Trace) -> bytes:
        parts = [
            part
            for chunk, source in trace.sources.items()
            if (partition, chunk) not in self._known
            for part in self._source(partition, chunk, source)
        ]
        if trace.segments is None:
            plain = [_part(part) for part in trace.parts]
            parts.append(frame([PARTS, partition, number, rows, plain, dict(trace.meta)]))
        else:
            states = None if trace.states is None else dict(trace.states)
            plain = _segments(trace.segments)
            parts.append(
                frame([SEGMENTS, partition, number, rows, plain, dict(trace.meta), states])
            )
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def _source(self, partition: int, chunk: int, source: Source) -> Iterable[bytes]:
        origin, read = source.origin, source.read
        files = []
        for name in origin.files:
            if name not in self._names:
                self._names[name] = len(self._names)
                yield frame([FILE, self._names[name], name])
            files.append(self._names[name])
        offset = None if origin.offset is None else packed(origin.offset)
        rows = [packed(source.ordinals), files, packed(origin.file), packed(origin.record), offset]
        how = [read.epoch, read.position, read.limit, source.stages]
        yield frame([SOURCE, partition, chunk, how, rows, list(source.keys)])


def _part(part: Part) -> list[Any]:
    if isinstance(part.rows, slice):
        return [part.chunk, int(part.rows.start), int(part.rows.stop)]
    return [part.chunk, packed(part.rows)]


def _segments(batch: Segments) -> list[Any]:
    columns = (
        *(batch.chunks, batch.rows, batch.segments, batch.counts, batch.indices),
        *(batch.lanes, batch.starts),
    )
    return [*map(packed, columns), batch.stripe]


class LeaseRecorder(_Recorder):
    """Records the batches of one feed that one life of an owner hands out."""

    def __init__(
        self, config: RunConfig, feed: str, owner: int = 0, by_number: bool = True
    ) -> None:
        """``by_number``: a trainer takes batches of several owners in the order of the feed."""
        super().__init__(config, feed, f"leases-{config.start:010d}")
        self._about = [FORMAT, "leases", feed, config.start]
        self._whose = [owner, by_number]
        self._trainers: dict[int, list[Any]] = {}
        self._joined: list[list[Any]] = []
        self._last_token = 0

    def _header(self) -> list[Any]:
        return [*self._about, list(self._trainers.values()), *self._whose]

    def joined(self, session: int, hello: Hello) -> None:
        """A trainer has a session."""
        about = [session, hello.host, hello.rank, hello.world_size, hello.process, hello.nonce]
        self._trainers[session] = about
        self._joined.append([JOINED, *about])

    def left(self, session: int) -> None:
        """It is gone."""
        self._trainers.pop(session, None)

    def note(self, effects: Sequence[Effect]) -> None:
        """What is about to be done in this round."""
        entries = self._joined
        for effect in effects:
            if isinstance(effect, Send):
                if effect.token > self._last_token:  # else it is sent once more
                    self._last_token = effect.token
                    batch: Batch = effect.batch
                    place = effect.token, batch.partition, batch.number, batch.rows
                    entries.append([SENT, *place, effect.session, effect.seq])
            elif isinstance(effect, Answer):
                if effect.committed:
                    entries.append([COMMITTED, *effect.committed])
                if effect.stale:
                    entries.append([STALE, *effect.stale])
                entries += [[REFUSED, token, code, text] for token, code, text in effect.faults]
            elif isinstance(effect, Returned):
                entries.append([ENDED, effect.token, effect.why])
            elif isinstance(effect, Reclaimed):
                entries.append([HELD, effect.token])
        if not entries:
            return
        self._joined = []
        if self._resting:
            return
        try:
            data = frame([time.time(), entries])
            if not self._file.fits(len(data)):
                self._file.begin(len(data))
            self._file.write(data)
        except Exception as error:
            self._failed(error)
