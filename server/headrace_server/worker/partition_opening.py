"""A worker opens its partitions: one reader for each feed, each partition as it was left.

    reader of the feed ─► partition ─► what its store holds

Indexing a large file takes minutes.  Its progress goes to the diary, whose beats show that the
worker lives, and to the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_proto.errors import HeadraceError, ServerError

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from ..files.mapped_files import RemoteCopies
from ..making.composition import compose
from ..making.partition_run import Run
from ..making.slab import Slab
from ..pipeline.forks import OwnProcess
from ..process.config import FeedConfig, RunConfig
from ..process.worker_diary import Diary
from ..reading.chunk import BadRecords, RowsAtHand
from ..reading.source import IndexedSource, StreamSource
from ..reading.sources import open_reader
from .commits import Stores

logger = logging.getLogger("headrace.data")

#: Seconds between two lines of the log on the progress of an index.
_LOG_S = 10.0


@dataclass(frozen=True, slots=True)
class Life:
    """The parameters of one life of a worker, from the supervisor."""

    config: RunConfig
    worker: int
    number: int
    diary: Diary
    marks: Mapping[str, Any]


class Step(OwnProcess):
    """One step of work on a partition, in the diary.  One that raises stays there with its rows.

    ``reads``: whether it may read, and so call code of the user.  With ``lasts`` its rows stay in
    the diary, too: a thread of a source still reads them.
    """

    lasts = False

    def __init__(
        self, diary: Diary, feed: str, partition: int, opening: bool = False, reads: bool = True
    ) -> None:
        self._diary, self._reads = diary, reads
        diary.begin(feed, partition, opening)

    def __enter__(self) -> None:
        if self._reads:
            super().__enter__()

    def __exit__(self, *error: object) -> None:
        if self._reads:
            super().__exit__()
        if error[0] is None and not self.lasts:
            self._diary.idle()


class Opener:
    """The readers of one worker; opens partitions with them."""

    def __init__(self, begun: Life, slab: Slab, stores: Stores) -> None:
        config = begun.config
        self._begun = begun
        self._slab = slab
        self._stores = stores
        self._diary = begun.diary
        index = config.index_directory or Path(config.directory, "index")
        copies = None
        if config.remote_cache is not None:
            copies = RemoteCopies(str(config.remote_cache), config.remote_cache_bytes)
        self._cache = IndexCache(str(index), self._indexed, copies)
        self._logged = time.monotonic()
        self._readers: dict[str, StreamSource] = {}
        self._bad: dict[str, BadRecords] = {}

    def open(self, config: FeedConfig, partition: int) -> Run:
        """Open a partition as the last process left it."""
        reader = self._reader(config)
        if partition:  # partition 0 counts damage that shows when a file is opened
            self._bad[config.name].counts.clear()
        elif isinstance(reader, IndexedSource) and not reader.length:
            logger.warning("feed %r: the source has no example", config.name)
        with Step(self._diary, config.name, partition, opening=True):
            try:
                return self._run_of(config, partition, reader)
            except HeadraceError:
                raise
            except ImportError as error:  # a named function does not exist
                raise ServerError(str(error)) from error

    def _indexed(self, file: DataFile, done: int) -> None:
        at = f"{file.path}, of which {done:,} of {file.size:,} bytes are indexed"
        self._diary.at(at)
        self._diary.beat()
        if time.monotonic() - self._logged > _LOG_S:
            self._logged = time.monotonic()
            logger.info("opening %s", at)

    def _reader(self, config: FeedConfig) -> StreamSource:
        reader = self._readers.get(config.name)
        if reader is None:
            skips = config.declaration.policy.on_bad_example == "skip"
            source, marks = config.declaration.source, self._begun.marks[config.name]
            hand = RowsAtHand(
                self._diary.reading,
                self._diary.at,
                source.paths[0] if len(source.paths) == 1 else f"the source ({source.kinds})",
                left_out={row: (epoch, text) for row, epoch, text in marks["left_out"]},
                suspects={partition: {*rows} for partition, rows in marks["suspects"]},
            )
            bad = BadRecords(skips, progress=self._diary.beat, enters=self._diary.enter, hand=hand)
            try:
                reader = open_reader(source, config.files, bad, self._cache)
            except HeadraceError:
                raise
            except (ValueError, OSError) as error:  # a source refuses its declaration
                raise ServerError(str(error)) from error
            self._bad[config.name], self._readers[config.name] = bad, reader
        return reader

    def _run_of(self, config: FeedConfig, partition: int, reader: StreamSource) -> Run:
        run = compose(
            reader,
            config.declaration,
            partition,
            config.partitions,
            self._slab,
            self._bad[config.name],
            self._begun.config.max_state_bytes,
        )
        run.resume(self._stores.open((config.name, partition)))
        return run
