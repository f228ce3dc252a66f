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
import os
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from headrace_proto.errors import HeadraceError, ProtocolError, ServerError, code_of

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from ..files.ranges import came, copy_to, keep_at_most
from ..leasing.desk import Work
from ..leasing.words import ANYONE, Batch, Order, Outlook, Proposal, Slot
from ..making.slab import Slab
from ..partition.bucket_sample import with_boundaries
from ..partition.composition import compose, drops_of
from ..partition.feed_length import FeedLength
from ..partition.live_run import needs_of
from ..pipeline.declaration import Declaration
from ..pipeline.forks import OwnProcess
from ..process.config import FeedConfig, Life
from ..process.worker_diary import Diary
from ..reading.chunk import BadRecords, RowsAtHand
from ..reading.source import IndexedSource, StreamSource
from ..reading.sources import open_reader
from ..shaping.input import HOPELESS_EPOCHS
from .blocks import Blocks
from .commits import Stores
from .live_logs import LiveLogs
from .served_feed import ServedFeed, ServedPartition

logger = logging.getLogger("headrace.worker")

#: Ready descriptors with their events; a poll, with a timeout in seconds, that returns these.
Events = list[tuple[int, int]]
Poll = Callable[[float], Events]
#: Seconds without a batch after which a partition says what it lacks.
_SILENT_S = 1.0
#: Time between two looks at a source that had no example yet.
_SOURCE_S = 0.02
#: Seconds between two lines of the log on the progress of an index.
_LOG_S = 10.0
#: Time between two reports of all partitions, which take at most the inverse of ``_PART`` of the
#: worker's time: that is for any number of partitions.
_REPORT_S, _PART = 0.25, 100


def _queued_s() -> float:
    """Return the time that the loop was runnable without a core; 0 where that is unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


class Step(OwnProcess):
    """A step that may read, in the diary.  One that raises stays there with its rows.

    With ``lasts`` its rows stay in the diary, too: a thread of a source still reads them.
    """

    lasts = False

    def __init__(self, diary: Diary, part: ServedPartition, opening: bool = False) -> None:
        self._diary = diary
        diary.begin(part.feed.name, part.number, opening)

    def __exit__(self, *error: object) -> None:
        super().__exit__()
        if error[0] is None and not self.lasts:
            self._diary.idle()


class _Share:
    """The share of a feed in the time of its worker."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.rests = False
        self.most = 0, 0  # batches that nobody has taken, and their bytes


class Partitions:
    """All partitions of one life of one worker."""

    def __init__(
        self, life: Life, diary: Diary, feeds: Mapping[str, ServedFeed], stores: Stores
    ) -> None:
        config, self._worker = life.config, life.worker
        self._suspects, self._config, self._diary = life.suspects, config, diary
        self.feeds, self.stores = feeds, stores
        slab = Slab(Path(config.directory), life.worker, life.number, config.slab_bytes)
        self._slab = slab
        self.blocks = Blocks(slab, self._freed)
        self._life_began = time.monotonic()
        self._report_at = 0.0
        #: Seconds by what it waits for.
        self._rested = dict.fromkeys(("trainers", "states", "slab"), 0.0)
        index = config.index_directory or Path(config.directory, "index")
        keep_at_most(config.remote_cache_bytes)
        if config.cache_dir is not None:
            copy_to(config.cache_dir, config.cache_bytes, config.workers)
        self._cache = IndexCache(str(index), self._indexed)
        self._logged = time.monotonic()
        self._readers: dict[str, StreamSource] = {}
        self._declared: dict[str, Declaration] = {}  # with what is found out about their examples
        self._lengths: dict[str, FeedLength] = {}
        self._bad: dict[str, BadRecords] = {}
        self._shares = {name: _Share() for name in feeds}
        self._worked_s = 0.0  # where the feed that has worked last began
        self.calls = False  # whether some batches are written by functions of the user's
        self._at_work: ServedFeed | None = None  # the feed of the step under way
        self._lacks: dict[ServedPartition, Outlook] = {}  # that wait, and how; not yet described
        self._lacks_at = 0.0  # when these are described next
        self._full = False  # whether the slab has no room for the next batch
        self._sources: dict[ServedPartition, float] = {}  # that have nothing yet: the next look
        self._now = time.monotonic()  # at the last tick
        self.logs = LiveLogs(config, life.worker)

    # Work

    def next_work(self) -> tuple[ServedPartition, Work] | None:
        """Return the next step of all feeds; None if the worker has to wait."""
        for feed in self._order() if len(self.feeds) > 1 else self.feeds.values():
            if not feed.serves:
                continue
            desk = feed.desk
            work = desk.next_work() if desk.wanted else None
            if work is None and desk.ahead and not self._rests(feed.name):
                work = desk.work_ahead()
            if work is not None:
                return feed.partitions[work.partition], work
        return None

    def tick(self, now: float) -> None:
        """Run the housekeeping that is not needed at each step, and send a heartbeat."""
        self._now = now
        self._diary.beat()
        self._pass_by()
        if now >= self._report_at:
            self.report()
        if self._sources:
            self._look_at_sources(now)
        if self._lacks:
            self._report_lacks(now)

    def _pass_by(self) -> None:
        """Let retention pass feeds by that are not required, between two steps.

        Store what feeds need no more of their logs though nothing was committed.
        """
        self.logs.pass_by([name for name, feed in self.feeds.items() if feed.failure is not None])
        for feed in self.feeds.values():
            for part in feed.partitions.values() if feed.serves else ():
                if not feed.desk.recovering and (part.run.pass_by() or part.run.unstored):
                    self.stores.submit(part)

    def hand_out(self) -> None:
        """Hand out ready batches while a partition works."""
        if self._at_work is not None and self._at_work.serves:
            self._at_work.desk.next_work()

    def _order(self) -> list[ServedFeed]:
        feeds = [feed for feed in self.feeds.values() if feed.serves]
        feeds.sort(key=lambda feed: (not feed.desk.wanted, self._shares[feed.name].spent_s))
        return feeds

    def _look_at_sources(self, now: float) -> None:
        for part in [one for one, look in self._sources.items() if now >= look]:
            del self._sources[part]
            if part.feed.serves:
                part.feed.desk.wake(part.number)

    def _rests(self, name: str) -> bool:
        """Return whether a feed rests, since it is far enough ahead."""
        share, made = self._shares[name], self.feeds[name].counters.made
        most, most_bytes = share.most
        if share.rests:
            most, most_bytes = most - max(1, most // 4) + 1, most_bytes - most_bytes // 4
        untaken, nbytes = made.batches - made.taken, made.bytes - made.taken_bytes
        enough = untaken >= most or nbytes >= most_bytes
        share.rests = enough and untaken >= (1 if len(self.feeds) > 1 else 2)
        return share.rests

    def _bounds(self, feed: ServedFeed) -> tuple[int, int]:
        """Return how many batches may be made ahead of a feed, and their bytes."""
        capacity = next(iter(feed.partitions.values())).run.capacity
        most, most_bytes = self._config.ahead(capacity, len(feed.partitions))
        if len(self.feeds) > 1:
            most_bytes = min(most_bytes, self._config.slab_bytes // (2 * len(self.feeds)))
        return most, most_bytes

    def may_read(self, part: ServedPartition) -> bool:
        """Return whether a step may read or call user functions, and so take long."""
        return part.run.calls or part.run.reads_next or bool(part.earlier)

    def make(self, part: ServedPartition, work: Work) -> list[Batch] | Outlook | None:
        """Take one step of a partition; None where its feed fails."""
        try:
            return part.run.make(work.slot, work.epoch, work.beyond, work.most)
        except Exception as error:
            self.fail(part, error)
            return None

    def make_at_once(
        self, part: ServedPartition, slot: Slot, epoch: int, most: int
    ) -> list[Batch] | None:
        """Make batches if that takes a moment, and no other feed has its turn; else None."""
        if self._at_work is not None or len(self.feeds) > 1 or self.may_read(part):
            return None
        try:
            made = part.run.make(slot, epoch, False, most)
        except Exception as error:
            self.fail(part, error)
            return None
        return made if isinstance(made, list) and self._placed(part, made) else None

    def make_meanwhile(self, part: ServedPartition, work: Work) -> list[Batch] | Outlook | None:
        """Take a step that may read, while the porter may use everything else."""
        self._at_work, self.stores.busy = part.feed, part
        try:
            step = Step(self._diary, part)
            with step:
                made = part.run.make(work.slot, work.epoch, work.beyond, work.most)
                step.lasts = made is Outlook.WAITS
        except Exception as error:
            self.fail(part, error)
            return None
        return made

    def made(
        self,
        part: ServedPartition,
        work: Work,
        made: list[Batch] | Outlook | None,
        now: float,
        took_s: float,
    ) -> None:
        """Hand the result of a step to the desk."""
        self._at_work = self.stores.busy = None
        feed = part.feed
        if made is None or feed.failure is not None:
            return
        if len(self.feeds) > 1:
            share = self._shares[feed.name]
            self._worked_s = max(self._worked_s, share.spent_s)
            share.spent_s = self._worked_s + took_s
        if isinstance(made, Outlook):
            self._note_wait(part, made, now)
        elif not self._placed(part, made):
            return
        elif not (made or part.run.reads_next):  # it has read
            feed.on_read(part)
            self._note_wait(part, Outlook.IDLE, now)
        feed.desk.made(work, made)
        if (not made or isinstance(made, Outlook)) and part.run.machine.finished and not part.done:
            self._note_end(part)  # after a batch the next report does

    def _placed(self, part: ServedPartition, made: list[Batch]) -> bool:
        """Note new batches; return False where one has too many columns, so that its feed fails."""
        try:
            self.blocks.placed(part.feed.counters.made, made)
        except ProtocolError as error:
            self.fail(part, error)
            return False
        if made:
            part.made_at = self._now
            if self._lacks:
                self._lacks.pop(part, None)
            part.waits = ""
        return True

    def _note_wait(self, part: ServedPartition, made: Outlook, now: float) -> None:
        """Note that a partition waits; it is described after a second without a batch."""
        if made is Outlook.WAITS and (part.run.intake.awaited or not part.run.intake.bound):
            self._sources[part] = now + _SOURCE_S
        elif made is Outlook.FULL:
            self._full = True  # only trainers can free a block
        part.made_at = part.made_at or now
        self._lacks[part] = made

    def _report_lacks(self, now: float) -> None:
        """Describe what partitions wait for, at most once a second: some have many sequences."""
        if now >= self._lacks_at:
            self._lacks_at = now + _SILENT_S
            for part in [one for one in self._lacks if now - one.made_at >= _SILENT_S]:
                part.waits = self._wait_of(part, self._lacks.pop(part))[:1000] + part.run.lacks()

    def _wait_of(self, part: ServedPartition, made: Outlook) -> str:
        """Describe what a partition waits for after a step with this outlook."""
        if made is Outlook.FULL:
            return (
                f"the slab of worker {self._worker} is full: {self._slab.used_bytes} bytes wait "
                "for trainers (slab_bytes bounds it)"
            )
        texts = [part.run.machine.waits_for() if made in (Outlook.IDLE, Outlook.WAITS) else ""]
        if made is Outlook.WAITS:
            awaited = part.run.intake.awaited or "of producers (hs.live)"
            texts.append(f"it waits for its source {awaited}")
        return "; ".join(filter(None, texts))

    def _note_end(self, part: ServedPartition) -> None:
        """Note that a partition has made all; warn if no batch could ever be made."""
        part.done = True
        part.feed.on_read(part)
        if part.run.machine.made_none and (dropped := part.status["dropped"]):
            logger.warning(
                "partition %d of feed %r ends without a batch, and drops its rows: %s",
                part.number,
                part.feed.name,
                drops_of(self._config.feed(part.feed.name).declaration.shape, dropped),
            )
        if part.run.machine.input.hopeless and part.run.intake.share != 0:
            logger.warning(
                "partition %d of feed %r ends: %d epochs in a row made no batch, since its stages "
                "drop each example, or none fills a batch",
                part.number,
                part.feed.name,
                HOPELESS_EPOCHS,
            )

    def _freed(self) -> None:
        if self._full or self._at_work is not None:  # else nobody waits for it
            self._full = False
            for feed in self.feeds.values():
                if feed.serves:
                    feed.desk.freed()

    # Idle time

    def prepare(self, poll: Poll) -> Events | None:
        """Write next batches ahead until ``poll`` returns events; return these, or None."""
        for feed in self.feeds.values():
            for part in feed.partitions.values() if feed.serves else ():
                if part.run.prepare() and (events := poll(0)):
                    return events  # other partitions can prepare later
        return None

    def begin_call(self) -> ServedPartition | None:
        """Return a partition whose prepared batch wants a function of the user's called.

        ``call`` may take long, as ``make`` does, and ``called`` follows.
        """
        for feed in self.feeds.values():
            for part in feed.partitions.values() if feed.serves else ():
                if part.run.calls_ahead:
                    feed.desk.begin_ahead(part.number)
                    return part
        return None

    def call(self, part: ServedPartition, awaited: Callable[[], bool]) -> None:
        """Call the function until it, or what trainers have asked for, is ``awaited``."""
        self._at_work, self.stores.busy = part.feed, part
        feeds = [feed for feed in self.feeds.values() if feed.serves]
        try:
            with Step(self._diary, part):
                part.run.call_ahead(
                    lambda: not (awaited() or any(feed.desk.awaited for feed in feeds))
                )
        except Exception as error:
            self.fail(part, error)

    def called(self, part: ServedPartition) -> None:
        """Give the partition back to its desk."""
        self._at_work = self.stores.busy = None
        if part.feed.failure is None:
            part.feed.desk.end_ahead(part.number)

    def rest(self, poll: Poll, at_most_s: float) -> Events:
        """Wait by ``poll`` and record the reason; return the result of ``poll``."""
        if self._sources:  # the diary has the rows for which the last one waits
            self._diary.beat()
            return poll(min(at_most_s, _SOURCE_S))  # it counts as reading
        self._diary.idle()
        reason = "slab" if self._full else "trainers"
        for feed in self.feeds.values():
            if not self._full and feed.serves and feed.desk.starved:
                reason = "states"
        began = time.monotonic()
        heard = poll(at_most_s)
        self._rested[reason] += time.monotonic() - began
        return heard

    # Status

    def report(self) -> None:
        """Note the status of all partitions, which people may ask for while one of them works."""
        began = time.monotonic()
        for feed in self.feeds.values():
            for part in feed.partitions.values():
                logs = self._config.feed(feed.name).logs
                log = {"log": self.logs.status(feed.name, part.number)} if logs else {}
                if not feed.serves:
                    part.status = {**part.status, **log}
                    continue
                if part.run.machine.finished and not part.done:
                    self._note_end(part)
                if part.earlier:
                    part.earlier &= part.run.machine.chunks()
                status = {**part.run.status(), **log}
                status["partitions"][0]["number"] = part.run.machine.next_turn(ANYONE)[1]
                part.status = status
                if not part.journal.in_memory:
                    since = part.journal.committed_at
                    status["store"] = {
                        "commits": part.journal.commits,
                        "since_commit_s": round(max(0.0, began - since), 3) if since else None,
                        "faults": list(filter(None, [part.journal.fault[:500]])),
                    }
        now = time.monotonic()
        self._report_at = now + max(_REPORT_S, _PART * (now - began))

    def status(self) -> dict[str, Any]:
        """Return fields of ``WorkerStatus``."""
        life_s = time.monotonic() - self._life_began
        return {
            "slab_bytes": self._slab.used_bytes,
            "work_s": max(0.0, life_s - sum(self._rested.values())),
            "rests_s": dict(self._rested),
            "queued_s": _queued_s(),
            "remote_bytes": came(),
        }

    # Calls between steps

    def length(self, feed: ServedFeed, world: int, epoch: int) -> int | str:
        """Return how many batches all partitions of a feed make here; see ``FeedLength.of``."""
        if feed.properties.get("resized"):
            return "its batch size was changed"
        length, config = self._lengths.get(feed.name), self._config.feed(feed.name)
        if length is None:
            fields = next(iter(feed.partitions.values())).run.intake.fields or {}
            length = self._lengths[feed.name] = FeedLength(
                feed.name,
                config.declaration,
                config.files,
                self._readers[feed.name],
                fields,
                self._cache,
            )
        try:
            return length.of([*feed.partitions], config.partitions, world, epoch)
        except Exception as error:  # of a source of the user's, mostly
            return f"to count its examples raised {type(error).__name__}: {error}"

    def open(self, part: ServedPartition) -> None:
        """Open a partition in the state that the last process has stored."""
        feed, number = part.feed, part.number
        try:
            self._diary.begin(feed.name, number, opening=True)
            config = self._config.feed(feed.name)
            reader = self._reader(config)
            if number:  # partition 0 counts damage that shows when a file is opened
                self._bad[feed.name].counts.clear()
            elif isinstance(reader, IndexedSource) and not reader.length:
                logger.warning("feed %r: the source has no example", feed.name)
            with Step(self._diary, part, opening=True):
                try:
                    self._begin(part, config, reader)
                except ImportError as error:  # a named function does not exist
                    raise ServerError(str(error)) from error
        except Exception as error:
            self.fail(part, error)

    def open_log(self, name: str) -> None:
        """Open a log; the feeds that read it fail where that is not possible."""
        try:
            with OwnProcess():
                self.logs.open(name, self._needs)
        except Exception as error:
            for feed in self.feeds.values():
                if name in self._config.feed(feed.name).logs:
                    for part in feed.partitions.values():
                        self.fail(part, error)

    def _needs(self, feed: FeedConfig, number: int) -> tuple[int, Mapping[int, int]]:
        """Return the needs of a feed at a partition of its log, from its journal."""
        part = self.feeds[feed.name].partitions[number]
        try:
            part.saved = self.stores.open(part)
        except Exception as error:
            self.fail(part, error)
            return -1, {}
        return needs_of(part.saved, feed.declaration.shape.options["left"])

    def _reader(self, config: FeedConfig) -> StreamSource:
        reader = self._readers.get(config.name)
        if reader is None:
            skips = config.declaration.policy.on_bad_example == "skip"
            source = config.declaration.source
            hand = RowsAtHand(
                self._diary.reading,
                self._diary.at,
                source.paths[0] if len(source.paths) == 1 else f"the source ({source.kinds})",
                suspects=self._suspects[config.name],
            )
            bad = BadRecords(skips, progress=self._diary.beat, enters=self._diary.enter, hand=hand)
            try:
                logs = partial(self.logs.of, config.name)
                reader = open_reader(source, config.files, bad, self._cache, logs)
            except HeadraceError:
                raise
            except (ValueError, OSError) as error:  # a source refuses its declaration
                raise ServerError(str(error)) from error
            self._bad[config.name], self._readers[config.name] = bad, reader
            self._declared[config.name] = with_boundaries(
                config.name, config.declaration, config.files, reader, bad, self._cache
            )
        return reader

    def _begin(self, part: ServedPartition, config: FeedConfig, reader: StreamSource) -> None:
        saved, part.saved = part.saved or self.stores.open(part), None
        part.run = compose(
            reader,
            self._declared[config.name],
            part.number,
            config.partitions,
            self._slab,
            self._bad[config.name],
            self._config.max_state_bytes,
        )
        self.calls = self.calls or part.run.calls
        part.earlier = {*saved.chunks}
        part.run.resume(saved)

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

    def steer(self, part: ServedPartition, what: Proposal) -> Order | None:
        """Give a partition an order; see ``Desk.steer``."""
        with Step(self._diary, part):
            order: Order | None = part.feed.desk.steer(part.number, what)
        return order

    def copy(self, feed: ServedFeed, directory: str, then: Callable[[int, str], object]) -> None:
        """Copy the stores of a feed; call ``then`` with each copied partition, and any fault."""
        self.logs.hold(feed.name, Path(directory).stem)
        for part in feed.partitions.values():
            part.run.note_places()
            self.stores.submit(part)
        self.stores.write()
        for part in feed.partitions.values():
            self.stores.copy(part, directory, partial(then, part.number))

    def fail(self, part: ServedPartition, error: Exception) -> None:
        """Report that a feed can not go on; an unforeseen error is logged with its traceback."""
        if isinstance(error, MemoryError):
            raise error  # the next life repeats the step, and the diary has the rows
        if not os.path.exists(self._config.directory):
            raise error  # the server was killed, and the next start has removed what it left
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        elif not isinstance(error, HeadraceError):
            text = f"{type(error).__name__}: {text}"
            logger.error("%s", "".join(traceback.format_exception(error)))
        part.feed.fail(code_of(error), text)
