"""Examples of one partition in memory, and batches of their segments: the maker of segments.

    chunk ─► examples that can be cut ─► offers ─┐
    states at the server, or handed over ────────┴─► SegmentBlock of a plan

A batch may need a chunk that an earlier process read.  The maker reads it again, as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ..pipeline.argument_checks import MAX_BATCH_SIZE, checked_int
from ..reading.chunk import Chunk
from ..reading.intake import Intake
from ..reading.stages.stratified_sample import StratifiedSample
from ..shaping.plan import RESIZED, Plan, Read
from ..shaping.slots import Rows
from .arena import Block
from .segment_block import BlockLayout, HandedStates, SegmentBlock, StateTable, places_of_starts
from .segment_cutting import Cutting, Offer
from .slab import Slab
from .stored_examples import StoredExamples

#: Exponent that bounds the pause after wrong guesses: 64 batches.
_MOST_WRONG = 6


class Preparing:
    """At most one prepared batch of one partition.

        expected batch ─► lent block, examples written ─► the wanted batch ─┬─► the same one
                                                                            └─► another: dropped

    The machine decides the batch when it is wanted, as if nothing had been prepared, and gives the
    expected one where it is that.  So a wrong guess costs time and changes nothing.  After n wrong
    guesses in a row it makes none for 2**n batches.
    """

    def __init__(self, slab: Slab, maker: SegmentMaker) -> None:
        self._slab = slab
        self._maker = maker
        # States with strings decide where columns lie in the block, so they must be known.
        cutting = maker.cutting
        texts = any(state.field.dtype == BYTES for state in cutting.states)
        self._possible = cutting.at_trainer or not texts
        self._ready: tuple[SegmentBlock, Block] | None = None
        self._wrong = 0  # number of wrong guesses in a row
        self._pause = 0  # number of batches without a guess

    def prepare(self) -> bool:
        """Write the examples of the expected batch; return whether there was one."""
        if not self._possible or self._ready is not None or self._pause:
            return False
        maker = self._maker
        batch = maker.cutting.machine.expected()
        if batch is None or not maker.offers.keys() >= set(batch.of_chunks()):
            return False
        if maker.cutting.at_trainer and np.count_nonzero(batch.segments[batch.starts]):
            return False  # they start from states that may still be flushed
        written = maker.written(batch)
        block = self._slab.lend(written.nbytes)
        if block is None:
            return False
        written.fill_examples(self._slab.memory(block))
        self._ready = written, block
        return True

    def take(self, batch: Rows) -> tuple[SegmentBlock, Block] | None:
        """Return the prepared batch and its block if it is this one; else None.

        States of the table are still to be written; initial states are already in the block.
        """
        if self._ready is None:
            self._pause = max(0, self._pause - 1)
            return None
        (written, block), self._ready = self._ready, None
        if written.batch is batch:
            self._wrong = 0
            return (written, block) if self._slab.use(block) else None
        self._slab.give_back(block)
        self._wrong = min(self._wrong + 1, _MOST_WRONG)
        self._pause = 2**self._wrong
        return None


class SegmentMaker:
    """See ``partition_run.Maker``.  ``offers`` are the chunks in memory."""

    capacity: int | None = None

    def __init__(
        self, intake: Intake, cutting: Cutting, stored: StoredExamples, slab: Slab
    ) -> None:
        self.cutting = cutting
        self.most_rows: int | None = cutting.capacity
        self.schema: Mapping[str, Field] = cutting.fields(intake.stages.fact_fields)
        self.layout = BlockLayout(self.schema, cutting.geometry)
        self.offers: dict[int, Offer] = {}
        kind = HandedStates if cutting.at_trainer else StateTable
        self.states: StateTable = kind(cutting.states)
        self._intake = intake
        self._stored = stored
        self._preparing = Preparing(slab, self)

    @property
    def properties(self) -> Mapping[str, Any]:
        """Description of the feed for trainers, beside its schema."""
        machine, declared = self.cutting.machine, self.cutting.properties()
        if all(order.kind != "batch_size" for order in machine.orders):
            return declared
        return {**declared, **RESIZED, "batch_size": machine.batch_size}

    # Chunks

    def read(self, read: Read, before: Any, chunk: Chunk) -> tuple[Chunk, dict[str, Any]]:
        """Hold a chunk; return its examples that can be cut, and the facts for the machine.

        ``before`` is the state of the stages before the read.
        """
        chunk, offer = self._hold(read, chunk)
        return chunk, {"key": [(read.epoch, key) for key in offer.keys], "count": offer.counts}

    def _hold(self, read: Read, chunk: Chunk) -> tuple[Chunk, Offer]:
        chunk, offer = self.cutting.offer(chunk, self._intake.bad, read.epoch)
        self.offers[read.chunk] = offer
        return chunk, offer

    def read_again(self, chunk: int) -> None:
        """Hold a chunk that an earlier process read."""
        read, before = self._stored.reread(chunk)
        now = self._intake.stages.state()
        dropped = dict(self._intake.dropped)
        self._intake.stages.restore(before)
        self._hold(read, self._intake.read_again(read))
        self._intake.stages.restore(now)
        self._intake.count_dropped()
        self._intake.dropped = dropped  # they were counted when they were first read

    def forget(self) -> bool:
        """Drop chunks that no later batch needs; return whether there were any."""
        gone = self.offers.keys() - self.cutting.machine.chunks()
        for number in gone:
            del self.offers[number]
        return bool(gone)

    def refuse(self, chunk: int, row: int) -> None:
        """Report an example whose key is in flight."""
        offer = self.offers[chunk]
        key = offer.keys[row]
        error = DataError(
            f"{offer.origin.describe(row)}: column {self.cutting.key!r} (input_key) "
            f"is {key!r:.200}, and an example of this key is in flight: keys are unique among "
            f"the examples in flight; lower capacity or declare make_keys_unique=True"
        )
        self._intake.bad.report(error, "duplicate_key")

    # Batches

    def begin(self, plan: Plan) -> tuple[SegmentBlock, Block | None]:
        """Return the batch of a plan, and its block where it was written ahead."""
        batch: Rows = plan.draft
        self.states.forget(self.cutting.machine.take_freed())
        for chunk in batch.of_chunks():
            if chunk not in self.offers:
                self.read_again(chunk)
        prepared = self._preparing.take(batch)
        if prepared is None:
            return self.written(batch), None
        if not self.cutting.at_trainer:
            prepared[0].extra = self.states.columns(batch, self.offers)[0]
        return prepared

    def written(self, batch: Rows) -> SegmentBlock:
        """Return a batch to be written, with initial states for examples that begin.

        That is harmless for an expected batch: no other batch uses these slots yet.
        """
        extra, states = self.states_of(batch)
        return SegmentBlock(self.layout, batch, self.offers, extra, states)

    def states_of(self, batch: Rows) -> tuple[dict[str, Any], int]:
        """Return the states of a batch as columns, and their number in its block."""
        self.states.grow(self.cutting.machine.slots)
        self.states.begin(batch, self.offers)
        extra, states = self.states.columns(batch, self.offers)
        if not batch.size:
            return extra, states
        if "@state_of" in extra:
            state_of = np.full(batch.size, -1, np.int32)
            state_of[batch.lanes[batch.starts]] = extra["@state_of"]
            extra["@state_of"] = state_of[places_of_starts(batch)]
        return extra, states if self.cutting.at_trainer else batch.size

    def prepare(self) -> bool:
        """Write the known parts of the next expected batch ahead; return whether there was any."""
        return self._preparing.prepare()

    def sizes_checked(self, batch_sizes: Sequence[int]) -> Sequence[int]:
        """Return the batch sizes that an order asks for; ValueError where they can not be."""
        cutting, machine = self.cutting, self.cutting.machine
        if cutting.lanes:
            raise ValueError(
                'with order="lanes" a lane is a row of each batch, so their number stays; declare '
                "another batch_size and start the server again"
            )
        if machine.world:
            raise ValueError(
                "ranks get blocks of one shape in every round; declare another batch_size and "
                "start the server again, or connect without rank="
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
        return [batch_size]

    def sizes_changed(self) -> None:
        """Nothing: a read has as many rows as ``capacity`` lets in."""

    # Queries

    def targets(self) -> Sequence[StratifiedSample]:
        """Return the stages whose proportions of classes can be changed."""
        return self._intake.stratified

    def stats(self, of_stages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return counters by class, where there are classes, and of segments."""
        machine = self.cutting.machine
        segments = {"in_flight": machine.in_flight, "rewound": machine.rewound}
        return {"classes": [{}, *of_stages][-1], "segments": segments}

    def sizes(self) -> dict[str, int]:
        """Return the number of ready and incomplete segments, and of examples in flight."""
        return self.cutting.machine.sizes()

    def progress(self) -> dict[str, Any]:
        """Return the number of segments by the reason of their wait."""
        return {"segments": self.cutting.machine.standing()}
