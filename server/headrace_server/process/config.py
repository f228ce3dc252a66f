"""The configuration of a server: checked once, then passed to its processes as it is."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_proto.errors import FeedInUse
from headrace_proto.placement import WHOLE, Share, partitions_of

from ..files.manifest import DataFile
from ..pipeline.declaration import Declaration, Plain, Source
from .settings import CACHE_BYTES, Limits, RunSettings

#: In place of the snapshot to which a feed is taken back: the state before its first batch.
BEGINNING = "beginning"
#: An owner's report to the other owners: batches of an earlier server are done …
USED = "used"
#: … and a trainer has committed since the feed was taken back.
TOUCHED = "touched"
#: Maximum number of trainers listed in a status: the first ones.  Others are only counted.
MOST_TRAINERS = 256
#: Maximum number of examples of one key that inspect lists.
MOST_FOUND = 64


@dataclass(frozen=True, slots=True)
class FeedConfig:
    """One feed: its pipeline, the files that were there at the start, its partitions."""

    name: str
    declaration: Declaration
    files: tuple[DataFile, ...]
    partitions: int
    generation: int = 0  # number of times it was taken back to a snapshot
    snapshot: str = ""  # the snapshot to which it was last taken back
    untouched: bool = False  # whether this start of the server began with that rewind
    share: Share = WHOLE  # the share of the partitions that this server owns

    @property
    def owned(self) -> range:
        """The partitions that this server owns."""
        return partitions_of(0, 1, self.partitions, self.share)

    @property
    def segmented(self) -> bool:
        """Whether its batches are of segments."""
        return self.declaration.segmented

    @property
    def order(self) -> str:
        """The order in which segments are handed out; "" where there are none."""
        return str(self.declaration.shape.options["order"]) if self.segmented else ""

    @property
    def states(self) -> str:
        """The place of the states of segments: "server", "trainer", or "none" without states."""
        options = self.declaration.shape.options
        return str(options["state_placement"]) if options.get("initial_states") else "none"

    @property
    def logs(self) -> dict[str, Source]:
        """The logs that it reads, by name."""
        return self.declaration.source.logs


@dataclass(frozen=True, slots=True)
class RunConfig(Limits):
    """One server."""

    feeds: tuple[FeedConfig, ...]
    directory: str  # the run directory
    binds: tuple[str, ...]
    worker_ports: tuple[int, int] | None = None  # of all workers; None: those after ``binds`` …
    taken: tuple[str, ...] = ()  # … without these, HOST:PORT, which this server has itself
    lease_ttl_s: float = RunSettings.lease_ttl_s
    slab_bytes: int = 1024**3  # per worker
    max_ahead: int = 32  # batches that a worker makes ahead of a feed without a capacity …
    max_ahead_bytes: int = 64 * 1024**2  # … and their bytes; two are always allowed
    index_directory: str | None = None
    state_directory: str | None = None  # where commits and states outlive processes
    durability: str = "off"
    term: int = 0  # number of this start; greater than those of all starts before …
    starts: tuple[int, ...] = ()  # … terms of the last known starts, this one at the end …
    start: int = 0  # … and the number of starts, as shown to people
    program: bytes = b""  # names the process that started the server
    log_level: int = logging.INFO  # of the locator and of trainers, as in that process
    cache_dir: str | None = None  # of the copy of remote files …
    cache_bytes: int = CACHE_BYTES  # … and its bound
    keys: str | None = None  # the directory; whose files the locator and the workers read
    python_path: tuple[str, ...] = field(default=())

    @property
    def heartbeat_s(self) -> float:
        """Time between two heartbeats of a trainer."""
        return min(1.0, self.lease_ttl_s / 4)

    def ahead(self, capacity: int | None, partitions: int) -> tuple[int, int]:
        """Return how many batches a worker makes ahead of a feed, and their bytes.

        A capacity beyond ``max_ahead`` gets proportionally more bytes, within a quarter of the
        slab: where half of the slab is used, trainers must copy batches.
        """
        if capacity is None:
            return self.max_ahead, self.max_ahead_bytes
        grown = self.max_ahead_bytes * capacity // self.max_ahead
        nbytes = max(self.max_ahead_bytes, min(grown, self.slab_bytes // 4))
        return capacity * partitions, nbytes

    @property
    def journals(self) -> tuple[str, str]:
        """The directory of the journals of all feeds, and their durability.

        Without a state directory they lie in shared memory, where they outlive workers.
        """
        if self.state_directory is not None:
            return self.state_directory, self.durability
        return f"{self.directory}/journals", "worker"

    @property
    def share(self) -> Share:
        """The share of every feed that this server has."""
        return next((feed.share for feed in self.feeds), WHOLE)

    def feed(self, name: str) -> FeedConfig:
        """Return the feed of a name."""
        return next(feed for feed in self.feeds if feed.name == name)

    def partitions_of(self, feed: FeedConfig, worker: int) -> range:
        """Return the partitions of a feed that a worker runs."""
        return partitions_of(worker, self.workers, feed.partitions, feed.share)

    def owners_of(self, feed: FeedConfig) -> int:
        """Return how many workers own partitions of a feed: those with the lowest numbers."""
        return min(self.workers, len(feed.owned))


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a worker, as its supervisor begins it."""

    config: RunConfig
    worker: int
    number: int
    diary: str  # its path
    binds: tuple[str, ...]  # its addresses
    suspects: Mapping[str, Mapping[int, set[int]]]  # by feed and partition: rows to read one by one
    begun: Mapping[str, Plain]  # how the feeds stand, see ``Switchboard.begin``
    memory_bytes: int = 0  # bound of its private memory; 0: none


def in_use(feed: str, trainers: str) -> FeedInUse:
    """Return the error for a feed that is not started from its beginning."""
    return FeedInUse(
        f"feed {feed!r} can not be started from its beginning: {trainers}.  Close those trainers, "
        f"or undo their work by headrace restart {feed} --force, "
        f"Server.restart({feed!r}, force=True)"
    )
