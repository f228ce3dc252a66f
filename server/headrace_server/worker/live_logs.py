"""The logs of one owner: each partition has a ledger, its files, and the feeds that read it.

    producers ─► changing() ─► ledger ─► write() ─► files ── stored ─► answers; the feeds wake
                                 ▲
    feeds ─► ready(), read() ────┤         what has ended, in order, from a position on
          ─► release() ──────────┘         once the feed's journal has stored that it needs less

A feed here reads sequences that have ended, and whole examples: it takes records in order until as
many ends are there as it wants.  So memory does not grow with what lies in the files.

``views.json`` has, for each feed, up to where it needs nothing.  It is written a second later than
that holds, so after a crash a feed reads a little more than it needs.  ``holds.json`` has the same
for each snapshot, and is on the disk before the snapshot is taken.  Each call
takes the lock of its partition: feeds read in the thread that makes batches, and the porter takes
items meanwhile.

Retention passes a feed by that is not required.  It loses sequences that are open or that it has
not read; those whose end it has read stay until they are trained, so that it reads them again in a
later life.  Then ``views.json`` has these sequences, too, and how many the feed has lost; it is on
the disk before the feed reads on.  A feed that has failed is passed by at once, whatever its
journal has; a later life of it goes on from ``views.json``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headrace_proto.errors import DataError, ServerError
from headrace_proto.log_messages import MAX_ITEM_BYTES
from headrace_proto.schema import Field, schema_to_wire

from ..files.durable_file import read_json, write_durably, write_whole
from ..journal.journal import WORKER
from ..journal.snapshots import PART
from ..logs.ledger import Ledger, LogOptions
from ..logs.log import Log
from ..logs.log_files import LogFiles
from ..logs.records import NEVER, Close, Kind
from ..logs.sequences import NO_FILE
from ..logs.words import RECALLED, Answer, Denied
from ..net.public_socket import free_memory
from ..pipeline.declaration import Plain, Source
from ..process.config import MOST_FOUND, FeedConfig, RunConfig
from ..reading.source import Ended, LogParts, Piece
from ..shaping.log_admission import Event
from ..watch.statuses import added

logger = logging.getLogger("headrace.log")

#: Bytes that a producer may send before the first of them is durable: any item fits in.
_WINDOW = MAX_ITEM_BYTES + (1 << 20)
#: Time after which the name of a silent producer without open sequences is forgotten.
_FORGET_S = 7 * 86400.0
_VIEWS, _HOLDS, _LOG = "views.json", "holds.json", "log.json"
#: Time between two writes of the views of feeds.
_SAVE_S = 1.0
#: Bytes of a file of a log; in shared memory, where room is scarce.
_FILE_BYTES = 64 << 20, 8 << 20
#: Sequences whose columns leave no free memory that counts.
_FEW = 10_000
#: Records that are read at once for a feed, most of which may be of sequences that it refuses.
_MOST_READ = 4096
#: The first step that a feed needs of a sequence of which it gets no more: one that is not there.
_LOST = NEVER - 1
#: A snapshot's name among the views.
_HOLD = "snapshot "


class LiveLog:
    """One partition of a log."""

    def __init__(self, logs: LiveLogs, path: Path, source: Source, durability: str, wake_fd: int):
        options, self._logs, self.lock = source.options, logs, threading.RLock()
        fields = {name: feature.field for name, feature in (source.features or {}).items()}
        self.of_steps = {name: one for name, one in fields.items() if one.ragged_dims}
        self.of_context = {name: one for name, one in fields.items() if not one.ragged_dims}
        self.fields: dict[str, Field] = {**self.of_context, **self.of_steps}
        allowed = LogOptions(
            **{name: options[name] for name in ("max_open", "max_backlog", "retain")},
            window=_WINDOW,
            idle_timeout_s=options["idle_timeout_s"] or math.inf,
            forget_after_s=_FORGET_S,
            file_bytes=_FILE_BYTES[durability == WORKER],
        )
        owner = f"partition {path.name} of log {path.parent.name!r}"
        files = LogFiles(path, owner, durability, allowed.file_bytes, wake_fd)
        self.log = Log(files, allowed, time.monotonic())
        self.ledger = self.log.ledger
        self.readings: dict[str, Reading | Growing] = {}  # by feed
        self._path = path
        self._saved: dict[str, dict[str, Any]] = {}  # views by file, as they are there
        self._save_at = 0.0
        #: Of snapshots of feeds that cut sequences before they end, the pending ones, too.
        self._pending: dict[str, Any] = {}

    def open(
        self,
        feeds: Iterable[FeedConfig],
        there: Callable[[str], bool],
        needs: Mapping[str, tuple[int, Mapping[int, int]]],
    ) -> None:
        """Go on as an earlier life left it.

        ``there``: whether a view is of a snapshot that is.  ``needs``: of feeds that cut sequences
        before they end, up to where their journals have applied the log, and what they need.
        """
        for file in (_VIEWS, _HOLDS):  # without that of feeds all that is there is read
            self._saved[file] = {}
            with contextlib.suppress(OSError, ValueError):
                self._saved[file] = dict(json.loads((self._path / file).read_text()))
        saved = {**self._saved[_VIEWS], **self._saved[_HOLDS]}
        views: dict[str, int] = {}
        floors: dict[str, Mapping[int, int]] = {}
        optional = set[str]()
        for name, view in saved.items():
            if there(name):
                views[name] = view
                if isinstance(view, list):
                    self._pending[name] = view
                    views[name], floors[name] = view[0], dict.fromkeys(view[1], 0)
        for feed in feeds:  # one that was taken back reads by another view
            name = f"{feed.name} {feed.generation}"
            held = f"{_HOLD}{feed.name}/{feed.snapshot}"
            view = saved.get(name, self._pending.get(held, views.get(held, -1)))
            seen, pending, *lost = view if isinstance(view, list) else (view, None)
            if not feed.logs[self._path.parent.name].options.get("required", True):
                optional.add(name)
            if feed.declaration.live:
                stored, needed = needs.get(feed.name, (-1, {}))
                if lost and seen > stored:  # it had failed when it was passed by
                    kept, stored = {*(pending or ())}, seen
                    needed = {of: at if of in kept else _LOST for of, at in needed.items()}
                seen, floors[name] = stored, needed
                self.readings[feed.name] = Growing(self, feed.name, name, sum(lost))
            else:
                begun = seen if pending is None else -1
                self.readings[feed.name] = Reading(self, feed.name, name, sum(lost), begun)
                if pending is not None:
                    floors[name] = dict.fromkeys(pending, 0)
            views[name] = seen
        for name, seen in views.items():
            given = {"reads": not name.startswith(_HOLD), "required": name not in optional}
            self.ledger.attach(name, seen, {}, **given)
        for name, seen in views.items():
            known = floors[name] if name in floors else self.log.pending(seen)
            given = {"reads": not name.startswith(_HOLD), "required": name not in optional}
            self.ledger.attach(name, seen, known, **given)
        self.log.begin()
        for reading in self.readings.values():
            reading.recall(floors.get(reading.view, {}))

    @contextlib.contextmanager
    def changing(self) -> Iterator[Ledger]:
        """Lock the ledger while the caller changes it, then send its messages."""
        with self.lock:
            yield self.ledger
            sent, self.ledger.sent = self.ledger.sent, []
            for number, message in sent:
                self._logs.send(number, message)

    def flush(self) -> None:
        """Write new items; answer producers and wake feeds up to the durable ones."""
        with self.changing() as ledger:
            self.log.flush()
            for reading in self.readings.values():
                if reading.waits and ledger.views[reading.view].read < ledger.durable:
                    reading.waits = False
                    self._logs.wake(reading.feed, int(self._path.name))

    def tick(self, now: float, there: Callable[[str], bool]) -> None:
        """Run due housekeeping; release the items that only deleted snapshots needed."""
        with self.changing() as ledger:
            required = (r for r in self.readings.values() if ledger.views[r.view].required)
            ledger.starving = all(one.waits for one in required)
            self.log.tick(now)
            for name in [one for one in ledger.views if one.startswith(_HOLD) and not there(one)]:
                ledger.detach(name)
        self.flush()
        if now >= self._save_at:
            self._save_at = now + _SAVE_S
            self._save_views()

    def hold(self, feed: str, snapshot: str) -> None:
        """Keep the items that a snapshot of a feed needs."""
        with self.lock:
            reading = self.readings[feed]
            seen, name = self.ledger.views[reading.view].seen, f"{_HOLD}{feed}/{snapshot}"
            if isinstance(reading, Growing) or reading.lost:
                floors = self.ledger.needs(reading.view)
                self._pending[name] = [seen, [*floors], reading.lost]
            else:
                floors = self.ledger.pending(seen)
            self.ledger.attach(name, seen, floors, reads=False)
            self._save_views()

    def pass_by(self, failed: Collection[str]) -> None:
        """Let retention pass feeds by that are not required, as far as that is due."""
        with self.lock:
            ledger = self.ledger
            for feed, reading in self.readings.items():
                view, upto = ledger.views[reading.view], ledger.taken
                noted = view.seen if feed in failed else max(view.seen, reading.overdue)
                late = not view.required and noted < upto
                if late and self.log.unread(reading.view, upto) is not None:
                    reading.pass_by(upto, feed in failed)

    def passed(
        self, reading: Reading | Growing, upto: int, unread: int, kept: Collection[int]
    ) -> None:
        """Let a feed lose what comes up to a position, but for sequences that it keeps."""
        lost = unread + self.ledger.pass_by(reading.view, upto, kept)
        if lost and not reading.lost:
            logger.warning(
                "feed %r is not required, and retention passes it by: it loses sequences of log "
                "%r, which its status counts (lost)",
                reading.feed,
                self._path.parent.name,
            )
        reading.lost += lost
        self._save_views(synced=True)
        self._logs.wake(reading.feed, int(self._path.name))

    def _save_views(self, synced: bool = False) -> None:
        """Replace the files of the views, where these have changed."""
        lost = {reading.view: reading.lost for reading in self.readings.values() if reading.lost}
        for file, held in ((_VIEWS, False), (_HOLDS, True)):
            seen: dict[str, Plain] = {}
            for name, view in self.ledger.views.items():
                if name.startswith(_HOLD) == held:
                    seen[name] = self._pending.get(name, view.seen)
                    if name in lost:
                        needs = [of for of in self.ledger.needs(name) if of <= view.seen]
                        seen[name] = [view.seen, needs, lost[name]]
            if seen != self._saved[file]:
                # The next life is to hold what snapshots need, after a power cut as well.
                write_whole(self._path / file, json.dumps(seen), synced=held or synced)
                self._saved[file] = seen

    def close(self) -> None:
        with self.lock:
            self.log.close()
            self._save_views()

    def status(self, feed: str) -> dict[str, int]:
        """Return its status as a feed reads it."""
        with self.lock:
            ledger, reading = self.ledger, self.readings[feed]
            return {
                "open": len(ledger.sequences.open),
                "ended": len(reading.ends),
                "aborted": reading.aborted,
                "lost": reading.lost,
                "producers": ledger.present,
                "backlog_bytes": ledger.backlog,
                "full": ledger.full,
                "wanting": ledger.wanting,
                "bytes": sum(used for used, _ in ledger.files.values()),
            }

    def described(self, now: float) -> dict[str, object]:
        """Return its status: its feeds, and the open sequences that are silent for longest."""
        with self.lock:
            resting = self.ledger.resting(MOST_FOUND)
            return {
                "closed": self.ledger.closed,
                "feeds": {feed: self.status(feed) for feed in self.readings},
                "resting": [
                    [key.decode(errors="backslashreplace"), name, steps, round(now - touched, 1)]
                    for key, name, steps, touched in resting
                ],
            }


@dataclass(slots=True, eq=False)
class Reading:
    """Ends that a feed has read of a partition and not released, and their sequences."""

    of: LiveLog
    feed: str
    view: str  # its name in the ledger
    lost: int  # sequences that retention took
    begun: int  # position up to which an earlier life had released
    ends: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    waits: bool = False  # whether it has asked for more than there is
    aborted: int = 0  # sequences
    overdue = -1

    def recall(self, pending: Iterable[int]) -> None:
        """Go on with the sequences whose ends an earlier life had read."""
        ledger = self.of.ledger
        seen, s = ledger.views[self.view].seen, ledger.sequences
        ends = sorted((s.closed_at[s.row.get(of)], of) for of in pending if of in s.row)
        ends = ends[: bisect_right(ends, (seen, NEVER))]
        self.ends += [end for end, _ in ends]
        self.sequences += [of for _, of in ends]

    def pass_by(self, upto: int, failed: bool) -> None:
        """Lose what retention takes up to a position."""
        unread = self.of.log.unread(self.view, upto) or 0
        self.of.passed(self, upto, unread, {*self.sequences})

    def ready(self, position: int, limit: int) -> int:
        """Return how many sequences ended from a position on, at most ``limit``; ``limit`` where
        no more will."""
        with self.of.lock:
            at, over = self._read_on(position, limit)
            there = limit if over else min(limit, len(self.ends) - at)
            self.waits = there < limit  # it may want them all
            return there

    def read(self, position: int, limit: int) -> tuple[list[Ended], int | None]:
        """Return the first sequences that ended from a position on, and the position after them;
        None: no more will."""
        with self.of.lock:
            at, over = self._read_on(position, limit)
            found, log = list[Ended](), self.of.log
            for of, end in islice(zip(self.sequences, self.ends, strict=True), at, at + limit):
                context, steps = log.context(of), [*log.parts(of)]
                found.append(Ended(end, context, steps, whole=of == end and not steps))
            last = over and at + limit >= len(self.ends)
            self.waits = self.waits or (len(found) < limit and not over)
            return found, None if last else found[-1].position + 1 if found else position

    def _read_on(self, position: int, limit: int) -> tuple[int, bool]:
        """Read until ``limit`` ends from a position on are known.

        Return the place of the first in the list, and whether no more will come.
        """
        ledger, log, ends = self.of.ledger, self.of.log, self.ends
        if 0 < position <= self.begun:
            raise DataError(
                f"feed {self.feed!r} goes on from position {position} of a log that has kept what "
                f"comes after {self.begun}: its state is older than the log.  Start the feed from "
                f"its beginning: headrace restart {self.feed}"
            )
        at, view = bisect_left(ends, position), ledger.views[self.view]
        while len(ends) - at < limit and (entry := log.next_event(self.view)) is not None:
            if entry.record.close == Close.END:
                ends.append(entry.position)
                self.sequences.append(entry.record.of)
                at += entry.position < position  # it was released, and that is not stored
            elif entry.record.close != Close.GOING:
                self.aborted += entry.record.close == Close.ABORT
                ledger.release(self.view, view.seen, {}, [entry.record.of])
        return at, ledger.finished and view.read == ledger.durable

    def release(self, position: int) -> None:
        """Release the items before a position: the feed's journal has passed them."""
        with self.of.changing() as ledger:
            at, view = bisect_left(self.ends, position), ledger.views[self.view]
            seen = min(position - 1, view.read)
            if at or seen > view.seen:
                ledger.release(self.view, seen, {}, self.sequences[:at])
                del self.ends[:at], self.sequences[:at]


@dataclass(slots=True, eq=False)
class Growing:
    """A partition as a feed reads it that cuts sequences before they end: record by record."""

    of: LiveLog
    feed: str
    view: str  # its name in the ledger
    lost: int  # sequences that retention took
    waits: bool = False  # whether it has asked for more than there is
    aborted: int = 0  # sequences
    overdue: int = -1  # position up to which retention takes records
    skipped: int = -1  # what it has left out, until that is stored …
    unread: int = 0  # … and how many sequences open there that it had not read

    def recall(self, pending: Iterable[int]) -> None:
        """Do nothing: the machine of the feed knows which sequences are pending."""

    def pass_by(self, upto: int, failed: bool) -> None:
        """Note what retention takes: the machine goes on after it, between two steps.

        That of a feed that has failed takes no step any more.
        """
        self.overdue = upto
        if failed:
            self.skip(upto)
            self._pass_skipped()

    def skip(self, upto: int) -> None:
        with self.of.lock:
            self.skipped = upto
            self.unread += self.of.log.unread(self.view, upto) or 0
            view = self.of.ledger.views[self.view]
            view.read = max(view.read, upto)

    def events(self, limit: int) -> tuple[list[Event], int, bool]:
        with self.of.lock:
            ledger, found = self.of.ledger, list[Event]()
            view, next_event = ledger.views[self.view], self.of.log.next_event
            upto = view.read + _MOST_READ
            while len(found) < limit and (entry := next_event(self.view, upto)) is not None:
                one = entry.record
                opens = one.kind == Kind.OPENED and one.close != Close.LOST
                self.aborted += one.close == Close.ABORT
                found.append(Event(entry.position, one.of, opens, one.steps, one.close))
            over = ledger.finished and view.read == ledger.durable
            self.waits = not (found or over) and view.read >= ledger.durable
            return found, view.read, over

    def newest(self, of: int, step: int) -> tuple[int, int, float]:
        with self.of.lock:
            s = self.of.ledger.sequences
            row = s.row.get(of)
            found = of, 0, 0.0
            for at in s.chain(row):
                if s.upto[at]:
                    found = s.at[at], s.version[at], s.time[at]
                if s.upto[at] >= step:
                    return found
            return (s.closed_at[row] if row >= 0 else of, *found[1:])

    def grown(self, of: np.ndarray, seen: int) -> np.ndarray:
        with self.of.lock:
            ledger, s = self.of.ledger, self.of.ledger.sequences
            row, found = s.row.find(of), np.zeros((3, len(of)), np.int64)
            known, row = row >= 0, row[row >= 0]
            steps, closed = np.zeros(len(s.id), np.int64), np.asarray(s.closed_at) <= seen
            came = (np.asarray(s.at) <= seen) & (np.asarray(s.file) != NO_FILE)
            np.maximum.at(steps, np.asarray(s.of)[came], np.asarray(s.upto)[came])
            close = np.where(closed, np.asarray(s.state, np.int64) & ~RECALLED, Close.GOING)
            there = np.asarray(ledger.views[self.view].floors)[row] != NEVER
            columns = np.array([steps, close == Close.END, close == Close.ABORT])[:, row]
            found[:, known] = np.where(there, columns, 0)
            return found

    def steps(self, of: int, first: int, after: int) -> tuple[bytes, memoryview, list[Piece]]:
        with self.of.lock:
            log, s, found = self.of.log, self.of.ledger.sequences, list[Piece]()
            for at in s.chain(s.row.get(of)):
                if first < s.upto[at] and s.first[at] < after:
                    found.append(Piece(s.first[at], log.data(at)))
            return s.keys[s.row.get(of)], log.context(of), found

    def key(self, of: int) -> bytes:
        with self.of.lock:
            s = self.of.ledger.sequences
            return s.keys[s.row.get(of)] if of in s.row else b""

    def context(self, of: int) -> memoryview:
        with self.of.lock:
            return self.of.log.context(of)

    def refuse(self, of: Iterable[int]) -> None:
        with self.of.changing() as ledger:
            ledger.release(self.view, ledger.views[self.view].seen, {}, of)

    def release(self, seen: int, floors: Mapping[int, int], done: Sequence[int]) -> None:
        with self.of.changing() as ledger:
            view = ledger.views[self.view]
            if 0 <= self.skipped <= seen:
                self._pass_skipped()
            ledger.release(self.view, min(seen, view.read), floors, done)

    def _pass_skipped(self) -> None:
        self.of.passed(self, self.skipped, self.unread, ())
        self.skipped, self.unread = -1, 0

    @property
    def ends(self) -> Sequence[int]:
        """Return none: the machine of the feed knows which sequences have ended."""
        return ()


class LiveLogs:
    """The partitions of all logs at one owner."""

    def __init__(self, config: RunConfig, worker: int) -> None:
        self._config, self._worker = config, worker
        self._logs: dict[tuple[str, int], LiveLog] = {}
        self.names = {log for feed in config.feeds for log in feed.logs}
        #: Sends a message to a connection of a ledger; wakes a partition of a feed.
        self.send: Callable[[int, Answer | Denied], object] = lambda number, message: None
        self.wake: Callable[[str, int], object] = lambda feed, partition: None
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._most = _FEW  # sequences in memory when free memory was given back last

    def fileno(self) -> int:
        """Return the file that becomes readable when more items are durable."""
        return self._wake_fd

    def at(self, name: str, partition: int) -> LiveLog | None:
        """Return a partition of a log that is here and open."""
        return self._logs.get((name, partition))

    def of(self, feed: str, name: str) -> LogParts:
        """Return the partitions of a log, and those that are here, as a feed reads them."""
        here: dict[int, object] = {
            p: log.readings[feed] for (of, p), log in self._logs.items() if of == name
        }
        return self._config.feed(feed).partitions, here

    def open(
        self, name: str, needs: Callable[[FeedConfig, int], tuple[int, Mapping[int, int]]]
    ) -> None:
        """Open the partitions of a log, whether or not the feeds that read it can go on.

        ``needs`` returns up to where a feed's journal of a partition has applied the log, and the
        first step that it needs of each sequence; it is asked for feeds that cut sequences before
        they end.
        """
        readers = [feed for feed in self._config.feeds if name in feed.logs]
        config, source = readers[0], readers[0].logs[name]
        for other in readers:
            if _of_all(other.logs[name]) != _of_all(source):
                raise ServerError(
                    f"feeds {config.name!r} and {other.name!r} declare log {name!r} unlike: give "
                    "hs.live() the same arguments in both, and leave columns out by .select()"
                )
        directory, durability = self._config.journals
        home, opened = Path(directory, "logs", name), dict[tuple[str, int], LiveLog]()
        fields = {key: feature.field for key, feature in (source.features or {}).items()}
        made = {"partitions": config.partitions, "columns": schema_to_wire(fields)}
        for partition in self._config.partitions_of(config, self._worker):
            (home / str(partition)).mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_same(home / str(partition) / _LOG, made)  # that no other worker writes
            log = LiveLog(self, home / str(partition), source, durability, self._wake_fd)
            log.open(
                readers,
                self._is_there,
                {feed.name: needs(feed, partition) for feed in readers if feed.declaration.live},
            )
            opened[name, partition] = log
        self._logs |= opened

    def pass_by(self, failed: Collection[str]) -> None:
        """Let retention pass feeds by that are not required; some have failed."""
        for log in self._logs.values():
            log.pass_by(failed)

    def flush(self) -> None:
        """Write new items; answer producers and wake feeds up to the durable ones."""
        for log in self._logs.values():
            log.flush()

    def clear_wake(self) -> None:
        """Have the file readable no more; ``flush`` follows."""
        os.eventfd_read(self._wake_fd)

    def tick(self, now: float) -> None:
        for log in self._logs.values():
            log.tick(now, self._is_there)
        there = sum(len(log.ledger.sequences.row) for log in self._logs.values())
        if there > self._most * 33 // 32:  # each column that has grown has left its earlier room
            self._most = there
            free_memory()

    def close(self) -> None:
        """Write and close all files, as the process ends in order."""
        for log in self._logs.values():
            log.close()

    def _is_there(self, view: str) -> bool:
        """Return whether a view is of a snapshot that is there, or is being made."""
        state, name = self._config.state_directory, view.removeprefix(_HOLD)
        paths = [Path(state or "", "snapshots", f"{name}{end}") for end in ("", PART)]
        return state is not None and name != view and any(path.exists() for path in paths)

    def hold(self, feed: str, snapshot: str) -> None:
        """Keep the items of its logs that a snapshot of a feed needs."""
        for (name, _), log in self._logs.items():
            if name in self._config.feed(feed).logs:
                log.hold(feed, snapshot)

    def described(self, now: float) -> list[dict[str, object]]:
        """Return the status of each partition of each log."""
        return [
            {"log": name, "partition": partition, **log.described(now)}
            for (name, partition), log in self._logs.items()
        ]

    def trim(self, name: str, idle_s: float, now: float) -> int:
        """End some of the sequences of a log that are silent for so long; return their number."""
        ended = 0
        for (log, _), one in self._logs.items():
            if log == name:
                with one.changing() as ledger:
                    ended += ledger.expire(now, idle_s)
        return ended

    def status(self, feed: str, partition: int) -> dict[str, int]:
        """Return the status of the logs that a partition of a feed reads."""
        logs = (self.at(name, partition) for name in self._config.feed(feed).logs)
        return added(log.status(feed) for log in logs if log is not None)


def _of_all(source: Source) -> Source:
    """Return what all feeds declare alike of a log."""
    options = {name: value for name, value in source.options.items() if name != "required"}
    return replace(source, options=options)


def _check_same(file: Path, content: Mapping[str, object]) -> None:
    """Store the partitions and columns of a log; ServerError where the stored ones differ."""
    known = read_json(file, dict, "")
    if known is None:
        write_durably(file, json.dumps(content))
    elif known != content:
        changed = [key for key in content if known.get(key) != content[key]]
        raise ServerError(
            f"log {file.parent.parent.name!r} has other {' and '.join(changed)} than the pipeline: "
            f"{ {key: known.get(key) for key in changed} } and not "
            f"{ {key: content[key] for key in changed} }.  Serve it as it was, or take another name"
        )
