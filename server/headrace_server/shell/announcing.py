"""Batches of a moment, announced together: what a worker has made since it last spoke.

    add(partition, batch) … ─► tell() ─► a message for each partition, with one cursor

A cursor tells of all that its partition has made, so none of it may be announced without it: what
was made and not announced when a worker dies is made again by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace_proto.errors import ProtocolError
from headrace_proto.layout import Slot

from ..feed.partition_feed import MadeBatch
from ..feed.slab import Slab
from .commits import Commits
from .worker_messages import Further, Made, Removed

__all__ = ["Announcer"]

#: When a slab is this full, trainers are asked to copy batches out instead of holding them.
_CROWDED = 0.5
#: So many batches, or columns of them, are enough for a message.
_BATCHES = 16
_COLUMNS = 256
#: Lists of slots whose columns are remembered: most batches of a feed have one of a few.
_MOST_KNOWN = 64

_Name = tuple[str, int]


class _Run(Protocol):
    def dropped(self) -> dict[str, int]: ...

    def stats(self) -> dict[str, Any] | None: ...

    def cursor(self) -> bytes: ...


class Announcer:
    """The announcements of one worker."""

    def __init__(self, slab: Slab, commits: Commits, send: Callable[..., None]) -> None:
        self._slab = slab
        self._commits = commits
        self._send = send
        self._ready: dict[_Name, tuple[_Run, list[MadeBatch]]] = {}
        self._batches = self._columns = 0
        self._known: dict[int, tuple[list[Slot], list[Any]]] = {}  # columns by identity of slots

    def add(self, name: _Name, run: _Run, made: MadeBatch) -> None:
        """A partition has made a batch."""
        if name not in self._ready:
            self._ready[name] = run, []
        self._ready[name][1].append(made)
        self._batches += 1
        self._columns += len(made.slots)

    @property
    def full(self) -> bool:
        """Whether it is time to tell, however recent all is."""
        return self._batches >= _BATCHES or self._columns >= _COLUMNS

    def tell(self) -> list[tuple[_Name, ProtocolError]]:
        """Announce all; the partitions whose batches do not fit a message, and why."""
        if not self._ready:
            return []
        ready, self._ready = self._ready, {}
        self._batches = self._columns = 0
        failed = []
        for name, (run, batches) in ready.items():
            try:
                self._send(self._message(name, run, batches), run.cursor())
            except ProtocolError as error:  # of a great many columns, say
                failed.append((name, error))
        if self._slab.removed:
            self._send(Removed(tuple(self._slab.removed)))
            self._slab.removed.clear()
        return failed

    def _message(self, name: _Name, run: _Run, batches: Sequence[MadeBatch]) -> Made:
        first, *more = [self._described(made) for made in batches]
        return Made(
            *name,
            first.number,
            first.rows,
            first.segment,
            first.offset,
            first.nbytes,
            first.columns,
            first.meta,
            run.dropped(),
            self._slab.fraction_used > _CROWDED,
            run.stats(),
            self._commits.take_kept(name),
            tuple(more),
        )

    def _described(self, made: MadeBatch) -> Further:
        block = made.block
        place = self._slab.name_of(block), block.offset, made.nbytes
        columns = self._columns_of(made.slots)
        return Further(made.number, made.rows, *place, columns, dict(made.meta))

    def _columns_of(self, slots: list[Slot]) -> list[Any]:
        """Slots as a message has them: of the same list of slots it is the same list again."""
        known = self._known.get(id(slots))
        if known is None or known[0] is not slots:
            known = slots, [[slot.offset, slot.nbytes, list(slot.shape)] for slot in slots]
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[id(slots)] = known
        return known[1]
