"""Leaves the examples of recorded batches out from now on, for an operator with a poisoned step.

    flight ─► rows of the chosen batches ─► quarantine.json ─► LeftOut in the next server

Stored positions do not move: see ``making/left_out_rows.py``.  So a batch that is not committed is
passed over whole.  A committed batch stays committed; its examples are out of later epochs, and of
this one if the feed is taken back to a snapshot before it.  Examples of segments end where they
are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgpack

from headrace_proto.errors import ServerError

from ..core.partition import first_number
from ..core.stored_state import Saved
from ..pipeline.steps import SEQUENCES
from ..state.left_out_file import LeftOutFile, Skipped, quarantine_file
from ..state.restoring import finish
from ..state.statedir import StateDirectory, partition_path
from ..state.store import Store
from .feed_record import FeedRecord, feed_of, served_as
from .rows import BatchId, Row

_LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True)
class SkipReport:
    """The result: the examples left out, and batches for which it is too late."""

    feed: str
    examples: int  # named by this call
    known: int  # of these: left out before
    batches: tuple[BatchId, ...]
    committed: tuple[BatchId, ...]  # of these: committed in the current state
    going_on: int  # begun examples of segments, which end where they are

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        named = f"feed {self.feed!r}: {self.examples} examples of {len(self.batches)} batches"
        lines = [f"{named} are left out from now on ({self.known} of them were before)"]
        if self.going_on:
            lines.append(f"{self.going_on} of them have begun, and end where they are")
        if self.committed:
            listed = ", ".join(map(str, self.committed[:5]))
            more = ", …" if len(self.committed) > 5 else ""
            lines.append(
                f"{len(self.committed)} of the batches are committed, which is not undone unless "
                f"the feed is taken back to a snapshot before them: {listed}{more}"
            )
        return lines

    def to_plain(self) -> dict[str, Any]:
        names = {name: [*map(str, getattr(self, name))] for name in ("batches", "committed")}
        return asdict(self) | names


def skip(
    path: Path,
    feed: str | None,
    choose: Callable[[FeedRecord], Iterable[BatchId]],
    reason: str,
    key: bytes | None = None,
    beside: Sequence[Path] = (),
) -> SkipReport:
    """Leave out the examples of the batches that ``choose`` finds; with ``key`` only of that key.

    ``beside``: state directories of the feed's other servers, for in a later epoch any of them may
    have an example.  ServerError while a server holds a directory, or if the record of a batch was
    deleted.
    """
    if not reason.strip() or len(reason) > _LONGEST_REASON:
        raise ValueError(f"reason={reason!r:.80}: a text of 1 to {_LONGEST_REASON} characters")
    name = feed_of(path, feed)
    with contextlib.ExitStack() as holding:
        states = []
        for one in (path, *beside):
            state = StateDirectory(one)
            holding.callback(state.close)
            finish(state.path)
            states.append(state.path)
        history = FeedRecord(states[0], name, states[1:])
        batches = tuple(dict.fromkeys(choose(history)))
        listed = (row for batch in batches for row in _rows(history, batch))
        rows = [row for row in listed if key is None or row.key == key]
        if not rows:
            raise ServerError(f"nothing of feed {name!r} that is recorded fits that choice")
        stores = _stores(states, name, {batch.partition for batch in batches})
        kind = served_as(states[0], name, lambda noted: noted["pipeline"]["shape"]["kind"])
        if kind == SEQUENCES:
            fates = {lease.batch: lease.fate for lease in history.leases}
            done = tuple(batch for batch in batches if fates.get(batch) == "committed")
        else:
            done = tuple(b for b in batches if b.partition in stores and _is_done(stores, b))
        begun = {key for saved in stores.values() for key in saved.examples.keys}
        known = _leave_out(rows, reason, [quarantine_file(state, name) for state in states])
        return SkipReport(
            feed=name,
            examples=len({row.example for row in rows}),
            known=known,
            batches=batches,
            committed=done,
            going_on=len(begun & {(row.epoch, row.key) for row in rows}),
        )


def _leave_out(rows: Sequence[Row], reason: str, files: Sequence[Path]) -> int:
    """Add examples to the lists of all servers; return how many were in all of them before."""
    lists = [LeftOutFile.read(file) for file in files]
    known = {row.example for row in rows}.intersection(*(one.skipped for one in lists))
    for file, left_out in zip(files, lists, strict=True):
        for row in rows:
            left_out.skip(row.example, Skipped(reason, row.epoch))
        left_out.write(file)
    return len(known)


def _rows(history: FeedRecord, batch: BatchId) -> list[Row]:
    made = history.get(batch)
    if made is None:
        raise ServerError(
            f"the record of batch {batch} is gone: the oldest are deleted first "
            "(record_bytes), so its examples can not be left out"
        )
    return made.listed()


def _stores(states: Sequence[Path], feed: str, partitions: set[int]) -> dict[int, Saved]:
    """Return the stored state of some partitions."""
    found = {}
    for state, partition in product(states, partitions):
        path = partition_path(state, feed, partition)
        if path.exists():
            store = Store(path, "process")
            found[partition] = store.load()
            store.close()
    return found


def _is_done(stores: dict[int, Saved], batch: BatchId) -> bool:
    saved = stores[batch.partition]
    base = 0
    if "cursor" in saved.meta:
        cursor = msgpack.unpackb(saved.meta["cursor"], strict_map_key=False)
        base = first_number(cursor["machine"])
    return batch.number < base or batch.number in saved.done
