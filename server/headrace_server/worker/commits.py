"""The stores of one worker's partitions, and the changes that gather for them.

    open(partition) ─► lock of its file ─► what earlier processes stored
    submit(partition, run) ──┐               ┌► written at once ─────────────────────┐
    then(partition, call) ───┴► write() ─► [ Store ] ─► fileno() ─► call_stored() ───┴► call()

A call is made after all changes that its partition submitted before it are stored.  So changes may
gather for a moment: no trainer relies on a change before its answer.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import msgpack

from headrace_proto.errors import ServerError

from ..files.durable_file import writing
from ..journal.feed_directory import SUFFIX, own_partition, partition_path
from ..journal.journal import Journal
from ..making.partition_run import Run
from ..shaping.stored_state import Change, Saved

logger = logging.getLogger("headrace.worker")

#: Commits gather for so long, and so many of them: their batches mostly have the same examples, and
#: a record has each once.  Half as many are enough for a worker that would rest.
_GATHER_S, _MOST_GATHERED = 0.008, 24
#: A synced write takes a disk about as long for many commits as for few: so more gather, by this
#: factor.
_TIMES_IF_SYNCED = 2

#: Feed and number of a partition.
PartitionName = tuple[str, int]
Call = Callable[[], object]


@dataclass(slots=True)
class _Gathered:
    """The unwritten changes of one partition."""

    run: Run | None = None
    tokens: list[int] = field(default_factory=list)  # tokens of commits …
    rows: int = 0  # … and their rows
    notes: dict[str, bytes] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)  # once the changes are stored


@dataclass(eq=False)
class Stores:
    """The open stores, and the changes for them.  One thread uses them."""

    directory: str
    durability: str
    fail: Callable[[PartitionName, Exception], object]  # of a partition, with the error
    waits: Callable[[PartitionName, str], object]  # called while nothing can be stored, and why
    term: int = 0  # of this process, which its tokens contain
    window: int = 2 * _MOST_GATHERED  # unanswered commits with which a trainer still gets batches

    def __post_init__(self) -> None:
        self._stores: dict[PartitionName, Journal] = {}
        self._locks: list[int] = []  # locks of their files, for as long as this process lives
        self._used: dict[PartitionName, list[float]] = {}
        self._tokens: dict[PartitionName, set[int]] = {}  # of commits of earlier processes
        self._noted: dict[PartitionName, dict[str, bytes]] = {}  # by earlier processes
        #: The record that is written part by part: its changes, None once they are written.
        self._record: tuple[PartitionName, _Gathered, list[Change] | None] | None = None
        self._gathered: dict[PartitionName, _Gathered] = {}  # since the last write() …
        self._times = _TIMES_IF_SYNCED if self.durability == "power" else 1
        self._most = min(self._times * _MOST_GATHERED, self.window)
        self._commits = 0  # … commits of them …
        self._write_at = inf  # … and when they are due
        #: The partition that works now: what it has to store waits.
        self.busy: PartitionName | None = None
        self._hurried = False  # whether a trainer waits for answers alone
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return the file that is readable when ``call_stored`` has something to do."""
        return self._wake_fd

    def open(self, name: PartitionName) -> Saved:
        """Take over a partition's store; return its content."""
        path = partition_path(self.directory, *name)
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = own_partition(path)  # it may wait for another process
        self._locks.append(lock)
        begun = os.fstat(lock).st_size > 0
        store = self._stores[name] = Journal(path, self.durability, self._wake_fd, begun)
        saved = store.load()
        os.ftruncate(lock, 1)  # from now on a missing journal means a lost one
        self._tokens[name] = set(saved.tokens)
        self._noted[name] = saved.meta
        if "used" in saved.meta:
            self._used[name] = msgpack.unpackb(saved.meta["used"])
        return saved

    def used(self, name: PartitionName) -> list[float] | None:
        """Return the number of commits, times of the first and the last, and rows; None if none."""
        return self._used.get(name)

    def noted(self, name: PartitionName, key: str) -> bytes:
        """Return a value that an earlier process noted; b"" where there is none."""
        return self._noted[name].get(key, b"")

    def tokens(self, name: PartitionName) -> set[int]:
        """Return the tokens of the commits that earlier processes stored."""
        return self._tokens[name]

    def progress(self, name: PartitionName) -> list[Any] | None:
        """Return the number of records written by this process, time of the last, and any fault."""
        store = self._stores.get(name)
        if store is None or store.in_memory:
            return None
        return [store.commits, store.committed_at, store.fault[:500]]

    def lacks(self, name: PartitionName, token: int) -> bool:
        """Return whether this commit was never stored; the oldest of many commits are forgotten."""
        tokens = self._tokens.get(name, set())
        if token in tokens or name not in self._stores:  # not opened: its feed has failed
            return False
        return len(tokens) < self._stores[name].tokens or token > max(tokens)

    def submit(
        self,
        name: PartitionName,
        run: Run,
        tokens: Sequence[int] = (),
        rows: int = 0,
        at_once: bool = False,
    ) -> None:
        """Have the changes of a run stored, with these commits of ``rows`` rows.

        The tokens are stored with the last change, and not before.
        """
        gathered = self._of(name)
        gathered.run = run
        gathered.tokens += tokens
        gathered.rows += rows
        self._commits += len(tokens)
        if at_once:
            self._write_at = 0.0

    def _of(self, name: PartitionName) -> _Gathered:
        found = self._gathered.get(name)
        if found is None:
            found = self._gathered[name] = _Gathered()
            self._write_at = min(self._write_at, time.monotonic() + self._times * _GATHER_S)
        return found

    def _count(self, name: PartitionName, commits: int, rows: int) -> bytes:
        """Count more commits at this time; return the packed totals."""
        now = time.time()
        count, since, _, *before = self._used.get(name, (0, now, now, 0))
        self._used[name] = [count + commits, since, now, sum(before) + rows]
        return bytes(msgpack.packb(self._used[name]))

    def note(self, name: PartitionName, key: str, value: bytes) -> None:
        """Have a value stored beside the examples of a partition."""
        if name in self._stores:
            self._of(name).notes[key] = value
            self._write_at = 0.0

    def hurry(self) -> None:
        """Have all changes written now: a trainer waits for the answers."""
        self._hurried = True

    @property
    def due(self) -> bool:
        """Whether to ``write`` now, a part at least."""
        return self._record is not None or self._commits >= self._most or self.urgent

    @property
    def urgent(self) -> bool:
        """Whether to write everything now: a trainer waits for it, or commits wait for too long.

        Each partition has a record, so with many of them more commits may come than parts written.
        """
        if self._hurried or self._commits >= 2 * self._most:
            return True
        return time.monotonic() >= self._write_at

    @property
    def ripe(self) -> bool:
        """Whether to write a part now, if there is nothing else to do."""
        return self._record is not None or 2 * self._commits >= self._most

    @property
    def due_in_s(self) -> float:
        """Seconds until ``due``."""
        return 0.0 if self._record else max(0.0, self._write_at - time.monotonic())

    def write(self, whole: bool = True) -> bool:
        """Write gathered changes, and make the calls of those that are stored at once.

        If not ``whole``, write only the next part.  Return whether there were any.
        """
        gathers = self._write_part()
        while whole and self._write_part():
            pass
        return gathers

    def _write_part(self) -> bool:
        """Collect the changes of a partition, write them, or make their calls, in this order.

        Return False where there is nothing to do.
        """
        if self._record is None:
            free = (n for n, one in self._gathered.items() if n != self.busy or one.run is None)
            name = next(free, None)
            if name is not None:
                # A later commit of this partition is of its next record, with its change and token.
                gathered = self._gathered.pop(name)
                self._commits -= len(gathered.tokens)
                self._record = name, gathered, self._changes_of(name, gathered)
            if not self._gathered:
                self._write_at, self._hurried = inf, False
            return name is not None
        (name, gathered, changes), self._record = self._record, None
        if changes is None:
            for call in gathered.calls:
                call()
            return True
        try:
            store = self._stores[name]
            if store.write(changes):
                self._record = name, gathered, None
            else:
                store.submit(*changes, tickets=gathered.calls)
        except ServerError as error:
            self.fail(name, error)
        return True

    def _changes_of(self, name: PartitionName, gathered: _Gathered) -> list[Change]:
        changes = [] if gathered.run is None else gathered.run.take_records()
        if gathered.tokens:
            changes = changes or [Change()]
            changes[-1].tokens += gathered.tokens
            earlier = (token for token in gathered.tokens if token >> 32 != self.term)
            self._tokens[name].update(earlier)  # a trainer that greets again may ask about them
            changes[-1].meta["used"] = self._count(name, len(gathered.tokens), gathered.rows)
        if gathered.notes:
            changes.append(Change(meta=gathered.notes))
        return changes

    def settled(self, name: PartitionName) -> bool:
        """Return whether all changes are written and answered, or the store is not open."""
        store = self._stores.get(name)
        if store is None or name in self._gathered:
            return store is None
        return (self._record is None or self._record[0] != name) and store.settled

    @property
    def writing(self) -> bool:
        """Whether a store has still changes to write or to answer."""
        return not all(store.settled for store in self._stores.values())

    def then(self, name: PartitionName, call: Call) -> None:
        """Make a call once all earlier changes of a partition are stored."""
        if self.settled(name):
            call()
        else:
            self._of(name).calls.append(call)

    def copy(self, feed: str, directory: str, then: Callable[[int, str], object]) -> None:
        """Copy the journals of a feed; call ``then`` with each partition and any fault."""
        for (of, partition), store in self._stores.items():
            if of == feed:
                copied = partial(then, partition)
                try:
                    store.copy(Path(directory, f"{partition}{SUFFIX}"), copied)
                except ServerError as error:
                    copied(str(error))

    def call_stored(self) -> None:
        """Make the calls of changes that are stored by now, and of ended copies."""
        os.eventfd_read(self._wake_fd)
        for name, store in self._stores.items():
            try:
                for call in store.take_done():
                    call()
                store.take_failure()
                if store.fault:
                    self.waits(name, f"nothing can be committed to {store.fault}"[:1000])
            except Exception as error:
                self.fail(name, error)

    def close(self) -> None:
        """Write gathered changes, and release the files."""
        self.write()
        stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
        self._wake_fd = -1
