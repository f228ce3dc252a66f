"""Commits of one partition of segments, and the state of it that is stored.

    commit() ─► machine, states ─┬─► StoredExamples ─► Change ─► store
    keep() ──────────────────────┘        ▲
    turns, lanes, orders ─────────────────┴── meta of a Change

A commit takes effect at once, so that the trainer's next batch can be made.  ``take_changes()``
builds its change later.

    turns     run, ranks, epoch, number of the next batch, its index in the epoch (for each rank)
    places    [slot, insertion indices, lanes] of each trainer with lanes, or rank
    orders    declared batch size, and the last orders
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

from headrace_proto.codec import pack

from ..leasing.protocol import Batch, Token
from ..reading.chunk import Chunk
from ..reading.intake import Intake
from ..shaping.plan import Order, Read
from ..shaping.segments import Out, Segments
from ..shaping.stored_state import Change, Saved
from .segment_block import arrays_of, state_columns, stored_states
from .segment_maker import SegmentMaker
from .stored_examples import Commit, StoredExamples


class SegmentCommits:
    """See ``partition_run.Commits``."""

    def __init__(
        self, intake: Intake, machine: Segments, maker: SegmentMaker, stored: StoredExamples
    ) -> None:
        self._intake = intake
        self._machine = machine
        self._maker = maker
        self._cutting = maker.cutting
        self._stored = stored
        self._saved: list[Commit] = []  # since the last change
        self._changes: list[Change] = []
        self._turns: list[Any] = []  # as they are stored
        self._orders = machine.orders  # as they are stored
        self._moved = False  # whether examples got other lanes since that was stored

    # Reads

    def read(self, read: Read, before: Any, chunk: Chunk, facts: dict[str, Any]) -> None:
        """Record a chunk; add its first line and the marks of its rows to the facts."""
        cursor = {
            "input": self._machine.input.reading(),
            "index": self._machine.next_index,
            "dropped": dict(self._intake.dropped),
        }
        self._settle()
        facts["line"], facts["known"] = self._stored.read(read, len(chunk), before, cursor)

    def tidy(self) -> None:
        """Report refused examples, and forget chunks that no later batch needs."""
        self._forget_freed()
        self._report_refused()
        if self._maker.forget():
            self._machine.input.forget_reads(self._machine.chunks())

    def mark(self) -> None:
        """Nothing: each commit is stored with all that a later life needs."""

    def _forget_freed(self) -> None:
        """Drop the handed states of examples that are gone, before others have their slots."""
        if freed := self._machine.take_freed():
            self._maker.states.forget(freed)

    def _report_refused(self) -> None:
        refused = self._machine.take_refused()
        if not refused:
            return
        self._settle()
        for chunk, row in refused:
            self._maker.refuse(chunk, row)
            self._changes.append(self._stored.refused(chunk, row))
        self._intake.count_dropped()
        self._intake.check_bad()

    # Trainers

    def commit(self, batch: Batch, token: Token, payload: Any) -> tuple[str, str] | None:
        """Take a commit, with the columns and the block of the states; return a fault, or None."""
        out = self._machine.commit(batch, token)
        if isinstance(out, tuple):
            return out
        self._note(out, payload)
        self._forget_freed()
        return None

    def _note(self, out: Out, payload: Any) -> None:
        rows = out.rows
        if self._machine.chained and len(rows.ended) < len(rows):
            # Ended examples too: their slots are not read before other examples begin there.
            columns, block = payload
            arrays = arrays_of(self._cutting.states, block, columns)
            if rows.size:
                arrays = [array[rows.lanes] for array in arrays]
            self._maker.states.grow(self._machine.slots)
            self._maker.states.put(rows.slots, arrays)
        self._saved.append((rows.numbers, rows.slots, () if self._cutting.at_trainer else out.keys))
        if self._cutting.lanes:
            self._moved |= len(rows.starts) > 0 or len(rows.ended) > 0

    def keep(self, batch: Batch, rows: Sequence[int], columns: Sequence[Any], block: Any) -> None:
        """Keep states after a batch, which its trainer flushes, for rows of it."""
        self._forget_freed()
        kept = self._machine.keep(batch, np.array(rows, np.int64))
        if kept is None or not len(kept[1]):
            return
        known, of_batch, of_block = kept
        states = [array[of_block] for array in arrays_of(self._cutting.states, block, columns)]
        self._settle()
        slots = known.slots[of_batch]
        self._maker.states.put(slots, states)
        keys = self._machine.keys_of(slots)
        change = self._stored.flushed(known, of_batch, keys, state_columns(states))
        self._changes.append(change)

    # The store

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call."""
        self._settle()
        machine, meta = self._machine, dict[str, bytes]()
        if (turns := machine.turns()) != self._turns:
            self._turns = [*turns[:-1], list(turns[-1])]
            meta["turns"] = pack(turns)
        if machine.orders is not self._orders:
            self._orders = machine.orders
            orders = [order.to_plain() for order in machine.orders]
            meta["orders"] = pack([self._cutting.batch_size, orders])
        if self._moved and not self._cutting.at_trainer:
            self._moved = False
            meta["places"] = self._places()
        if meta:
            self._changes.append(Change(meta=meta))
        changes, self._changes = self._changes, []
        return changes

    def note_places(self) -> None:
        """Have the next process put rows that go on in the lanes that they have here."""
        if self._cutting.lanes:
            self._changes.append(Change(meta={"places": self._places()}))

    def _places(self) -> bytes:
        return pack(
            [
                [slot, indices.astype("<i8").tobytes(), lanes.astype("<i8").tobytes()]
                for slot, (indices, lanes) in self._machine.places().items()
            ]
        )

    def _settle(self) -> None:
        """Build one change of the commits since the last one.

        Until then their states stay in the table: the slot of a dropped example is reused
        only after the next chunk was read.
        """
        if self._saved:
            self._changes.append(self._stored.saved(self._saved, self._maker.states.stored))
            self._saved.clear()

    def resume(self, saved: Saved) -> None:
        """Go on as an earlier life left it."""
        machine, meta = self._machine, saved.meta
        if "base" in meta:
            self._go_on(saved)
        if "turns" in meta:
            places = {
                slot: (np.frombuffer(indices, "<i8"), np.frombuffer(lanes, "<i8"))
                for slot, indices, lanes in msgpack.unpackb(meta.get("places", pack([])))
            }
            machine.resume_turns(msgpack.unpackb(meta["turns"]), places)
        declared, orders = msgpack.unpackb(meta.get("orders", pack([0, []])))
        known = [Order(*one) for one in orders]
        if declared != self._cutting.batch_size:  # it was declared anew since
            known = [order for order in known if order.kind != "batch_size"]
        machine.resume_orders(known)
        self._turns, self._orders = machine.turns(), machine.orders

    def _go_on(self, saved: Saved) -> None:
        machine, examples = self._machine, saved.examples
        cursor = self._stored.resume(saved)
        place = cursor["input"]
        machine.input.resume_reading(place, max([cursor["chunk"], *saved.chunks]) + 1)
        self._intake.stages.restore(cursor["stages"])
        self._intake.resume(place["epoch"], place["position"], cursor["dropped"])
        slots = machine.resume(examples, cursor["index"], cursor["line"])
        self._stored.in_slots(slots, examples.lines)
        states = stored_states(self._cutting.states, examples)
        self._maker.states.resume(slots, states, machine.slots)

    # Queries

    def seek(self, key: bytes) -> list[list[Any]]:
        """Return a key's examples: epoch, segment, number of segments, place, batch number."""
        return self._machine.seek(key)
