"""A partition of segments at work: its examples in memory, batches of their segments, commits.

    chunk ─► examples that can be cut ─► offers ─┐
    states at the server, or handed over ────────┴─► SegmentBlock of a plan

    commit() ─► machine, states ─┬─► StoredExamples ─► Change ─► store
    keep() ──────────────────────┘        ▲
    turns, lanes, orders ─────────────────┴── meta of a Change

A batch may need a chunk that an earlier process read.  The run reads it again, as it was.

A commit takes effect at once, so that the trainer's next batch can be made.  ``take_records()``
builds its change later.

    turns     run, ranks, epoch, number of the next batch, its index in the epoch (for each rank)
    places    [slot, insertion indices, lanes] of each trainer with lanes, or rank
    orders    the last ones
    read      the input after the last read: a later order takes effect there or later
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import msgpack
import numpy as np

from headrace_proto.channel import Frame
from headrace_proto.checks import Columns
from headrace_proto.codec import pack
from headrace_proto.dtypes import BYTES
from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ..leasing.words import Batch, Order, Token
from ..making.arena import Block
from ..making.segment_block import BlockLayout, Gathered, Result, SegmentBlock, places_of_starts
from ..making.segment_cutting import Cutting, Offer
from ..making.segment_map import SegmentMap
from ..making.slab import Slab
from ..making.state_table import (
    HandedStates,
    StateTable,
    arrays_of,
    state_columns,
    stored_states,
)
from ..pipeline.argument_checks import MASK, MAX_BATCH_SIZE, checked_int
from ..pipeline.segment_options import check_rows
from ..reading.chunk import Chunk
from ..reading.intake import Intake
from ..shaping.plan import RESIZED, Plan, Read, Stages, State
from ..shaping.segments import Segments
from ..shaping.spans import Spans
from ..shaping.stored_state import Change, Saved
from .partition_run import TOGETHER, Facts, Payload, Run
from .stored_examples import Commit, StoredExamples

#: Exponent that bounds the pause after wrong guesses: 64 batches.
_MOST_WRONG = 6


class Preparing:
    """At most one prepared batch of one partition.

        expected batch ─► lent block, examples written ─► the wanted batch ─┬─► the same one
                                                                            └─► another: dropped

    The machine decides the batch when it is wanted, as if nothing had been prepared, and gives the
    expected one where it is that.  So a wrong guess costs time and changes nothing.  After n wrong
    guesses in a row it makes none for 2**n batches.

    Where results of a function of segments decide where columns lie, they alone are prepared.
    """

    def __init__(self, slab: Slab, run: SegmentRun) -> None:
        self._slab = slab
        self._run = run
        # Strings decide where columns lie in the block: those of states must be known.
        cutting, self._sized = run.cutting, run.layout.sized
        texts = any(state.field.dtype == BYTES for state in cutting.states)
        self._possible = cutting.at_trainer or not texts or self._sized
        self._ready: tuple[SegmentBlock, Block] | None = None
        #: A batch, its results so far, and those whose function is still to be called.
        self._results: tuple[Spans, list[Any], Iterator[Any]] | None = None
        self.lacks_results = False  # whether the function is to be called for the prepared batch
        self._wrong = 0  # number of wrong guesses in a row
        self._pause = 0  # number of batches without a guess

    def prepare(self) -> bool:
        """Write the examples of the expected batch; return whether there was one."""
        if not self._possible or self._ready or self._results or self._pause:
            return False
        run = self._run
        batch = run.machine.expected()
        if batch is None or not run.held.keys() >= set(batch.of_chunks()):
            return False
        if run.cutting.at_trainer and np.count_nonzero(batch.first[batch.starts]):
            return False  # they start from states that may still be flushed
        if self._sized and run.layout.results is not None:
            self._results = batch, [], iter(run.layout.results(batch, run.held))
            self.lacks_results = True
            return True
        written = run._written(batch, ahead=True)
        block = self._slab.lend(written.nbytes)
        if block is None:
            return False
        written.fill_examples(self._slab.memory(block))
        self._ready, self.lacks_results = (written, block), bool(written.results)
        return True

    def call(self, goes_on: Callable[[], bool]) -> None:
        """Call the function for segments of the prepared batch."""
        try:
            if self._results is not None:
                _, made, others = self._results
                for one in others:
                    made.append(one)
                    if not goes_on():
                        return
                self.lacks_results = False
            elif self._ready is not None and self._slab.lends(self._ready[1]):
                self._ready[0].fill_results(goes_on)
                self.lacks_results = bool(self._ready[0].results)
            else:  # its block was taken back
                self._ready, self.lacks_results = None, False
        except DataError:  # it is raised again when the batch is wanted
            if self._ready is not None:
                self._slab.give_back(self._ready[1])
            self._ready = self._results = None
            self.lacks_results, self._pause = False, 1

    def results(self, batch: Spans) -> Iterable[tuple[int, Result]]:
        """Return the results of this batch, if they were prepared."""
        if self._results is None:
            return ()
        (expected, made, others), self._results = self._results, None
        self._guessed(expected is batch)
        return chain(made, others) if expected is batch else ()

    def _guessed(self, right: bool) -> None:
        self.lacks_results = False
        self._wrong = 0 if right else min(self._wrong + 1, _MOST_WRONG)
        self._pause = 0 if right else 2**self._wrong

    def take(self, batch: Spans) -> tuple[SegmentBlock, Block] | None:
        """Return the prepared batch and its block if it is this one; else None.

        States of the table are still to be written; initial states are already in the block.
        """
        if self._ready is None:
            self._pause = max(0, self._pause - 1)
            return None
        (written, block), self._ready = self._ready, None
        self._guessed(written.batch is batch)
        if written.batch is batch:
            return (written, block) if self._slab.use(block) else None
        self._slab.give_back(block)
        return None


class SegmentRun(Run):
    """One partition at work."""

    machine: Segments

    def __init__(self, intake: Intake, cutting: Cutting, slab: Slab) -> None:
        super().__init__(intake, cutting.machine, slab)
        self.cutting = cutting
        self.most_rows = cutting.capacity
        fields = cutting.fields({**intake.stages.fact_fields, **self.facts})
        masks = [name + MASK for name in cutting.sequences if cutting.masked]
        padding = cutting.padding_values
        packed = cutting.packed
        self.layout = BlockLayout(fields, cutting.geometry, masks, padding)
        if cutting.map is not None:
            self.calls = True
            segment_map = SegmentMap(cutting, self.layout, intake)
            made = {n: f for n, f in fields.items() if not n.startswith("sequences:")}
            for name, field in segment_map.made.items():
                shape = *fields["@key"].shape, *field.shape
                made[f"sequences:{name}"] = Field(field.dtype, shape)
            self.layout = BlockLayout(
                made, cutting.geometry, (), {}, segment_map.results, segment_map.padding
            )
        self.held: dict[int, Offer] = {}
        kind = HandedStates if cutting.at_trainer else StateTable
        self.states: StateTable = kind(cutting.states)
        begun = cutting.states if packed else ()
        self._initial = {f"initial:{state.name}": state.initial()[None] for state in begun}
        self._stored = StoredExamples()
        self._preparing = Preparing(slab, self)
        self._gathered: Gathered | None = None  # batches that are written one after the other
        self._saved: list[Commit] = []  # since the last change
        self._changes: list[Change] = []
        self._turns: list[Any] = []  # as they are stored
        self._orders = cutting.machine.orders  # as they are stored
        self._read_rows = 0  # of the source, as it is stored
        self._moved = False  # whether examples got other lanes since that was stored

    @property
    def facts(self) -> Mapping[str, Field]:
        """Facts of rows that this kind of run adds."""
        return {}

    @property
    def schema(self) -> Mapping[str, Field]:
        return self.layout.fields

    @property
    def properties(self) -> State:
        """Description of the feed for trainers, beside its schema."""
        machine, declared = self.machine, self.cutting.properties()
        if all(order.kind != "batch_size" for order in machine.orders):
            return declared
        return {**declared, **RESIZED, "batch_size": machine.batch_size}

    # Chunks

    def _hold(self, read: Read, before: Stages, chunk: Chunk) -> tuple[Chunk, Facts]:
        chunk, offer = self._offered(read, chunk)
        cursor = {
            "input": self.machine.input.reading(),
            "index": self.machine.admission.next_index,
            "dropped": dict(self.intake.dropped),
        }
        self._settle()
        line, known = self._stored.read(read, len(chunk), before, cursor)
        keys = [(read.epoch, key) for key in offer.keys]
        facts = {"key": keys, "steps": offer.steps, "openings": offer.openings}
        facts["lanes"] = offer.columns.get("@lanes")
        return chunk, {**facts, "line": line, "known": known}

    def _offered(self, read: Read, chunk: Chunk) -> tuple[Chunk, Offer]:
        chunk, offer = self.cutting.offer(chunk, self.intake.bad, read.epoch)
        self.held[read.chunk] = offer
        return chunk, offer

    def _read_again(self, chunk: int) -> None:
        """Read a chunk again that an earlier process has read, and hold it."""
        read, before = self._stored.reread(chunk)
        now = self.intake.stages.state()
        dropped = dict(self.intake.dropped)
        self.intake.stages.restore(before)
        self._offered(read, self.intake.chunk(read)[0])
        self.intake.stages.restore(now)
        self.intake.count_dropped()
        self.intake.dropped = dropped  # they were counted when they were first read

    def _tidy(self) -> None:
        super()._tidy()
        self.states.forget(self.machine.entries.used())

    def _arrived(self) -> None:
        """Report the examples that were refused because their key is in flight."""
        refused = self.machine.admission.take_refused()
        if not refused:
            return
        self._settle()
        for chunk, row in refused:
            offer, key = self.held[chunk], self.cutting.key
            what = "its number" if key is None else f"column {key!r} (input_key)"
            error = DataError(
                f"{offer.origin.describe(row)}: {what} is {offer.keys[row]!r:.200}, and an example "
                "of this key is in flight: keys are unique among the examples in flight; lower "
                "capacity or declare make_keys_unique=True"
            )
            self.intake.bad.report(error, "duplicate_key")
            self._changes.append(self._stored.refused(chunk, row))
        self.intake.count_dropped()
        self.intake.check_bad()

    def _read_on(self) -> bool:
        read = self._next_read or self.machine.next_read(self.intake.limit(self.most_rows))
        return read is not None and self._read(read)

    # Batches

    def _begin(self, plan: Plan) -> tuple[SegmentBlock, Block | None]:
        """Return the batch of a plan, and its block where it was written ahead."""
        batch: Spans = plan.draft
        prepared = self._preparing.take(batch)
        if prepared is None:
            return self._written(batch), None
        if not self.cutting.at_trainer:
            prepared[0].extra |= self.states.columns(batch, self.held)[0]
        return prepared

    def _written(self, batch: Spans, ahead: bool = False) -> SegmentBlock:
        """Return a batch to be written; ``ahead``: before the table has its states."""
        gathered, number = self._gathered, 0
        if gathered is None or batch not in gathered.batches:
            gathered = Gathered(self.layout, self._together(batch), self.held)
        else:
            number = gathered.batches.index(batch)
        self._gathered = gathered if number + 1 < len(gathered.batches) else None
        self.states.grow(self.machine.entries.size)
        if ahead and not self.cutting.at_trainer:
            extra, states = dict[str, Any](), batch.height
        else:
            extra, states = self.states.columns(batch, self.held)
        extra |= self._initial
        if batch.size and self.cutting.at_trainer:
            state_of = np.full(batch.size, -1, np.int32)
            state_of[batch.lanes[batch.starts]] = extra["@state_of"]
            extra["@state_of"] = state_of[places_of_starts(batch)]
        elif batch.size:
            states = batch.size
        results = () if ahead else self._preparing.results(batch)
        return SegmentBlock(gathered, number, extra, states, results)

    def _together(self, batch: Spans) -> list[Spans]:
        """Return a batch with those next ones whose rows are gathered together with it."""
        batches, unwritten = [batch], self.machine.unwritten
        if len(unwritten) > 1 and unwritten[0].draft is batch and self.layout.together:
            most = TOGETHER // (1 + len(batch) * self.layout.row_bytes)
            for plan in islice(unwritten, 1, 0 if batch.size else most):
                if len(plan.draft) != len(batch):
                    break
                batches.append(plan.draft)
        self._hold_steps(batches)
        return batches

    def _hold_steps(self, batches: Sequence[Spans]) -> None:
        """Hold the chunks of these batches, some of which an earlier process read."""
        for spans in batches:
            for chunk in spans.of_chunks() - self.held.keys():
                self._read_again(chunk)

    def prepare(self) -> bool:
        return not self.machine.unwritten and self._preparing.prepare()

    @property
    def calls_ahead(self) -> bool:
        return self._preparing.lacks_results

    def call_ahead(self, goes_on: Callable[[], bool]) -> None:
        self._preparing.call(goes_on)

    def sizes_checked(self, batch_sizes: Sequence[int]) -> Sequence[int]:
        """Return the batch sizes that an order asks for; ValueError where they can not be."""
        cutting, machine = self.cutting, self.machine
        if cutting.lanes:
            raise ValueError(
                'with order="lanes" a lane is a row of each batch, so their number stays; begin '
                "anew with another batch_size, and another state_dir where there is one"
            )
        if machine.world:
            raise ValueError(
                "ranks get blocks of one shape in every round; connect without rank=, or begin "
                "anew with another batch_size, and another state_dir where there is one"
            )
        if len(batch_sizes) != 1:
            raise ValueError(
                f"there are {len(batch_sizes)} sizes; the feed has one size for all batches"
            )
        batch_size = checked_int("batch_size", batch_sizes[0], 1, MAX_BATCH_SIZE)
        if cutting.capacity is not None and batch_size > cutting.capacity:
            raise ValueError(
                f"a batch has rows of batch_size={batch_size} examples in flight, more than "
                f"capacity={cutting.capacity}"
            )
        check_rows(batch_size, [len(field.shape) for field in self.schema.values()])
        return [batch_size]

    # Trainers

    def commit(self, batch: Batch, token: Token, payload: Payload | None) -> tuple[str, str] | None:
        """Take a commit, with the columns and the block of the states; return a fault, or None."""
        if fault := self.judge(batch, payload):
            return "state", fault
        out = self.machine.commit(batch, token)
        if isinstance(out, tuple):
            return out
        spans = out.draft
        if self.machine.chained and len(spans.ended) < len(spans.entries):
            # Ended examples too: their entries are not read before other examples begin there.
            assert payload is not None
            columns, block = payload
            arrays = arrays_of(self.cutting.states, block, columns)
            if spans.size:
                arrays = [array[spans.lanes[spans.tails]] for array in arrays]
            if batch.body is None:  # an earlier life wrote it
                self.states.grow(self.machine.entries.size)
            self.states.put(spans.entries[spans.tails], arrays)
        self._saved.append((spans, () if self.cutting.at_trainer else out.keys))
        if self.cutting.lanes:
            self._moved |= len(spans.starts) > 0 or len(spans.ended) > 0
        return None

    def keep(self, batch: Batch, rows: Sequence[int], columns: Columns, block: Frame) -> None:
        """Store the states after a batch for some of its rows, which its trainer flushes."""
        kept = self.machine.keep(batch, np.array(rows, np.int64))
        if kept is None or not len(kept[1]):
            return
        known, of_batch, of_block = kept
        states = [array[of_block] for array in arrays_of(self.cutting.states, block, columns)]
        self._settle()
        entries = known.entries[of_batch]
        self.states.put(entries, states)
        keys = self.machine.entries.keys_of(entries)
        change = self._stored.flushed(known, of_batch, keys, state_columns(states))
        self._changes.append(change)
        self._moved = True

    # The store

    def take_records(self) -> list[Change]:
        """Return the changes since the last call."""
        self._settle()
        machine, meta = self.machine, dict[str, bytes]()
        if (turns := machine.turns()) != self._turns:
            self._turns = turns
            meta["turns"] = pack(turns)
        if machine.orders is not self._orders:
            self._orders = machine.orders
            orders = [order.to_plain() for order in machine.orders]
            meta["orders"] = pack(orders)
        if machine.log is None and (reading := machine.reading())["read"] != self._read_rows:
            self._read_rows = reading["read"]
            meta["read"] = pack(reading)
        if self._moved and (self.cutting.assigned or not self.cutting.at_trainer):
            self._moved = False
            meta["places"] = self._places()
        changes, self._changes = self._changes, []
        if self.intake.bound:
            self.needs = self._stored.needs
        if meta and changes:
            changes[-1].meta |= meta
        elif meta:
            changes.append(Change(meta=meta))
        return changes

    def note_places(self) -> None:
        """Store the lanes of unfinished examples, so that the next process keeps them there."""
        if self.cutting.lanes:
            self._changes.append(Change(meta={"places": self._places()}))

    def _places(self) -> bytes:
        return pack(
            [
                [slot, indices.astype("<i8").tobytes(), lanes.astype("<i8").tobytes()]
                for slot, (indices, lanes) in self.machine.places().items()
            ]
        )

    def _settle(self) -> None:
        """Put the commits and the dropped examples since the last change into one change.

        Until then their states stay in the table: the entry of a dropped example is reused
        only after the next chunk was read.
        """
        if self._saved:
            self._changes.append(self._stored.saved(self._saved, self.states.stored))
            self._saved.clear()
        if drops := self.machine.admission.drops:  # those commits may be of their segments
            self._changes += [self._stored.dropped(numbers, entries) for numbers, entries in drops]
            self._changes.append(Change(meta={"dropped": pack(self.machine.admission.snapshot())}))
            drops.clear()

    def resume(self, saved: Saved) -> None:
        """Restore the state that an earlier life has stored."""
        machine, meta = self.machine, saved.meta
        if "base" in meta or "seen" in meta:
            self._go_on(saved)
        if "turns" in meta:
            places = {
                slot: (np.frombuffer(indices, "<i8"), np.frombuffer(lanes, "<i8"))
                for slot, indices, lanes in msgpack.unpackb(meta.get("places", pack([])))
            }
            machine.resume_turns(msgpack.unpackb(meta["turns"]), places)
        if "dropped" in meta:
            machine.admission.restore(msgpack.unpackb(meta["dropped"]))
        if "read" in meta:
            machine.read_before = msgpack.unpackb(meta["read"], strict_map_key=False)
            self._read_rows = machine.read_before["read"]
        orders = msgpack.unpackb(meta.get("orders", pack([])))
        machine.resume_orders([Order(*one) for one in orders])
        self._turns, self._orders = machine.turns(), machine.orders

    def _go_on(self, saved: Saved) -> None:
        machine, examples = self.machine, saved.examples
        cursor = self._stored.resume(saved)
        place = cursor["input"]
        machine.input.resume_reading(place, max([cursor["chunk"], *saved.chunks]) + 1)
        self.intake.stages.restore(cursor["stages"])
        self.intake.resume(place["epoch"], place["position"], cursor["dropped"])
        entries = machine.admission.resume(examples, cursor["index"], cursor["line"])
        self._stored.in_entries(entries, examples.lines)
        states = stored_states(self.cutting.states, examples)
        self.states.resume(entries, states, machine.entries.size)

    # Queries

    def status(self) -> dict[str, Any]:
        machine = self.machine
        segments = {"in_flight": machine.admission.in_flight, "rewound": machine.rewound}
        standing = machine.standing()
        return {**super().status(), "segments": segments, "segment_standing": standing}
