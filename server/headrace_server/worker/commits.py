"""The stores of one worker's partitions, and the changes that gather for them.

    open(partition) ─► lock of its file ─► what earlier processes stored
    submit(partition) ───────┐               ┌► written at once ─────────────────────┐
    then(partition, call) ───┴► write() ─► [ Store ] ─► fileno() ─► call_stored() ───┴► call()

A call is made after all changes that its partition submitted before it are stored.  So changes may
gather for a moment: no trainer relies on a change before its answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import msgpack

from headrace_proto.errors import ServerError
from headrace_proto.limits import MAX_COUNT

from ..files.durable_file import writing
from ..journal.feed_directory import SUFFIX, own_partition, partition_path
from ..journal.journal import Journal
from ..shaping.stored_state import Change, Saved
from .served_feed import ServedPartition

#: Commits gather for so long, and so many of them: their batches mostly have the same examples, and
#: a record has each once.  Half as many are enough for a worker that would rest.
_GATHER_S, _MOST_GATHERED = 0.008, 24
#: Beginnings of the names of stored values whose numbers came, in part, from trainers.
_FROM_TRAINERS = ("after ", "deal", "trainers", "turns", "used")
#: A synced write takes a disk about as long for many commits as for few: so more gather, by this
#: factor.
_TIMES_IF_SYNCED = 2

Call = Callable[[], object]


def _check_numbers(meta: Mapping[str, bytes]) -> None:
    """Raise ValueError where a stored number exceeds what a message may have."""

    def largest(value: object) -> int:
        if isinstance(value, list):
            return max(map(largest, value), default=0)
        return abs(value) if isinstance(value, int) else 0

    for name, packed in meta.items():
        values = msgpack.unpackb(packed) if packed and name.startswith(_FROM_TRAINERS) else 0
        if (number := largest(values)) > MAX_COUNT:
            raise ValueError(f"its {name!r} has the number {number}; the most is {MAX_COUNT}")


@dataclass(slots=True)
class _Gathered:
    """The unwritten changes of one partition."""

    changed: bool = False  # whether the run has some
    tokens: list[int] = field(default_factory=list)  # tokens of commits …
    rows: int = 0  # … and their rows
    notes: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)  # once the changes are stored


@dataclass(eq=False)
class Stores:
    """The open stores, and the changes for them.  One thread uses them."""

    directory: str
    durability: str
    fail: Callable[[ServedPartition, Exception], object]  # of a partition, with the error
    term: int = 0  # of this process, which its tokens contain
    window: int = 2 * _MOST_GATHERED  # unanswered commits with which a trainer still gets batches

    def __post_init__(self) -> None:
        self._parts: list[ServedPartition] = []  # whose journals are open
        self._locks: list[int] = []  # locks of their files, for as long as this process lives
        #: The record that is written part by part: its changes, None once they are written.
        self._record: tuple[ServedPartition, _Gathered, list[Change] | None] | None = None
        self._gathered: dict[ServedPartition, _Gathered] = {}  # since the last write() …
        self._times = _TIMES_IF_SYNCED if self.durability == "power" else 1
        self._most = min(self._times * _MOST_GATHERED, self.window)
        self._commits = 0  # … commits of them …
        self.due_at = inf  # … and when they are due
        #: The partition that works now: what it has to store waits.
        self.busy: ServedPartition | None = None
        self._hurried = False  # whether a trainer waits for answers alone
        self._handed = False  # whether threads of journals may have changes to write
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return the file that is readable when ``call_stored`` has something to do."""
        return self._wake_fd

    def open(self, part: ServedPartition) -> Saved:
        """Take over a partition's store; return its content."""
        path = partition_path(self.directory, part.feed.name, part.number)
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = own_partition(path)  # it may wait for another process
        self._locks.append(lock)
        begun = os.fstat(lock).st_size > 0
        owner = f"partition {part.number} of feed {part.feed.name!r}"
        part.journal = Journal(path, self.durability, self._wake_fd, begun, owner)
        self._parts.append(part)
        saved = part.journal.load()
        with part.journal.named():
            _check_numbers(saved.meta)
        os.ftruncate(lock, 1)  # from now on a missing journal means a lost one
        part.tokens, part.noted = set(saved.tokens), saved.meta
        if "used" in saved.meta:
            commits, *_, rows = msgpack.unpackb(saved.meta["used"])
            part.used = commits, rows
        return saved

    def lacks(self, part: ServedPartition, token: int) -> bool:
        """Return whether this commit is not known as stored; only the last ones are remembered."""
        tokens = part.tokens
        if token in tokens or part not in self._parts:  # not opened: its feed has failed
            return False
        return len(tokens) < part.journal.tokens or token > max(tokens)

    def commit(self, part: ServedPartition, token: int, rows: int) -> None:
        """Store a commit of ``rows`` rows; its token is written with its last change."""
        gathered = self._gathered.get(part) or self._of(part)
        gathered.changed = True
        gathered.tokens.append(token)
        gathered.rows += rows
        self._commits += 1

    def submit(self, part: ServedPartition, at_once: bool = False) -> None:
        """Gather the changes of a partition for the next record."""
        self._of(part).changed = True
        if at_once:
            self.due_at = 0.0

    def _of(self, part: ServedPartition) -> _Gathered:
        found = self._gathered.get(part)
        if found is None:
            found = self._gathered[part] = _Gathered()
            self.due_at = min(self.due_at, time.monotonic() + self._times * _GATHER_S)
        return found

    def note(self, part: ServedPartition, key: str, value: Callable[[], bytes]) -> None:
        """Store a value beside the examples of a partition, as it is when the record is written."""
        self._of(part).notes[key] = value
        self.due_at = 0.0

    def hurry(self) -> None:
        """Make all changes due now, since a trainer waits for the answers."""
        self._hurried = True

    @property
    def due(self) -> bool:
        """Whether to ``write`` at least a part now."""
        if self._record is not None or self._commits >= self._most or self._hurried:
            return True
        return self.due_at != inf and time.monotonic() >= self.due_at

    @property
    def urgent(self) -> bool:
        """Whether to write everything now: a trainer waits, or a commit has waited for too long.

        Each partition has a record, so with many of them more commits may come than parts written.
        """
        if self._hurried or self._commits >= 2 * self._most:
            return True
        return time.monotonic() >= self.due_at

    @property
    def ripe(self) -> bool:
        """Whether to write a part now, if there is nothing else to do."""
        return self._record is not None or 2 * self._commits >= self._most

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
            free = (n for n, one in self._gathered.items() if n != self.busy or not one.changed)
            part = next(free, None)
            if part is not None:
                # A later commit of this partition is of its next record, with its change and token.
                gathered = self._gathered.pop(part)
                self._commits -= len(gathered.tokens)
                if gathered.changed:
                    gathered.calls.insert(0, part.feed.stored(part.number))
                self._record = part, gathered, self._changes_of(part, gathered)
                if release := part.run.take_release():  # the log keeps the rest until then
                    gathered.calls.append(release)
            if not self._gathered:
                self.due_at, self._hurried = inf, False
            return part is not None
        (part, gathered, changes), self._record = self._record, None
        if changes is None:
            for call in gathered.calls:
                call()
            return True
        try:
            if part.journal.write(changes):
                self._record = part, gathered, None
            else:
                self._handed = True
                part.journal.submit(*changes, tickets=gathered.calls)
        except ServerError as error:
            self.fail(part, error)
        return True

    def _changes_of(self, part: ServedPartition, gathered: _Gathered) -> list[Change]:
        changes = part.run.take_records() if gathered.changed else []
        if gathered.tokens:
            changes = changes or [Change()]
            changes[-1].tokens += gathered.tokens
            earlier = (token for token in gathered.tokens if token >> 32 != self.term)
            part.tokens.update(earlier)  # a trainer that greets again may ask about them
            part.used = part.used[0] + len(gathered.tokens), part.used[1] + gathered.rows
            changes[-1].meta["used"] = msgpack.packb(part.used)
        if gathered.notes:
            notes = {key: value() for key, value in gathered.notes.items()}
            changes.append(Change(meta=notes))
        return changes

    def settled(self, part: ServedPartition) -> bool:
        """Return whether all changes are written and answered."""
        if part in self._gathered:
            return False
        return (self._record is None or self._record[0] is not part) and part.journal.settled

    @property
    def writing(self) -> bool:
        """Whether a journal's thread has changes to write or finished calls to return."""
        if self._handed:
            self._handed = not all(part.journal.settled for part in self._parts)
        return self._handed

    def then(self, part: ServedPartition, call: Call) -> None:
        """Make a call when all earlier changes of a partition are stored."""
        if self.settled(part):
            call()
        else:
            self._of(part).calls.append(call)

    def copy(self, part: ServedPartition, directory: str, copied: Callable[[str], object]) -> None:
        """Copy the journal of a partition; call ``copied`` then, with any fault."""
        self._handed = True
        try:
            part.journal.copy(Path(directory, f"{part.number}{SUFFIX}"), copied)
        except ServerError as error:
            copied(str(error))

    def call_stored(self) -> None:
        """Make the calls of stored changes and of finished copies."""
        os.eventfd_read(self._wake_fd)
        for part in self._parts:
            journal = part.journal
            try:
                for call in journal.take_done():
                    call()
                journal.take_failure()
                if journal.fault:
                    part.waits = f"nothing can be committed to {journal.fault}"[:1000]
            except Exception as error:
                self.fail(part, error)
