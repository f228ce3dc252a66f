"""One partition of a feed of segments at work: reads, cuts, keeps states, assembles when asked.

want() ─┐                    ┌─► MadeBatch / Busy / Blocked / Done, as of plain batches
saved() ┼─► advance() ───────┤
leave() ┘                    └─► Resting    nothing can be done until one of these comes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ..core.arena import Block
from ..core.changes import Change, Key, Saved
from ..core.lanes import Lanes
from ..core.partition import Partition, Rest
from ..core.plan import Plan, Read, Shaper
from ..core.segments import SegmentQueue
from ..core.slots import Segments
from ..pipeline.declaration import Declaration
from ..reading.chunk import Chunk, Origin
from ..reading.intake import Intake
from ..reading.reader import BadRecords, Reader
from ..reading.trace import Tracing
from .keeper import Keeper
from .leaving_out import EndedLines, LeftOut
from .partition_feed import Blocked, Busy, Done, MadeBatch
from .preparing import Preparing
from .segment_block import BlockLayout, SegmentBlock
from .sequencing import Offer, Sequencing
from .slab import Slab
from .state_table import KeptStates, StateTable, arrays_of, state_columns, stored_states

__all__ = ["Resting", "SequenceFeed"]


class Resting:
    pass


class SequenceFeed:
    """One partition of one feed of segments, in a worker."""

    capacity = None  # batches are made when they are wanted

    def __init__(
        self,
        reader: Reader,
        declaration: Declaration,
        partition: int,
        partitions: int,
        slab: Slab,
        bad: BadRecords,
    ) -> None:
        self._intake = Intake(reader, declaration, partition, partitions, bad)
        fields = self._intake.fields
        if fields is None:
            raise DataError(
                "no example shows what map gives, and a feed of segments needs to know: declare it "
                "with map(…, schema=…)"
            )
        self._slab = slab
        self._cutting = Sequencing(declaration.shape, fields, partition)
        self.machine: SegmentQueue | Lanes = self._cutting.machine
        machine = cast(Shaper, self.machine)
        self._partition = Partition(machine, self._intake.start(), declaration.order.epochs)
        self._most_rows = declaration.shape.options["capacity"]
        self._schema = self._cutting.fields(self._intake.fact_fields)
        self._layout = BlockLayout(self._schema, self._cutting.num_unroll)
        self._offers: dict[int, Offer] = {}
        self._origins: dict[int, Origin] = {}
        self._table = StateTable(self._cutting.states)
        self._kept = KeptStates(self._cutting.states)
        self._preparing = Preparing(
            slab, self._layout, self._cutting, self._offers, self._table, self._kept
        )
        self._out: dict[int, Segments] = {}  # by number
        self._after: dict[int, tuple[int, Segments]] = {}  # by stripe: the last one that was saved
        self._blocked: tuple[Plan, SegmentBlock] | None = None
        self._read_next: Read | None = None
        self._keeper = Keeper()
        self._saved: list[tuple[Segments, np.ndarray, list[Key], list[np.ndarray]]] = []
        self._changes: list[Change] = []
        self._tracing: Tracing | None = None
        self._ended: EndedLines | None = None

    @property
    def next_number(self) -> int:
        """Number of the batch that is made next."""
        return self._blocked[0].number if self._blocked else self._partition.next_number

    @property
    def schema(self) -> dict[str, Field]:
        """The wire columns of a batch."""
        return self._schema

    @property
    def properties(self) -> dict[str, Any]:
        """What trainers are told beside the schema."""
        return self._cutting.properties()

    def stats(self) -> dict[str, Any]:
        """Counters by class, where there are classes, and of segments."""
        machine = self.machine
        told = [s.stats() for s in self._intake.stratified]
        rewound = machine.rewound if isinstance(machine, Lanes) else 0
        segments = {"in_flight": machine.in_flight, "rewound": rewound}
        return {**(told[-1] if told else {}), "segments": segments}

    def set_target_probs(self, probs: list[float]) -> int:
        """Other proportions of classes from now on; the number of the next batch.

        A later life numbers its batches on, so it is beyond what an earlier one has named.
        """
        targets = self._intake.stratified
        if len(targets) != 1:
            raise ValueError(
                f"the feed has {len(targets)} stages with target proportions; "
                "set_target_probs() needs exactly one"
            )
        return int(targets[0].set_target(probs, self._partition.next_number))

    def progress(self) -> dict[str, Any]:
        """How far it is, in numbers for people."""
        progress = self._intake.progress(self._partition.reading())
        return {**progress, "segments": self.machine.standing()}

    def seek(self, key: bytes) -> list[list[Any]]:
        """Of each example of a key: epoch, segment, of how many, where, number of its batch."""
        numbers = {id(batch): number for number, batch in self._out.items()}
        return [
            [f.epoch, f.segment, f.segments, f.where, numbers.get(id(f.out), -1)]
            for f in self.machine.seek(key)
        ]

    def dropped(self) -> dict[str, int]:
        """Examples dropped before they were cut, and segments after that, by reason."""
        return self._intake.dropped_with(self._partition.dropped())

    def announced(self) -> None:
        """Nothing: what another life goes on from is in the store."""

    def committed(self, number: int) -> None:
        """The bytes of a batch are free: its states came another way."""

    def close(self, cancel: bool) -> None:
        """Read no more.  With ``cancel`` nothing can be saved any more."""
        self._partition.close(cancel)

    # From trainers

    def want(self, upto: int, stripe: int) -> None:
        """Trainers may be given batches until there have been so many."""
        self.machine.want(upto, stripe)

    def check_state_bytes(self, most: int) -> None:
        """LimitExceeded when states are too large to be with the server."""
        self._cutting.check_state_bytes(most)

    def saved(self, number: int, block: Any, columns: Sequence[Any]) -> tuple[str, str]:
        """The states after a batch: an error's code and text, empty when they are kept."""
        batch = self._out.pop(number, None)
        if batch is None:
            return "stale", f"batch {number} is not out"
        keys = self._keys(batch.slots)  # before the machine may drop examples
        rows = self.machine.saved(batch)
        if rows is None:
            if self.machine.cancelled:
                return "cancelled", "the feed was drained with cancel=True: states are not saved"
            return "stale", "its lanes went to another trainer"
        if self._cutting.at_trainer:
            last = self._after.get(batch.stripe)
            if last is None or last[0] < number:
                self._after[batch.stripe] = number, batch
            rows = rows[:0]
        arrays = arrays_of(self._cutting.states, block, columns) if len(rows) else []
        if len(rows):
            # Those that have ended too: nothing reads their slots before they begin anew.
            self._table.put(batch.slots, arrays)
        self._saved.append((batch, rows, keys, arrays))
        return "", ""

    def take_changes(self) -> list[Change]:
        """What is to be stored since this was asked."""
        self._settle()
        changes, self._changes = self._changes, []
        return changes

    def _settle(self) -> None:
        """Let the keeper know of batches that are saved: later than the trainer's next batch."""
        for batch, rows, keys, arrays in self._saved:
            if len(rows) < len(batch):
                keys = [keys[row] for row in rows.tolist()]
                arrays = [array[rows] for array in arrays]
            states = state_columns(arrays) if len(rows) else []
            self._changes.append(self._keeper.saved(batch, rows, keys, states))
        self._saved.clear()

    def _keys(self, slots: np.ndarray) -> list[Key]:
        return cast("list[Key]", self.machine.keys_of(slots))

    def leave(self, stripe: int) -> None:
        """The trainer of a stripe of lanes is gone."""
        assert isinstance(self.machine, Lanes)
        self.machine.leave(stripe)
        self._after.pop(stripe, None)
        for number in [n for n, batch in self._out.items() if batch.stripe == stripe]:
            del self._out[number]

    def flushed(self, number: int, rows: list[int], block: Any, columns: Sequence[Any]) -> None:
        """States of lanes after a batch.  Those that are too old to be of use are let go."""
        assert isinstance(self.machine, Lanes)
        for last, batch in self._after.values():
            if last == number and rows and min(rows) >= 0 and max(rows) < len(batch):
                arrays = arrays_of(self._cutting.states, block, columns)
                places = {row: i for i, row in enumerate(rows)}
                kept = self.machine.keep(batch, np.array(sorted(places), np.int64))
                at = np.array([places[row] for row in kept.tolist()], np.int64)
                self._kept.put(batch.slots[kept], arrays, at)
                if len(kept):
                    self._settle()
                    stored = self._keys(batch.slots[kept]), state_columns([a[at] for a in arrays])
                    self._changes.append(self._keeper.flushed(batch, kept, *stored))

    # Work

    def advance(self) -> MadeBatch | type[Busy] | type[Blocked] | type[Done] | type[Resting]:
        """One step of work."""
        if self._blocked is not None:
            return self._place(*self._blocked)
        if self._read_next is not None:
            read, self._read_next = self._read_next, None
            self._read(read)
            return Busy
        step = self._partition.next_step(self._intake.limit(self._most_rows))
        if isinstance(step, Read):
            self._read_next = step
            return Busy
        if isinstance(step, Plan):
            self._out[step.number] = step.draft
            assembly = self._block(step.draft)  # before chunks are forgotten that only it needs
            if self._tracing is not None:
                self._tracing.begin(step.draft)
            self._report_refused()
            return self._place(step, *assembly)
        self._forget()
        return Resting if step is Rest else Done

    @property
    def reads_next(self) -> bool:
        """Whether the next step reads, which may take long; others do not."""
        return self._read_next is not None

    def prepare(self) -> bool:
        """Write what is known already of the batch that is expected next; whether there was any.

        For when there is nothing else to do: it changes when work is done, and nothing else.
        """
        return self._blocked is None and self._preparing.prepare()

    def _read(self, read: Read) -> None:
        before = self._intake.begin()
        cursor = {
            "input": self._partition.reading(),
            "index": self.machine.next_index,
            "dropped": dict(self._intake.dropped),
        }
        chunk, position = self._intake.chunk(read)
        chunk, offer = self._cutting.offer(chunk, self._intake.bad, read.epoch)
        if len(offer):
            self._offers[read.chunk] = offer
            self._origins[read.chunk] = chunk.origin
        keys = [(read.epoch, key) for key in offer.keys]
        if self._tracing is not None:
            self._tracing.read(read, before, chunk, offer.keys)
        self._settle()
        line, known = self._keeper.read(read, len(offer), before, cursor)
        if self._ended is not None:
            known, ended = self._ended.of_a_chunk(read, chunk.ordinals, known)
            self._changes += ended
            self._intake.count("skipped", len(ended))
        facts: Any = {"key": keys, "count": offer.counts, "line": line, "known": known}
        self._partition.arrived(read, len(offer), position, facts)
        self._report_refused()
        self._intake.end()

    def read_again(self, read: Read, stages: Any) -> tuple[Chunk, Offer]:
        """The rows of a chunk as they were when it was read."""
        if stages is not None:
            self._intake.restore_stages(stages)
        chunk, _ = self._intake.chunk(read)
        return self._cutting.offer(chunk, self._intake.bad, read.epoch)

    def _report_refused(self) -> None:
        refused = self.machine.take_refused()
        if refused:
            self._settle()
        for chunk, row in refused:
            key = self._offers[chunk].keys[row]
            error = DataError(
                f"{self._origins[chunk].describe(row)}: column {self._cutting.key!r} (input_key) "
                f"is {key!r:.200}, and an example of this key is in flight: keys are unique among "
                "the examples in flight; lower capacity or declare make_keys_unique=True"
            )
            self._intake.bad.report(error, "duplicate_key")
            self._changes.append(self._keeper.refused(chunk, row))
        if refused:
            self._intake.count_dropped()
            self._intake.check_bad()
            self._forget()

    def _forget(self) -> None:
        """Let go what no batch to come needs."""
        if isinstance(self.machine, Lanes):
            self._kept.forget(self.machine.take_through())
        gone = self._offers.keys() - self.machine.chunks()
        for number in gone:
            del self._offers[number], self._origins[number]
            if self._tracing is not None:
                self._tracing.forget(number)
            self._keeper.forget(number)
        if gone:
            self._partition.forget_reads()

    # Another life

    def record(self, states: bool = False) -> None:
        """Tell with every batch where its rows came from, and with ``states`` what they brought.

        To be said before anything is read.
        """
        self._tracing = Tracing(states)

    def leave_out(self, rows: LeftOut) -> None:
        """These rows are out.  To be said before anything is read."""
        self._ended = EndedLines(rows, self._keeper)

    def resume(self, saved: Saved) -> None:
        """Go on from what is stored."""
        cursor, begun = self._keeper.resume(saved)
        highest = max([cursor["chunk"], *saved.chunks])
        self._partition.resume_reading(cursor["input"], highest + 1)
        self._intake.restore_stages(cursor["stages"])
        position = cursor["input"]["position"]
        self._intake.resume(cursor["input"]["epoch"], position, cursor["dropped"])
        self.machine.start_from(cursor["index"])
        examples = saved.examples
        if self._ended is not None:
            kept, ended = self._ended.of_begun(begun, self._read_again)
            self._changes += ended
            self._intake.count("skipped", len(ended))
            begun, examples = begun.take(kept), examples.take(kept)
        slots = self.machine.resume(begun)
        states = stored_states(self._cutting.states, examples)
        if self._cutting.at_trainer:
            self._kept.put(slots, states, np.arange(len(slots)))
        else:
            self._table.grow(self.machine.slots)
            self._table.put(slots, states)

    def claim(self, segments: bytes) -> int | None:
        """A trainer has these segments from an earlier life: the number of its batch, from here on.

        None when they are not the next of their examples, or were handed out again.
        """
        rows = len(segments) // 12
        if not isinstance(self.machine, SegmentQueue) or len(segments) != 12 * rows or not rows:
            return None
        indices = np.frombuffer(segments, np.int64, rows)
        numbers = np.frombuffer(segments, np.int32, rows, 8 * rows)
        slots = self.machine.find(indices)
        while (slots < 0).any():
            read = self._read_next
            if read is None:
                read = self._partition.next_read(self._intake.limit(self._most_rows))
            if read is None:
                return None
            self._read_next = None
            self._read(read)
            slots = self.machine.find(indices)
        batch = self.machine.claim(slots, numbers)
        if batch is None:
            return None
        self._table.grow(self.machine.slots)  # its states may come before another batch is made
        number = self._partition.take_number()
        self._out[number] = batch
        return number

    def release(self, number: int) -> None:
        """A batch that was claimed is not done by its trainer."""
        batch = self._out.pop(number, None)
        if batch is not None and isinstance(self.machine, SegmentQueue):
            self.machine.release(batch)

    def _read_again(self, chunk: int) -> np.ndarray:
        """A chunk of an earlier life is needed: its rows as they were, and their numbers."""
        read, stages = self._keeper.reread(chunk)
        now = self._intake.state()
        dropped = dict(self._intake.dropped)
        self._intake.restore_stages(stages)
        rows, _ = self._intake.chunk(read)
        rows, self._offers[chunk] = self._cutting.offer(rows, self._intake.bad, read.epoch)
        self._origins[chunk] = rows.origin
        if self._tracing is not None:
            self._tracing.read(read, stages, rows, self._offers[chunk].keys)
        self._intake.restore_stages(now)
        self._intake.count_dropped()
        self._intake.dropped = dropped  # they were counted when they were first read
        return rows.ordinals

    def _block(self, batch: Segments) -> tuple[SegmentBlock, Block | None]:
        """A batch to be written, and where it lies if it was prepared."""
        for chunk in set(batch.chunks.tolist()) - self._offers.keys():
            self._read_again(chunk)
        prepared = self._preparing.take(batch)
        if self._cutting.at_trainer:
            if prepared is not None:
                return prepared
            extra, states = self._kept.columns(batch, self._offers)
        else:
            self._table.grow(self.machine.slots)
            if prepared is not None:
                prepared[0].extra = self._table.columns(batch.slots)
                return prepared
            self._table.begin(batch, self._offers)
            extra, states = self._table.columns(batch.slots), len(batch)
        return SegmentBlock(self._layout, batch, self._offers, extra, states), None

    def _place(
        self, plan: Plan, assembly: SegmentBlock, block: Block | None = None
    ) -> MadeBatch | type[Blocked]:
        block = block or self._slab.allocate(assembly.nbytes)
        if block is None:
            self._blocked = (plan, assembly)
            return Blocked
        self._blocked = None
        assembly.fill(self._slab.memory(block))
        meta = {"stripe": plan.draft.stripe} if self._cutting.lanes else {}
        trace = None
        if self._tracing is not None:
            memory = self._slab.memory(block)
            states = assembly.states(memory) if self._tracing.states else None
            trace = self._tracing.made(plan.draft, meta, states)
        self._forget()
        about = plan.number, assembly.rows, block, assembly.nbytes, assembly.slots
        return MadeBatch(*about, meta, trace)

    def take_dry(self) -> list[int]:
        """Stripes of lanes for which nothing is left."""
        dry = self.machine.take_dry() if isinstance(self.machine, Lanes) else []
        for stripe in dry:
            self._after.pop(stripe, None)
        return dry

    # Words

    @property
    def starved(self) -> bool:
        """Whether a batch is wanted that has to wait for states."""
        return isinstance(self.machine, SegmentQueue) and self.machine.starved

    def waits_for(self) -> str:
        """What the next batch lacks, where that can be said; for a deadline's error."""
        batch = self.machine.oldest_out()
        if batch is None:
            return ""
        number = next((n for n, out in self._out.items() if out is batch), None)
        segment, count = int(batch.segments[0]), int(batch.counts[0])
        key: Any = self.machine.key_of(int(batch.slots[0]))
        name = f"{segment:05d}_of_{count:05d}:{key[1].decode(errors='backslashreplace')}"
        others = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
        ready = ""
        if isinstance(self.machine, SegmentQueue):
            ready = f"{self.machine.ready} of {self.machine.batch_size} rows are ready; "
        return f"{ready}it waits for save_state of {name[:300]}{others} (batch {number})"

    def oldest_out(self) -> int | None:
        """Number of the batch that has been out for the longest time."""
        oldest = self.machine.oldest_out()
        return next((n for n, out in self._out.items() if out is oldest), None)
