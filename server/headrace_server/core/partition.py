"""One partition of a feed: what to read next, what to batch next, what is not yet committed.

    next_step() ─► Read   ── the worker reads, then ──► arrived()
                ─► Plan   ── the worker assembles;  later ──► committed()
                ─► Rest      the shape wants nothing more before something happens to it
                ─► None      the input has ended and everything was planned

The machine never sees payload.  A chunk is known by the read that makes it, and reads are
repeatable, so the whole state is small plain data:

    cursor()    how to go on after the last plan, or with one that was given out and is held back;
                plans given out are else somebody else's
    snapshot()  the cursor, and the plans that are not committed, to be given out again
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from .plan import Draft, Part, Plan, Position, Read, Shaper, stored

__all__ = ["VERSION", "Partition", "Rest", "first_number"]

VERSION = 1
#: An epoch may come out empty by chance, when stages drop rows and a partition is small.  After so
#: many empty ones in a row there is nothing that would ever come.
_HOPELESS_EPOCHS = 1000
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "epoch": int,
    "epoch_rows": int,
    "empty_epochs": int,
    "position": object,
    "next_chunk": int,
    "next_number": int,
    "finished": bool,
    "reads": list,
    "shaper": Mapping,
}


class Rest:
    """Nothing can be done until something is saved, wanted or closed."""


class Partition:
    """The machine of one partition.  ``epochs`` None goes round for ever."""

    def __init__(self, shaper: Shaper, start: Position, epochs: int | None = 1) -> None:
        self._shaper = shaper
        self._start = start
        self._epochs = epochs
        self._epoch = 0
        self._position: Position | None = start if epochs is None or epochs > 0 else None
        self._epoch_rows = 0
        self._empty_epochs = 0  # in a row
        self._next_chunk = 0
        self._next_number = 0
        self._reading: Read | None = None
        self._closed = False
        self._finished = False
        self._reads: dict[int, Read] = {}  # of chunks that waiting or uncommitted rows refer to
        self._again: deque[Plan] = deque()  # uncommitted plans of a snapshot, to be given out first
        self._uncommitted: dict[int, Plan] = {}

    @property
    def next_number(self) -> int:
        """The number of the next new plan."""
        return self._next_number

    @property
    def first_number(self) -> int:
        """The number of the next plan, be it one that is given out again."""
        return self._again[0].number if self._again else self._next_number

    @property
    def epoch(self) -> int:
        return self._epoch

    def next_step(self, limit: int) -> Read | Plan | type[Rest] | None:
        """What to do next; ``limit`` bounds a read, and changes nothing in what is planned."""
        if self._reading is not None:
            raise ValueError(f"chunk {self._reading.chunk} is being read and has not arrived")
        if self._again:
            return self._again.popleft()
        while True:
            draft = self._shaper.next_draft()
            if draft is not None:
                return self._number(draft)
            if self._position is not None:
                if not self._shaper.hungry:
                    return Rest
                self._reading = Read(self._next_chunk, self._epoch, self._position, limit)
                return self._reading
            if self._finished:
                return None if self._shaper.done else Rest
            self._finished = True
            self._shaper.finish()

    def _number(self, draft: Any) -> Plan:
        plan = Plan(self._next_number, draft)
        self._next_number += 1
        if isinstance(draft, Draft):  # others are kept by the shaper that gave them
            self._uncommitted[plan.number] = plan
        return plan

    def arrived(
        self,
        read: Read,
        rows: int,
        next_position: Position | None,
        facts: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """A read is done: its rows after the stages, and where the next read starts."""
        if read != self._reading:
            raise ValueError(f"chunk {read.chunk} was not being read")
        self._reading = None
        self._next_chunk += 1
        self._epoch_rows += rows
        if rows and not self._finished:
            self._reads[read.chunk] = read
            self._shaper.offer(read.chunk, rows, facts or {})
        if self._closed:
            return
        self._position = next_position
        if next_position is None:
            self._next_epoch()

    def failed(self) -> None:
        """The read that is under way, if one is, brought nothing; it is the next one again."""
        self._reading = None

    def close(self, cancel: bool = False) -> None:
        """Read no more.  With ``cancel`` rows that were read and not planned are dropped."""
        self._closed = True
        self._position = None
        if cancel:
            self._finished = True
            self._shaper.finish(drop=True)

    def _next_epoch(self) -> None:
        self._empty_epochs = 0 if self._epoch_rows else self._empty_epochs + 1
        self._epoch_rows = 0
        self._epoch += 1
        wanted = self._epochs is None or self._epoch < self._epochs
        if wanted and self._empty_epochs < _HOPELESS_EPOCHS:
            self._position = self._start

    def committed(self, number: int) -> None:
        """The batch of a plan is done: its rows need never be read again."""
        if self._uncommitted.pop(number, None) is None:
            raise ValueError(f"batch {number} is not out: it was never planned, or is committed")
        if self._again:  # of a restored snapshot: its old holder was faster
            self._again = deque(plan for plan in self._again if plan.number != number)

    def chunks(self) -> set[int]:
        """Chunks whose payload is still needed to assemble plans to come."""
        return self._shaper.chunks() | {p.chunk for plan in self._again for p in plan.draft.parts}

    def epoch_of(self, chunk: int) -> int:
        """The epoch that a chunk was read in, while something refers to it."""
        return self._reads[chunk].epoch

    def dropped(self) -> Mapping[str, int]:
        """Rows dropped by the shape, by reason."""
        return self._shaper.dropped()

    def reading(self) -> dict[str, Any]:
        """Where the input stands, before the read that is under way."""
        return {
            "epoch": self._epoch,
            "epoch_rows": self._epoch_rows,
            "empty_epochs": self._empty_epochs,
            "position": self._position,
        }

    def take_number(self) -> int:
        """The number of a batch that was not planned here."""
        self._next_number += 1
        return self._next_number - 1

    def next_read(self, limit: int) -> Read | None:
        """Read on though nothing is wanted; None where nothing is left, or there is no room."""
        if self._position is None or not self._shaper.hungry:
            return None
        self._reading = Read(self._next_chunk, self._epoch, self._position, limit)
        return self._reading

    def resume_reading(self, state: Mapping[str, Any], next_chunk: int) -> None:
        """Go on with the input from there, in chunks of later numbers."""
        self._epoch, self._epoch_rows, self._empty_epochs, self._position = stored(
            state,
            "a partition's input",
            {name: _FIELDS[name] for name in ("epoch", "epoch_rows", "empty_epochs", "position")},
        )
        self._next_chunk = next_chunk

    def forget_reads(self) -> None:
        """Forget reads that nothing refers to any more; cheap, to be called now and then."""
        needed = self._shaper.chunks()
        for plan in self._uncommitted.values():
            needed.update(part.chunk for part in plan.draft.parts)
        self._reads = {chunk: read for chunk, read in self._reads.items() if chunk in needed}

    def cursor(self, held: Plan | None = None) -> dict[str, Any]:
        """Plain data from which another worker goes on with the plan after the last one.

        With ``held``, which is the last one, it goes on with that.
        """
        if self._reading is not None or self._again:
            raise ValueError("there is no cursor while a chunk is read or plans are repeated")
        chunks = self._shaper.chunks()
        return (
            self._state(chunks) if held is None else self._with_plans(chunks, {held.number: held})
        )

    def _state(self, chunks: set[int]) -> dict[str, Any]:
        return {
            "version": VERSION,
            "shape": self._shaper.kind,
            "epoch": self._epoch,
            "epoch_rows": self._epoch_rows,
            "empty_epochs": self._empty_epochs,
            "position": self._position,
            "next_chunk": self._next_chunk,
            "next_number": self._next_number,
            "finished": self._finished,
            "reads": [
                [r.chunk, r.epoch, r.position, r.limit]
                for r in self._reads.values()
                if r.chunk in chunks
            ],
            "shaper": self._shaper.snapshot(),
        }

    def snapshot(self) -> dict[str, Any]:
        """The cursor and every uncommitted plan, as plain data."""
        if self._reading is not None:
            raise ValueError("there is no snapshot while a chunk is read")
        chunks = self._shaper.chunks()
        return self._with_plans(chunks, self._uncommitted)

    def _with_plans(self, chunks: set[int], plans: Mapping[int, Plan]) -> dict[str, Any]:
        for plan in plans.values():
            chunks.update(part.chunk for part in plan.draft.parts)
        state = self._state(chunks)
        state["uncommitted"] = [
            [n, [part.to_plain() for part in plan.draft.parts], dict(plan.draft.meta)]
            for n, plan in sorted(plans.items())
        ]
        return state

    def restore(self, state: Mapping[str, Any]) -> list[Read]:
        """Become what a cursor or a snapshot says; returns the reads whose chunks are needed again.

        ValueError when the state is of another version or another shape; nothing is changed then.
        """
        version, shape = stored(state, "a partition", {"version": object, "shape": object})
        if version != VERSION:
            raise ValueError(
                f"the state of a partition has version {version!r}; this release reads {VERSION}"
            )
        if shape != self._shaper.kind:
            raise ValueError(
                f"the state is of shape {shape!r}, the pipeline of {self._shaper.kind!r}"
            )
        epoch, epoch_rows, empty_epochs, position, chunk, number, finished, reads, shaper = stored(
            state, "a partition", _FIELDS
        )
        known = {chunk: Read(chunk, *rest) for chunk, *rest in reads}
        uncommitted = {
            number: Plan(number, Draft(tuple(map(Part.from_plain, parts)), meta))
            for number, parts, meta in state.get("uncommitted", ())
        }
        self._shaper.restore(shaper)
        self._epoch, self._epoch_rows, self._empty_epochs = epoch, epoch_rows, empty_epochs
        self._position, self._next_chunk, self._next_number = position, chunk, number
        self._finished = finished
        self._closed = False
        self._reading = None
        self._reads = known
        self._uncommitted = uncommitted
        self._again = deque(uncommitted.values())
        return [known[chunk] for chunk in sorted(self.chunks())]


def first_number(state: Mapping[str, Any]) -> int:
    """The number of the first plan that comes from a cursor or a snapshot."""
    return int(min([state["next_number"], *(plan[0] for plan in state.get("uncommitted", ()))]))
