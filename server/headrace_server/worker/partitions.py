"""The partitions of one worker at work: each step makes batches, reads, or finds what it lacks.

    desks ─► next_work() ─► [ make() ] ─► made() ─► desks
             a feed with open requests first,
             then the feed that has worked least

A feed has one reader for its partitions, and each is opened as its store has it; ``commits.py`` has
their changes stored.  Indexing a large file takes minutes.  Its progress goes to the diary, whose
beats show that the worker lives, and to the log.

Feeds share the worker's time evenly.  A feed that nobody reads rests when it is a bounded number of
batches ahead, so that it takes neither turns nor room from the others.  It rests until a quarter of
that is taken, so that a worker that waits for trainers wakes for several batches and not for each.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_proto.errors import HeadraceError, ProtocolError, ServerError, code_of

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from ..files.mapped_files import RemoteCopies
from ..leasing.desk import Work
from ..leasing.protocol import Batch, Outlook
from ..making.composition import compose
from ..making.partition_run import Run
from ..making.slab import Slab
from ..pipeline.forks import OwnProcess
from ..process.config import FeedConfig, RunConfig
from ..process.worker_diary import Diary
from ..reading.chunk import BadRecords, RowsAtHand
from ..reading.source import IndexedSource, StreamSource
from ..reading.sources import open_reader
from ..shaping.input import HOPELESS_EPOCHS
from .blocks import Blocks
from .commits import PartitionName, Stores
from .reporter import Reporter
from .served_feed import ServedFeed

logger = logging.getLogger("headrace.worker")

#: Seconds without a batch after which a partition says what it lacks.
_SILENT_S = 1.0
#: Time between two looks at a source that had no example yet.
_SOURCE_S = 0.02
#: Seconds between two lines of the log on the progress of an index.
_LOG_S = 10.0
_NO_REMAINDER = "; allow_smaller_final_batch=True keeps rows that fill no batch at the end"


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


class _Share:
    """The part that a feed has in the work of a worker."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.rests = False
        self.most = 0, 0  # batches that nobody has taken, and their bytes


class Partitions:
    """All partitions of one life of one worker."""

    def __init__(self, begun: Life, feeds: Mapping[str, ServedFeed], stores: Stores) -> None:
        config, worker, life = begun.config, begun.worker, begun.number
        self._begun, self._config, self._diary = begun, config, begun.diary
        self.feeds, self.stores = feeds, stores
        self._configs = {feed.name: feed for feed in config.feeds}
        self._worker = worker
        directory = Path(config.directory)
        slab = Slab(directory, worker, life, config.slab_bytes, config.segment_bytes)
        self._slab = slab
        self.removed = slab.removed  # names of segments that trainers are to unmap
        self.blocks = Blocks(slab, feeds, self._freed)
        self.reporter = Reporter(feeds, slab, stores.progress)
        index = config.index_directory or Path(config.directory, "index")
        copies = None
        if config.remote_cache is not None:
            copies = RemoteCopies(str(config.remote_cache), config.remote_cache_bytes)
        self._cache = IndexCache(str(index), self._indexed, copies)
        self._logged = time.monotonic()
        self._readers: dict[str, StreamSource] = {}
        self._bad: dict[str, BadRecords] = {}
        self.runs: dict[PartitionName, Run] = {}
        self._shares = {name: _Share() for name in feeds}
        self._worked_s = 0.0  # where the feed that has worked last began
        self._at_work: ServedFeed | None = None  # the feed of the step under way
        self._made_at: dict[PartitionName, float] = {}  # when a partition made its last batch
        self._lacks: dict[PartitionName, str] = {}  # what their next batches lack, not yet told
        self._counted: dict[PartitionName, bool] = {}  # whether it has finished, as was reported
        self._full = False  # whether the slab has no room for the next batch
        self._sources: dict[PartitionName, float] = {}  # that have nothing yet: the next look

    # Work

    def next_work(self) -> tuple[ServedFeed, Work] | None:
        """Return the next step of all feeds; None if the worker has to wait."""
        now = time.monotonic()
        if now >= self.reporter.due:
            self.reporter.look(self.runs)
        if self._sources:
            self._look_at_sources(now)
        if self._lacks:
            self._tell_lacks(now)
        for feed in self._order():
            work = feed.desk.next_work(ahead=not self._rests(feed.name))
            if work is not None:
                return feed, work
        self._diary.beat()  # as a step would
        return None

    def hand_out(self) -> None:
        """Hand out what is there while a partition works."""
        for feed in self.feeds.values():
            if feed is self._at_work and feed.serves:
                feed.desk.next_work()

    def _order(self) -> list[ServedFeed]:
        feeds = [feed for feed in self.feeds.values() if feed.serves]
        if len(feeds) > 1:
            feeds.sort(key=lambda feed: (not feed.desk.wanted, self._shares[feed.name].spent_s))
        return feeds

    def _look_at_sources(self, now: float) -> None:
        for name in [one for one, look in self._sources.items() if now >= look]:
            del self._sources[name]
            if self.feeds[name[0]].serves:
                self.feeds[name[0]].desk.wake(name[1])

    def _rests(self, name: str) -> bool:
        """Return whether a feed rests, since it is far enough ahead."""
        share, untaken = self._shares[name], self.blocks.untaken[name]
        most, most_bytes = share.most
        if share.rests:
            most, most_bytes = most - max(1, most // 4) + 1, most_bytes - most_bytes // 4
        enough = untaken.count >= most or untaken.nbytes >= most_bytes
        share.rests = enough and untaken.count >= (1 if len(self.feeds) > 1 else 2)
        return share.rests

    def _bounds(self, feed: ServedFeed) -> tuple[int, int]:
        """Return how many batches may be made ahead of a feed, and their bytes."""
        runs = [run for _, run in _of(feed.name, self.runs)]
        most, most_bytes = self._config.ahead(runs[0].capacity, len(runs))
        if len(self.feeds) > 1:
            most_bytes = min(most_bytes, self._config.slab_bytes // (2 * len(self.feeds)))
        return most, most_bytes

    def reads_next(self, feed: ServedFeed, work: Work) -> bool:
        """Return whether a step may call user functions: it reads, or makes batches by them."""
        run = self.runs[feed.name, work.partition]
        return run.calls or run.reads_next

    def make(self, feed: ServedFeed, work: Work) -> list[Batch] | Outlook | None:
        """Take one step of a partition; None where its feed fails.  It may take long."""
        run = self.runs[feed.name, work.partition]
        self._at_work, self.stores.busy = feed, (feed.name, work.partition)
        try:
            reads = self.reads_next(feed, work)
            step = Step(self._diary, feed.name, work.partition, reads=reads)
            with step:
                made = run.make(work.slot, work.epoch, work.beyond)
                step.lasts = made is Outlook.WAITS
        except Exception as error:
            self.fail((feed.name, work.partition), error)
            return None
        return made

    def made(
        self,
        feed: ServedFeed,
        work: Work,
        made: list[Batch] | Outlook | None,
        now: float,
        took_s: float,
    ) -> None:
        """Give the desk what a partition has made."""
        self._at_work = self.stores.busy = None
        if made is None or feed.failure is not None:
            return
        name = feed.name, work.partition
        run, share = self.runs[name], self._shares[feed.name]
        self._worked_s = max(self._worked_s, share.spent_s)
        share.spent_s = self._worked_s + took_s
        if isinstance(made, list):
            try:
                for batch in made:
                    if self.blocks.placed(feed.name, batch):
                        feed.counters.on_made(batch)
            except ProtocolError as error:
                self.fail(name, error)
                return
            if made:
                self._made_at[name] = now
                self._lacks.pop(name, None)
                feed.on_waiting(work.partition, "")
            elif not run.reads_next:  # it has read
                feed.on_counted(work.partition, run.stats())
                self._note_wait(name, run.waits_for(), now)
        else:
            self._note_outlook(name, run, made, now)
        feed.desk.made(work, made)
        if run.finished and not self._counted.get(name):
            self._counted[name] = True
            self._note_end(feed, name, run)

    def _note_outlook(self, name: PartitionName, run: Run, made: Outlook, now: float) -> None:
        text = ""
        if made is Outlook.WAITS:
            self._sources[name] = now + _SOURCE_S
            text = f"it waits for its source {run.intake.awaited}"
        elif made is Outlook.FULL:
            self._full = True  # only trainers can free a block
            text = (
                f"the slab of worker {self._worker} is full: {self._slab.used_bytes} bytes wait "
                "for trainers (slab_bytes bounds it)"
            )
        elif made is Outlook.IDLE:
            text = run.waits_for()
        self._note_wait(name, text, now)

    def _note_wait(self, name: PartitionName, text: str, now: float) -> None:
        """Note what a partition lacks; people are told once it has made nothing for a second."""
        self._made_at.setdefault(name, now)
        self._lacks[name] = text[:1000]

    def _tell_lacks(self, now: float) -> None:
        for name in [one for one in self._lacks if now - self._made_at[one] >= _SILENT_S]:
            self.feeds[name[0]].on_waiting(name[1], self._lacks.pop(name))

    def _note_end(self, feed: ServedFeed, name: PartitionName, run: Run) -> None:
        """Note that a partition has made all; warn if no batch could ever be made."""
        feed.partitions[name[1]].done = True
        counts = run.stats()
        feed.on_counted(name[1], counts)
        if not run.machine.input.next_number and (dropped := counts["dropped"]):
            logger.warning(
                "partition %d of feed %r ends without a batch, and drops its rows: %s%s",
                name[1],
                name[0],
                ", ".join(f"{count} as {reason}" for reason, count in dropped.items()),
                _NO_REMAINDER if "remainder" in dropped else "",
            )
        if run.machine.input.hopeless and run.share != 0:
            logger.warning(
                "partition %d of feed %r ends: %d epochs in a row made no batch, since its stages "
                "drop each example, or none fills a batch",
                name[1],
                name[0],
                HOPELESS_EPOCHS,
            )

    def _freed(self) -> None:
        self._full = False
        for feed in self.feeds.values():
            if feed.serves:
                feed.desk.freed()

    # Idle time

    def prepare(self, poll: Callable[[float], Any]) -> Any:
        """Write next batches ahead until ``poll`` returns events; return these, or None."""
        for name, run in self.runs.items():
            if run.calls:
                self._diary.begin(*name)
            if run.prepare() and (events := poll(0)):
                return events  # other partitions can prepare later
        return None

    def rest(self, poll: Callable[[float], Any], at_most_s: float) -> Any:
        """Wait by ``poll`` and record the reason; return the result of ``poll``."""
        if self._sources:  # the diary has the rows for which the last one waits
            self._diary.beat()
            return poll(min(at_most_s, _SOURCE_S))  # it counts as reading
        self._diary.idle()
        starved = any(feed.serves and feed.desk.starved for feed in self.feeds.values())
        reason = "slab" if self._full else "states" if starved else "trainers"
        return self.reporter.rest(reason, poll, at_most_s)

    # Calls between steps

    def open(self, feed: ServedFeed, partition: int) -> None:
        """Open a partition as the last process left it."""
        name, config = (feed.name, partition), self._configs[feed.name]
        with self._failing(name):
            self._diary.begin(feed.name, partition, opening=True)
            reader = self._reader(config)
            if partition:  # partition 0 counts damage that shows when a file is opened
                self._bad[feed.name].counts.clear()
            elif isinstance(reader, IndexedSource) and not reader.length:
                logger.warning("feed %r: the source has no example", feed.name)
            with Step(self._diary, feed.name, partition, opening=True):
                try:
                    self.runs[name] = self._run_of(config, partition, reader)
                except ImportError as error:  # a named function does not exist
                    raise ServerError(str(error)) from error

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
            self._config.max_state_bytes,
        )
        run.resume(self.stores.open((config.name, partition)))
        return run

    def _indexed(self, file: DataFile, done: int) -> None:
        at = f"{file.path}, of which {done:,} of {file.size:,} bytes are indexed"
        self._diary.at(at)
        self._diary.beat()
        if time.monotonic() - self._logged > _LOG_S:
            self._logged = time.monotonic()
            logger.info("opening %s", at)

    def opened(self, feed: ServedFeed) -> None:
        """Note that all partitions of a feed are open."""
        self._shares[feed.name].most = self._bounds(feed)

    def of(self, feed: str) -> dict[int, Run]:
        """Return the partitions of a feed."""
        return {name[1]: run for name, run in _of(feed, self.runs)}

    def count(self) -> None:
        """Report the totals of all partitions."""
        for (name, partition), run in self.runs.items():
            feed = self.feeds[name]
            if feed.failure is None:
                feed.on_counted(partition, run.stats())

    def steer(self, feed: ServedFeed, partition: int, what: tuple[str, Any]) -> Any:
        """Order a partition to make other batches; see ``Desk.steer``."""
        with Step(self._diary, feed.name, partition):
            return feed.desk.steer(partition, what)

    def abandon(self, feed: str) -> None:
        """Stop all partitions of a feed, which has failed."""
        for name, _ in _of(feed, self.runs):
            del self.runs[name]
            self._sources.pop(name, None)

    def sizes(self, feed: str) -> list[tuple[dict[str, int], int, bool]]:
        """Return the waiting rows of each partition, its epoch, and whether it is open."""
        return [(run.sizes(), *run.epoch_due()) for _, run in _of(feed, self.runs)]

    def seek(self, feed: str, key: bytes) -> list[list[Any]]:
        """Return a key's examples: [partition, epoch, segment, of how many, where, batch]."""
        return [
            [partition, *example]
            for (_, partition), run in _of(feed, self.runs)
            for example in run.seek(key)
        ]

    def copy(self, feed: str, directory: str, then: Callable[[int, str], object]) -> None:
        """Copy the stores of a feed; call ``then`` with each copied partition, and any fault."""
        for name, run in _of(feed, self.runs):
            run.note_places()
            self.stores.submit(name, run)
        self.stores.write()
        self.stores.copy(feed, directory, then)

    @contextmanager
    def _failing(self, name: PartitionName) -> Iterator[None]:
        """Let a feed fail by an error."""
        try:
            yield
        except Exception as error:
            self.fail(name, error)

    def fail(self, name: PartitionName, error: Exception) -> None:
        """Report that a feed can not go on; an unforeseen error is logged with its traceback."""
        if isinstance(error, MemoryError):
            raise error  # the next life repeats the step, and the diary has the rows
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        elif not isinstance(error, HeadraceError):
            text = f"{type(error).__name__}: {text}"
            logger.error("%s", "".join(traceback.format_exception(error)))
        self.feeds[name[0]].fail(code_of(error), text)


def _of(feed: str, runs: Mapping[PartitionName, Run]) -> list[tuple[PartitionName, Run]]:
    """Return the runs of one feed, with their names."""
    return [(name, run) for name, run in runs.items() if name[0] == feed]
