"""The record of a feed: its hand-outs, and the rows of its batches.

    flight-LIFE-….flight ─┬─► where each batch lies ─► its rows, read when they are wanted
    …                     └─► HandOuts

One pass over all files finds the hand-outs, and where batches lie.  It does not disturb a server
that is writing meanwhile, and works after one was killed.
"""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from headrace_proto.errors import ServerError, UnknownFeed
from headrace_proto.placement import WHOLE, Share

from ..files.durable_file import read_json
from ..reading.trace import ChunkTrace
from .flight_file import FORMAT, SUFFIX, frame_at, frames
from .hand_outs import HandOut, HandOuts
from .recorder import ROUND, flight_directory
from .rows import BatchId, RecordedBatch, recorded_sources, recorded_trace

#: Maximum number of frames whose sources are in memory.
_FRAMES = 256

T = TypeVar("T")


def feed_of(state: Path, feed: str | None) -> str:
    """Return the name of a recorded feed; None stands for the only one."""
    os.scandir(state).close()  # the OSError of a directory that is none, or is not for this user
    recorded = sorted(
        path.parent.name
        for path in state.glob("feeds/*/flight")
        if not path.parent.name.startswith(".") and next(path.glob(f"*{SUFFIX}"), None)
    )
    if feed is None and len(recorded) == 1:
        return recorded[0]
    if feed in recorded:
        return str(feed)
    if not recorded:
        raise ServerError(
            f"{state} holds no record of a feed: it is no state directory of a server, or was "
            "served with record='off'"
        )
    listed = ", ".join(recorded)
    what = "name one of the feeds" if feed is None else f"there is no flight of feed {feed!r}"
    raise UnknownFeed(f"{what}; {state} has recorded {listed}")


def served_as(state: Path, feed: str, parse: Callable[[Any], T]) -> T:
    """Return what ``parse`` makes of the file in which a server describes a feed."""
    file = state / "feeds" / feed / "feed.json"
    found = read_json(file, parse)
    if found is None:
        raise ServerError(f"{file} is gone, which says what the feed was")
    return found


def share_of(state: Path, feed: str) -> Share:
    """Return the share of a feed that a state directory's server had."""
    index, servers = served_as(state, feed, lambda noted: noted.get("share", WHOLE))
    return index, servers


def beside_of(value: Any) -> list[Path]:
    """Return the state directories that ``beside=`` names; TypeError where it names none."""
    listed = [value] if isinstance(value, (str, os.PathLike)) else value or ()
    if not isinstance(listed, (list, tuple)) or not all(
        isinstance(one, (str, os.PathLike)) and os.fspath(one) for one in listed
    ):
        raise TypeError(f"beside={value!r:.200} is neither a state directory nor a list of them")
    return [Path(one) for one in listed]


def _check_shares(states: Sequence[Path], feed: str) -> None:
    """Raise ValueError unless these are directories of different servers of a feed."""
    for state in states:
        feed_of(state, feed)
    shares = [share_of(state, feed) for state in states]
    if len({servers for _, servers in shares}) > 1 or len({*shares}) < len(shares):
        listed = ", ".join(
            f"{s} of share {i}/{n}" for s, (i, n) in zip(states, shares, strict=True)
        )
        raise ValueError(
            f"beside names servers that do not share one feed {feed!r}, each a part of it: {listed}"
        )


def _leaving_out(flight: Path) -> str:
    """Return the command that moves the files of other formats out of a record."""
    formats = ((path, islice(frames(path), 1)) for path in sorted(flight.glob(f"*{SUFFIX}")))
    others = [str(path) for path, first in formats if any(f[0] != FORMAT for _, f in first)]
    aside = f"{flight}.others"
    return f"{shlex.join(['mkdir', '-p', aside])} && {shlex.join(['mv', *others, aside])}"


class BatchFrame(NamedTuple):
    """The frame of a batch, and what the scan has seen of it."""

    path: Path
    at: int
    rows: int
    has_states: bool


class FeedRecord:
    """The record of one feed: the hand-outs, and the batches by their names."""

    def __init__(
        self,
        state: Path,
        feed: str,
        beside: Sequence[Path] = (),
        lives: Collection[int] | None = None,
    ) -> None:
        """``beside``: state directories of its other servers.  ``lives``: not all, but these.

        ServerError where another release has written a file.
        """
        self.feed = feed
        self._hand_outs = HandOuts()
        self._places: dict[BatchId, BatchFrame] = {}
        self._lists: dict[Path, list[list[str]]] = defaultdict(list)  # of source files
        #: Where the frame lies that has the trace of a chunk, by file, partition and chunk.
        self._sources: dict[tuple[Path, int, int], int] = {}
        self._new = lru_cache(_FRAMES)(self._read_new)
        states = (state, *beside)
        if beside:
            _check_shares(states, feed)
        for server, one in enumerate(states):
            for path in sorted(flight_directory(one, feed).glob(f"*{SUFFIX}")):
                # Servers number their lives alike.  Here each life has a number of its own.
                life = int(path.name.split("-")[1]) * len(states) + server
                if lives is None or life in lives:
                    self._scan(path, life, server)

    def _scan(self, path: Path, life: int, server: int) -> None:
        found = frames(path)
        for _, (version, *header) in islice(found, 1):
            if version != FORMAT:
                raise ServerError(
                    f"{path} was written by another release of headrace (format {version!r:.40}, "
                    f"this one reads {FORMAT}): read it by that release; to leave out its like: "
                    f"{_leaving_out(path.parent)}"
                )
            self._hand_outs.begin(life, server, *header)
        for at, (kind, *plain) in found:
            if kind == ROUND:
                self._hand_outs.add(life, *plain)
                continue
            partition, number, rows, states, lists, sources, *_ = plain
            place = BatchFrame(path, at, rows, states is not None)
            self._places[BatchId(life, partition, number)] = place
            self._lists[path] += lists
            for chunk in sources:
                self._sources[path, partition, chunk] = at

    @cached_property
    def leases(self) -> list[HandOut]:
        """All hand-outs, in their order."""
        return self._hand_outs.joined()

    def place(self, batch: BatchId) -> BatchFrame | None:
        """Return where a batch is recorded; None where it is not."""
        return self._places.get(batch)

    def get(self, batch: BatchId) -> RecordedBatch | None:
        """Read one of the batches; None where it is not recorded, or no more."""
        place = self._places.get(batch)
        frame = place and frame_at(place.path, place.at)
        if not place or frame is None:
            return None
        sources: dict[int, ChunkTrace] = {}
        trace = recorded_trace(frame, sources)
        for chunk in trace.of_chunks():
            new = self._new(place.path, self._sources[place.path, batch.partition, chunk])
            if new is None:
                return None
            sources[chunk] = new[chunk]
        return RecordedBatch(batch, trace)

    def _read_new(self, path: Path, at: int) -> dict[int, ChunkTrace] | None:
        frame = frame_at(path, at)
        return None if frame is None else recorded_sources(frame, self._lists[path])

    def with_key(self, key: bytes) -> list[BatchId]:
        """Return the batches with a row of this key, handed out or not."""
        read = ((batch, self.get(batch)) for batch in sorted(self._places))
        return [batch for batch, made in read if made and made.has_key(key)]


class Replay(NamedTuple):
    """The parameters of a replay: recorded batches of a feed, in order.  They are plain data."""

    directories: list[str]  # state directories of the feed's servers
    feed: str
    partitions: int  # of the feed when it was recorded
    script: list[list[int]]  # life, partition and number of each batch
    states: str

    def record(self) -> FeedRecord:
        """Return the record of the lives of these batches."""
        state, *beside = map(Path, self.directories)
        return FeedRecord(state, self.feed, beside, {life for life, _, _ in self.script})
