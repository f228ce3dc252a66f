"""The input of one partition: what to read next, and what its shape makes of it.

    next_step() ─► Read    ── the caller reads, then ──► arrived()
                ─► Draft   ── of the next batch
                ─► Rest       nothing before a trainer acts, or before ``begin_epoch``
                ─► None       the input has ended and everything was drafted

Without ``across_batches`` the shape ends each epoch as it
ends the input, and takes the rows of the next one when the caller begins it (``begin_epoch``).

The machine never sees payload.  A chunk is known by the read that makes it, and reads are
repeatable, so the whole state is small plain data: with ``cursor()`` another machine goes on
after the last draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .plan import Draft, Plan, Position, Read, Shaper, State, stored_fields

VERSION = 3
#: Number of empty epochs in a row after which a partition ends.  A single epoch of a small
#: partition may be empty by chance, if stages drop rows.
HOPELESS_EPOCHS = 1000
#: The attributes that a cursor has; those of the input come first.
_INPUT: dict[str, type] = {
    "epoch": int,
    "epoch_rows": int,
    "empty_epochs": int,
    "position": object,
    "read": int,
}
_STATE: dict[str, type] = {
    **_INPUT,
    "next_chunk": int,
    "next_number": int,
    "first_of_epoch": int,
    "finished": bool,
    "closed": bool,
}


class Rest:
    """No step is possible until trainers act, the next epoch is begun, or the input is closed."""


class Input:
    """The input of one partition.  With ``epochs`` None it is repeated for ever."""

    def __init__(
        self,
        shaper: Shaper,
        start: Position,
        epochs: int | None = 1,
        across_batches: bool = True,
    ) -> None:
        self._shaper = shaper
        self._start = start
        self._epochs = epochs
        self.across_batches = across_batches
        self.first_of_epoch = 0  # number of its first batch, without ``across_batches``
        self.closed = False
        # the epoch that is read; without ``across_batches`` also that of the next batch
        self.epoch = 0
        self.position: Position | None = start if epochs is None or epochs > 0 else None
        self.epoch_rows = 0
        self.empty_epochs = 0  # number of them in a row
        self.next_chunk = 0
        self.read = 0  # of the source, that were read
        self._taken = self._made = 0  # in this life: as ``read``, and rows after the stages
        self.next_number = 0  # number of the next draft
        self._reading: Read | None = None  # the read under way
        self.finished = False  # whether the shape knows that the epoch, or the input, has ended
        self._reads: dict[int, Read] = {}  # reads of chunks with waiting rows

    def __str__(self) -> str:
        return f"chunk {self.next_chunk} (epoch {self.epoch}, batch {self.next_number})"

    @property
    def all_read(self) -> bool:
        """Whether nothing of this epoch, or of the input, is left to read."""
        return self.position is None

    @property
    def next_epoch(self) -> int:
        """The epoch of the newest rows that wait for a batch, or else of the next rows to be read.

        A rare bucket may hold rows of much earlier epochs.
        """
        waiting = (self._reads[chunk].epoch for chunk in self._shaper.chunks())
        return max(waiting, default=self.epoch)

    def next_step(self, limit: int) -> Read | Draft | list[Plan] | type[Rest] | None:
        """Return the next step; ``limit`` bounds the rows of a read and does not affect drafts."""
        assert self._reading is None, f"{self} is being read"
        while True:
            draft = self._shaper.next_draft()
            if draft is not None:
                self.next_number += 1
                return draft
            if not self.all_read:
                return self.next_read(limit) or Rest
            if self.finished:
                return Rest if self._goes_on or not self._shaper.done else None
            self.finished = True
            self._shaper.finish()

    def drafted(self) -> Any:
        """Return the next draft if one is possible without a read, else None."""
        draft = self._shaper.next_draft()
        self.next_number += draft is not None
        return draft

    def arrived(
        self,
        read: Read,
        rows: int,
        next_position: Position | None,
        facts: Mapping[str, np.ndarray] | None = None,
        taken: int = 0,
    ) -> None:
        """Take the result of a read: ``rows`` after the stages, of ``taken`` rows of the source."""
        if read != self._reading:
            raise ValueError(f"chunk {read.chunk} was not being read")
        self._reading = None
        self.next_chunk += 1
        self.epoch_rows += rows
        self.read += taken
        self._taken += taken
        self._made += rows
        if rows:
            self._reads[read.chunk] = read
            self._shaper.offer(read.chunk, rows, facts or {})
        self.position = next_position
        if next_position is None and self.across_batches:
            self._next_epoch()

    def failed(self) -> None:
        """Take back a read that failed, or has no row yet, so that it is the next one again."""
        self._reading = None

    def close(self, cancel: bool = False) -> None:
        """Stop reading, and cancel the pending read.

        With ``cancel`` rows that were read and not drafted are dropped.
        """
        self._reading = self.position = None
        self.closed = True
        if cancel:
            self.finished = True
            self._shaper.finish(drop=True)

    def _next_epoch(self) -> None:
        self.empty_epochs = 0 if self.epoch_rows else self.empty_epochs + 1
        self.epoch_rows = 0
        self.epoch += 1
        if self._wants(self.epoch) and self.empty_epochs < HOPELESS_EPOCHS:
            self.position = self._start

    def _wants(self, epoch: int) -> bool:
        return self._epochs is None or epoch < self._epochs

    @property
    def hopeless(self) -> bool:
        """Whether epochs are left out, since many in a row were empty."""
        across = self.across_batches
        empty = self.empty_epochs if across else self._empty_epochs_in_all
        return empty >= HOPELESS_EPOCHS and self._wants(self.epoch + (not across))

    @property
    def _goes_on(self) -> bool:
        """Whether another epoch follows this ended one, and no batch crosses the border.

        An epoch without a batch counts as an empty one.
        """
        if self.across_batches or self.closed:
            return False
        return self._wants(self.epoch + 1) and self._empty_epochs_in_all < HOPELESS_EPOCHS

    @property
    def _empty_epochs_in_all(self) -> int:
        """The number of empty epochs in a row, including the current one."""
        empty = self.next_number == self.first_of_epoch
        return self.empty_epochs + 1 if empty else 0

    @property
    def at_border(self) -> bool:
        """Whether this epoch is finished and another one follows."""
        return self.finished and self._shaper.done and self._goes_on

    def begin_epoch(self) -> None:
        """Begin the next epoch at the border of this one."""
        if not self.at_border:
            raise ValueError(f"epoch {self.epoch} has not ended, or is the last one")
        self.empty_epochs = self._empty_epochs_in_all
        self.epoch += 1
        self.epoch_rows = 0
        self.first_of_epoch = self.next_number
        self.finished = False
        self.position = self._start
        self._shaper.begin_epoch(self.epoch)

    def used(self, waiting: int) -> float:
        """Return of how many rows of the source none waits, if so many do after the stages."""
        return max(0.0, self.read - waiting * (self._taken / self._made if self._made else 1))

    def chunks(self) -> set[int]:
        """Return the chunks whose payload is needed for future drafts."""
        return self._shaper.chunks()

    def epoch_of(self, chunk: int) -> int:
        """Return the epoch in which a chunk was read, until it is forgotten."""
        return self._reads[chunk].epoch

    def dropped(self) -> Mapping[str, int]:
        """Return the number of rows dropped by the shape, by reason."""
        return self._shaper.dropped()

    def reading(self) -> State:
        """Return the state of the input before the current read."""
        return {name: getattr(self, name) for name in _INPUT}

    def next_read(self, limit: int) -> Read | None:
        """Return a read though no batch is wanted; None at the end of the input or without room."""
        if self.position is None or not self._shaper.hungry:
            return None
        assert self._reading is None, f"{self} is being read"
        self._reading = Read(self.next_chunk, self.epoch, self.position, limit)
        return self._reading

    def lessen(self, limit: int) -> Read:
        """Return the read that is under way, now of fewer rows."""
        assert self._reading is not None
        self._reading = replace(self._reading, limit=limit)
        return self._reading

    def resume_reading(self, state: State, next_chunk: int) -> None:
        """Resume from a state of the input; number chunks from ``next_chunk`` on."""
        vars(self).update(stored_fields(state, "a partition's input", _INPUT))
        self.next_chunk = next_chunk

    def resume_epoch(self, done: int) -> None:
        """Resume in an epoch of which so many batches were done; numbers begin anew."""
        self.first_of_epoch = self.next_number - done

    def forget_reads(self, needed: set[int]) -> None:
        """Forget reads of all but these chunks."""
        self._reads = {chunk: read for chunk, read in self._reads.items() if chunk in needed}

    def cursor(self) -> State:
        """Return plain data from which another machine resumes.

        That machine repeats a read that has not arrived.
        """
        chunks = self.chunks()
        return {
            "version": VERSION,
            "shape": self._shaper.kind,
            **{name: getattr(self, name) for name in _STATE},
            "reads": [
                [r.chunk, r.epoch, r.position, r.limit]
                for r in self._reads.values()
                if r.chunk in chunks
            ],
            "shaper": self._shaper.snapshot(),
        }

    def restore(self, state: State) -> list[Read]:
        """Restore a cursor; return the reads whose chunks are needed again.

        ValueError, and no change, when the state is of another version or another shape.
        """
        version, shape = state.get("version"), state.get("shape")
        if version != VERSION:
            raise ValueError(
                f"the state of a partition has version {version!r}; this release reads {VERSION}"
            )
        if shape != self._shaper.kind:
            raise ValueError(
                f"the state is of shape {shape!r}, the pipeline of {self._shaper.kind!r}"
            )
        found = stored_fields(state, "a partition", {**_STATE, "reads": list, "shaper": Mapping})
        reads, shaper = found.pop("reads"), found.pop("shaper")
        known = {chunk: Read(chunk, *rest) for chunk, *rest in reads}
        self._shaper.restore(shaper)
        vars(self).update(found)
        self._reading = None
        self._reads = known
        return [known[chunk] for chunk in sorted(self.chunks())]
