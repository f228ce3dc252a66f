"""A worker process: runs whole partitions and announces their batches to the router.

    orders of the router ─► [ the partition whose turn it is: one step ] ─► announcements

A feed's partitions take turns by (number of their next batch, partition), which is the order in
which the router hands batches out.  So what is made is always what is wanted next, and a slab that
is full holds nothing but what comes earlier.  A feed that nobody reads rests when it is a bounded
way ahead, so that it takes neither turns nor room from the others.
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
import select
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack

from headrace_proto.errors import HeadraceError, ProtocolError, ServerError, code_of
from headrace_proto.schema import schema_to_wire

from ..core.arena import Block
from ..core.changes import Change
from ..feed.index_cache import IndexCache
from ..feed.partition_feed import Blocked, Busy, Done, MadeBatch, PartitionFeed
from ..feed.reader import BadRecords, Reader
from ..feed.sequence_feed import Resting, SequenceFeed
from ..feed.slab import Slab
from ..feed.sources import open_reader
from .channel import Channel
from .child import ParentPipe
from .config import FeedConfig, RunConfig
from .diary import Diary
from .guard import Guard, Passed
from .statedir import partition_path
from .store import Store
from .worker_messages import (
    FROM_ROUTER,
    FROM_WORKER,
    Assign,
    Claimed,
    Close,
    Dry,
    Failed,
    Finished,
    Flush,
    Flushed,
    Kept,
    Made,
    Opened,
    Removed,
    Retarget,
    Retargeted,
    Settled,
    Starved,
    Turn,
    Up,
    Waiting,
)

__all__ = ["Worker", "main"]

logger = logging.getLogger("headrace.worker")

#: When a slab is this full, trainers are asked to copy batches out instead of holding them.
_CROWDED = 0.5
_IDLE_MS = 1000
#: What a worker that the router listens to no more waits for its end.
_ALONE_S = 5.0
#: Answers to saves that are gathered before they are told by themselves.
_MOST_KEPT = 64
#: A partition that has made nothing for so long says what it lacks, and once more after as long.
_SILENT_S = 1.0
#: Where memory runs out the kernel is to take a worker, which can be replaced, and not the router.
_OOM_SCORE = b"500"

_Name = tuple[str, int]


class Worker:
    """One life of one worker."""

    def __init__(
        self,
        config: RunConfig,
        worker: int,
        life: int,
        diary: Diary,
        marks: Mapping[str, Any],
        passed: Passed,
    ) -> None:
        self._config = config
        self._diary = diary
        self._marks = marks  # by feed: rows that killed earlier lives, or may have
        self._passed = passed
        self._guards: dict[str, Guard] = {}
        self._feeds = {feed.name: feed for feed in config.feeds}
        self._worker = worker
        self._life = life
        directory = Path(config.directory)
        self._slab = Slab(directory, worker, life, config.slab_bytes, config.segment_bytes)
        self._cache = IndexCache(config.index_directory or str(directory / "index"))
        self._channel = Channel.connect(directory / "workers", b"%d-%d" % (worker, life))
        self._readers: dict[str, Reader] = {}
        self._bad: dict[str, BadRecords] = {}
        self._running: dict[_Name, PartitionFeed | SequenceFeed] = {}
        self._resting: set[_Name] = set()  # those that wait for trainers
        self._starved: set[_Name] = set()  # of these: those that have said so
        self._spoke: dict[_Name, float] = {}  # when a partition last made or said something
        self._failed: set[str] = set()
        self._made: dict[_Name, PartitionFeed | SequenceFeed] = {}  # those that make no more
        self._kept: dict[_Name, list[list[Any]]] = {}  # saves to be answered
        self._stores: dict[_Name, Store] = {}
        self._locks: list[int] = []  # of their files, for as long as this process lives
        self._tokens: dict[_Name, set[int]] = {}  # of commits in earlier lives
        self._wake_fd = -1
        self._poller = select.poll()
        self._poller.register(self._channel, select.POLLIN)
        if config.state_directory is not None:
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._poller.register(self._wake_fd, select.POLLIN)
        self._blocks: dict[tuple[str, int, int], Block] = {}
        # By feed: partition and bytes of batches made and not taken, oldest first; how many were.
        self._untaken: dict[str, list[tuple[int, int]]] = {name: [] for name in self._feeds}
        self._taken = dict.fromkeys(self._feeds, 0)
        several = len(self._feeds) > 1
        self._always = 1 if several else 2
        self._max_ahead_bytes = config.max_ahead_bytes
        if several:
            share = config.slab_bytes // (2 * len(self._feeds))
            self._max_ahead_bytes = min(share, config.max_ahead_bytes)

    def run(self) -> None:
        """Work until the process is ended."""
        self._send(Up(self._worker, self._life))
        while True:
            self._diary.idle()
            name = self._turn()
            heard = dict(self._poller.poll(0 if name else _IDLE_MS))
            if self._wake_fd in heard:
                self._tell_of_stores()
            if self._channel.fileno() in heard:
                self._hear()
            elif name is not None:
                self._work(name)
                self._tell_kept()
            else:
                self._tell_kept()
                self._tell_of_rest()

    def _turn(self) -> _Name | None:
        """The partition that makes the next batch, unless enough is made ahead."""
        resting = {feed for feed, ahead in self._untaken.items() if self._enough(ahead)}
        while True:
            name = min(
                (n for n in self._running if n[0] not in resting and n not in self._resting),
                key=lambda name: (self._running[name].next_number, name),
                default=None,
            )
            if name is None or not self._at_capacity(name):
                return name
            resting.add(name[0])

    def _enough(self, ahead: list[tuple[int, int]]) -> bool:
        return len(ahead) >= self._always and (
            len(ahead) >= self._config.max_ahead
            or sum(nbytes for _, nbytes in ahead) >= self._max_ahead_bytes
        )

    def _at_capacity(self, name: _Name) -> bool:
        """Whether a partition has made as many batches ahead as its pipeline allows."""
        capacity = self._running[name].capacity
        feed, partition = name
        return capacity is not None and capacity <= sum(
            made == partition for made, _ in self._untaken[feed]
        )

    def _work(self, name: _Name) -> None:
        feed, partition = name
        run = self._running[name]
        try:
            with self._guards[feed].step(partition):
                step = run.advance()
        except MemoryError:
            raise  # the next life has all of it again, and it is known what was read
        except Exception as error:
            self._fail(feed, partition, error)
            return
        if isinstance(run, SequenceFeed):
            self._note_rest(name, run, step is Resting)
        if isinstance(step, MadeBatch):
            self._spoke[name] = time.monotonic()
            try:
                self._announce(name, step)
            except ProtocolError as error:  # of a great many columns, say
                self._fail(feed, partition, error)
        elif step is Busy:
            self._tell_what_lacks(name, run.waits_for())
        elif step is Done:
            self._made[name] = self._running.pop(name)
            self._store(name, self._made[name])
            end = Finished(feed, partition, run.dropped(), run.stats())
            if name in self._stores:  # it follows the commits
                self._stores[name].submit(Change(), end)
            else:
                self._send(end)
        elif step is Blocked:
            full = f"the slab of worker {self._worker} is full: {self._slab.used_bytes} bytes wait "
            self._tell_what_lacks(name, f"{full}for trainers (slab_bytes bounds it)")
            if self._poller.poll(_IDLE_MS):
                self._hear()  # only news from the router can free a block

    def _note_rest(self, name: _Name, run: SequenceFeed, rests: bool) -> None:
        """A partition of segments may have to wait for trainers, who are to know."""
        if rests:
            self._resting.add(name)
            if run.starved and name not in self._starved:
                self._starved.add(name)
                self._send(Starved(*name))
        else:
            self._starved.discard(name)
        for stripe in run.take_dry():
            self._send(Dry(name[0], stripe))

    def _tell_of_rest(self) -> None:
        for name in self._resting:
            run = self._running[name]
            assert isinstance(run, SequenceFeed)
            self._tell_what_lacks(name, run.waits_for(), run.oldest_out())

    def _tell_what_lacks(self, name: _Name, text: str, batch: int | None = None) -> None:
        now = time.monotonic()
        if now - self._spoke.setdefault(name, now) < _SILENT_S:
            return
        self._spoke[name] = now
        if text:
            self._send(Waiting(*name, text[:1000], -1 if batch is None else batch))

    def _announce(self, name: _Name, made: MadeBatch) -> None:
        feed, partition = name
        self._blocks[feed, partition, made.number] = made.block
        if isinstance(self._running[name], PartitionFeed):  # others make what is wanted
            self._untaken[feed].append((partition, made.nbytes))
        message = Made(
            feed,
            partition,
            made.number,
            made.rows,
            self._slab.name_of(made.block),
            made.block.offset,
            made.nbytes,
            [[slot.offset, slot.nbytes, list(slot.shape)] for slot in made.slots],
            dict(made.meta),
            self._running[name].dropped(),
            self._slab.fraction_used > _CROWDED,
            self._running[name].stats(),
            self._kept.pop(name, ()),
        )
        self._send(message, made.cursor)
        if self._slab.removed:
            self._send(Removed(tuple(self._slab.removed)))
            self._slab.removed.clear()

    def _hear(self) -> None:
        for header, *payload in self._channel.receive():
            self._obey(FROM_ROUTER.decode(header), payload)
        if self._channel.ended:
            time.sleep(_ALONE_S)  # a router that died ends us too
            raise ServerError("the router has closed this worker's channel")

    def _obey(self, message: Any, payload: list[bytes]) -> None:
        if isinstance(message, Settled):
            self._settle(message)
        elif isinstance(message, Turn):
            self._take_turn(message, payload)
        elif isinstance(message, Flush):
            self._flush(message, payload)
        elif isinstance(message, Assign):
            self._assign(message, payload[0])
        elif isinstance(message, Close):
            self._close(message)
        elif isinstance(message, Retarget):
            self._retarget(message)
        else:
            raise ProtocolError(f"a worker does not understand {type(message).__name__}")

    def _settle(self, news: Settled) -> None:
        for feed, partition, number in news.freed:
            self._slab.free(self._blocks.pop((feed, partition, number)))
            run = self._running.get((feed, partition))
            if run is not None:
                run.committed(number)
        for feed, taken in news.taken:
            del self._untaken[feed][: taken - self._taken[feed]]
            self._taken[feed] = taken

    def _take_turn(self, turn: Turn, payload: list[bytes]) -> None:
        name = turn.feed, turn.partition
        run = self._running.get(name)
        if run is None and name not in self._made:
            return
        for number in turn.releases:
            if isinstance(run, SequenceFeed):
                run.release(number)
        for token, number, segments in turn.claims:
            self._claim(name, token, number, segments)
        kept = []
        for number, frame, columns, token in turn.saves:
            if token in self._tokens.get(name, ()):  # kept in an earlier life, which died with it
                kept.append([number, "", ""])
                continue
            kept.append([number, *self._save(name, number, columns, token, payload, frame)])
        if isinstance(run, SequenceFeed):
            for upto, stripe in turn.wants:
                run.want(upto, stripe)
            for stripe in turn.leaves:
                run.leave(stripe)
        self._resting.discard(name)
        if kept and name in self._stores:
            self._stores[name].submit(Change(), Kept(*name, kept))
        elif kept:
            self._kept.setdefault(name, []).extend(kept)
            if len(self._kept[name]) > _MOST_KEPT:
                self._tell_kept()

    def _claim(self, name: _Name, token: int, number: int, segments: bytes) -> None:
        """A trainer has a batch of an earlier server."""
        if token in self._tokens.get(name, ()):
            self._send(Claimed(*name, token, "done"))
            return
        run = self._running.get(name) or self._made[name]
        known: int | None = None
        if isinstance(run, PartitionFeed):
            known = run.claim(number)
        elif name in self._running:
            with self._guards[name[0]].step(name[1]):
                known = run.claim(segments)
        if known is None:
            self._send(Claimed(*name, token, "no"))
        else:
            self._send(Claimed(*name, token, "yes", known))

    def _save(
        self, name: _Name, number: int, columns: Any, token: int, payload: list[bytes], frame: int
    ) -> tuple[str, str]:
        """A trainer is done with a batch: an error's code and text, empty when that is noted."""
        run = self._running.get(name) or self._made[name]
        code, text = "", ""
        if isinstance(run, SequenceFeed):
            code, text = run.saved(number, payload[frame - 1] if frame else b"", columns)
        else:
            run.saved(number)
        self._store(name, run, token if not code else None)
        return code, text

    def _store(
        self, name: _Name, run: PartitionFeed | SequenceFeed, token: int | None = None
    ) -> None:
        """Have stored what has changed, where there is a store.

        The last change is that of the commit: its token is stored with it, and not before.
        """
        store = self._stores.get(name)
        if store is not None:
            changes = run.take_changes()
            if token is not None and changes:
                changes[-1].tokens.append(token)
            for change in changes:
                store.submit(change)

    def _tell_kept(self) -> None:
        """What was kept and did not go along with a batch."""
        for name, kept in self._kept.items():
            self._send(Kept(*name, kept))
        self._kept.clear()

    def _tell_of_stores(self) -> None:
        """What has been committed can be told."""
        os.eventfd_read(self._wake_fd)
        for (feed, partition), store in list(self._stores.items()):
            try:
                for message in store.take_done():
                    self._send(message)
                if store.fault:
                    text = f"nothing can be committed to {store.path}: {store.fault}"
                    self._send(Waiting(feed, partition, text[:1000]))
            except Exception as error:
                self._fail(feed, partition, error)

    def _flush(self, order: Flush, payload: list[bytes]) -> None:
        run = self._running.get((order.feed, order.partition))
        name = order.feed, order.partition
        if isinstance(run, SequenceFeed) and order.rows:
            run.flushed(order.number, list(order.rows), payload[0], order.columns)
            self._store(name, run)
        if order.more:
            return
        answer = Flushed(order.feed, order.session, order.request)
        if name in self._stores:
            self._stores[name].submit(Change(), answer)
        else:
            self._send(answer)

    def _assign(self, order: Assign, cursor: bytes) -> None:
        config = self._feeds[order.feed]
        if order.feed in self._failed:
            return
        try:
            self._diary.begin(order.feed, order.partition, opening=True)
            reader = self._reader(config)
            if order.partition:  # damage that shows when a file is opened is partition 0's to count
                self._bad[config.name].counts.clear()
            with self._guards[config.name].step(order.partition, opening=True):
                run = self._run_of(config, order, reader, cursor)
            schema = schema_to_wire(run.schema)
            number = run.next_number if isinstance(run, PartitionFeed) else 0
            self._send(Opened(order.feed, order.partition, schema, dict(run.properties), number))
        except MemoryError:
            raise
        except Exception as error:
            self._fail(order.feed, order.partition, error)
            return
        self._running[order.feed, order.partition] = run

    def _run_of(
        self, config: FeedConfig, order: Assign, reader: Reader, cursor: bytes
    ) -> PartitionFeed | SequenceFeed:
        """A partition, as it was left by an earlier life."""
        args = reader, config.declaration, order.partition, config.partitions, self._slab
        durable = self._config.state_directory is not None
        kind = SequenceFeed if config.stateful else PartitionFeed
        run = kind(*args, self._bad[config.name], durable)
        self._guards[config.name].needed = True  # what is read from here on was read before
        if isinstance(run, SequenceFeed):
            run.start_after(order.made)
        if durable:
            self._resume(run, order)
        if cursor and isinstance(run, PartitionFeed):
            run.restore(msgpack.unpackb(cursor, strict_map_key=False))
            run.note_restored(cursor)
        return run

    def _resume(self, run: PartitionFeed | SequenceFeed, order: Assign) -> None:
        """Open a partition's store and go on from what is in it."""
        assert self._config.state_directory is not None
        name = order.feed, order.partition
        path = partition_path(self._config.state_directory, *name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._locks.append(_owned(path))
        store = self._stores[name] = Store(path, self._config.durability, self._wake_fd)
        saved = store.load()
        self._tokens[name] = set(saved.tokens)
        if isinstance(run, PartitionFeed) or "base" in saved.meta:
            run.resume(saved)
        closing = saved.meta.get("closing")
        if closing is not None:
            run.close(closing == b"cancel")

    def _reader(self, config: FeedConfig) -> Reader:
        reader = self._readers.get(config.name)
        if reader is None:
            skips = config.declaration.policy.on_bad_example == "skip"
            bad = BadRecords(skips, progress=self._diary.beat)
            source = config.declaration.source
            marks = self._marks.get(config.name, {})
            about = config.declaration, config.partitions, self._diary
            guard = Guard(config.name, *about, bad, marks, self._passed)
            reader = guard.around(open_reader(source, config.files, bad, self._cache))
            self._guards[config.name] = guard
            self._readers[config.name] = reader
            self._bad[config.name] = bad
        return reader

    def _fail(self, feed: str, partition: int, error: Exception) -> None:
        """A feed can not go on.  Only what nobody foresaw brings its traceback along."""
        text = str(error)
        if not isinstance(error, HeadraceError):
            text = f"{type(error).__name__}: {text}"
            logger.error("%s", "".join(traceback.format_exception(error)))
        self._send(Failed(feed, partition, code_of(error), text[:8000]))
        self._halt(feed)

    def _halt(self, feed: str) -> None:
        self._failed.add(feed)
        for name in [name for name in self._running if name[0] == feed]:
            del self._running[name]
            self._resting.discard(name)

    def _close(self, order: Close) -> None:
        if order.abandon:
            self._halt(order.feed)
        for name, run in self._running.items():
            if name[0] == order.feed:
                run.close(order.cancel)
                if name in self._stores and not order.abandon:
                    how = b"cancel" if order.cancel else b"close"
                    self._stores[name].submit(Change(meta={"closing": how}))
        self._resting = {name for name in self._resting if name[0] != order.feed}

    def _retarget(self, order: Retarget) -> None:
        for (feed, partition), run in self._running.items():
            if feed != order.feed:
                continue
            fault = ""
            try:
                since = run.set_target_probs(list(order.probs))
            except Exception as error:  # whatever a trainer's numbers bring out
                since, fault = 0, str(error)
            self._send(Retargeted(feed, partition, order.request, since, fault))

    def _send(self, message: object, *payload: bytes) -> None:
        self._channel.send([FROM_WORKER.encode(message), *payload])


def _bound_memory(most: int) -> None:
    """What this process may take for itself: slabs and mapped files do not count.  0: any."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", 0) as score:
        score.write(_OOM_SCORE)
    if most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _owned(path: Path) -> int:
    """The lock of a store, when nobody else has it.

    A worker that was asleep when its server was killed may write its last once it wakes, after
    another server has begun.  A lock of this kind is no child's, whatever user code forks.
    """
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        logger.warning("%s: waits for the end of a worker of an earlier server", path)
        fcntl.lockf(lock, fcntl.LOCK_EX)
    return lock


def main() -> None:
    """Entry of the process."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    pipe = ParentPipe()
    plain = pipe.read_config()
    pipe.watch()
    config = RunConfig.from_plain(plain["run"])
    sys.path[:0] = [path for path in config.python_path if path not in sys.path]
    limit = plain["memory_bytes"]
    _bound_memory(limit)

    def passed(feed: str, rows: list[int]) -> None:
        pipe.tell("passed", feed=feed, rows=rows)

    try:
        diary = Diary(plain["diary"])
        worker = Worker(config, plain["worker"], plain["life"], diary, plain["marks"], passed)
        pipe.tell("ready")
        worker.run()
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            text = f"it ran out of memory (worker_memory_bytes={limit or 'unbounded'}): {text}"
        pipe.tell("dying", text=text)
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
