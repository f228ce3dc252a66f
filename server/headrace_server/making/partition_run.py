"""One partition at work: it reads, makes batches, and takes back what trainers did with them.

            ┌─ intake    reads chunks and takes them through the stages
            ├─ machine   decides: Read, Plan, Rest, or None at the end
    Run ────┤
            ├─ maker     holds the rows of chunks, and writes batches of them
            └─ commits   takes commits, and has the state that outlives the process

                              machine: a Partition of    maker          commits
    plain batches             rows (PlainBatches, …)     PlainMaker     PlainCommits
    segments, with states     segments (ArrivalOrder, …) SegmentMaker   SegmentCommits

    advance() ─► Batch       a batch lies in its block
              ─► Busy        something else was done; call again
              ─► Blocked     the slab has no room; call again when a block was freed
              ─► Resting     nothing can be done until trainers want or save something
              ─► Waiting     the source has no example yet; call again soon
              ─► Done        all batches were made

A read is a step of its own, which ``reads_next`` announces.  So everything made before it can be
sent and stored first.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_proto.schema import Field

from ..core.dispatch_effects import Batch
from ..pipeline.declaration import SEQUENCES, Declaration, Shape
from ..reading.chunk import Chunk
from ..reading.intake import Intake
from ..reading.reader import BadRecords, Reader
from ..shaping.input import READING, Partition, Rest
from ..shaping.plan import Plan, Read
from .arena import Block
from .assemble import Assembly
from .partition_commits import UNREAD
from .plain_maker import PlainCommits, PlainMaker
from .segment_block import SegmentBlock
from .segment_commits import SegmentCommits
from .segment_cutting import Cutting
from .segment_maker import SegmentMaker
from .shaping import Shaping
from .slab import Slab, least_bytes
from .stored_examples import StoredExamples


class Busy:
    pass


class Blocked:
    pass


class Resting:
    pass


class Waiting:
    pass


class Done:
    pass


Maker = PlainMaker | SegmentMaker
Written = Assembly | SegmentBlock


@dataclass(slots=True)
class InSlab:
    """The body of a batch until it is announced."""

    block: Block
    written: Written


class Run:
    """One partition at work.  Calls that one collaborator answers alone go to that one."""

    def __init__(
        self,
        intake: Intake,
        machine: Partition,
        maker: Maker,
        commits: PlainCommits | SegmentCommits,
        slab: Slab,
    ) -> None:
        self.intake = intake
        self.machine = machine
        self.maker = maker
        self.commits = commits
        self._slab = slab
        self._next_read: Read | None = None
        self._unplaced: tuple[Plan, Written] | None = None
        self._last_epoch = -1  # of a batch
        #: Number and epoch of the first batch of each of the last epochs.
        self._begun: deque[tuple[int, int]] = deque(maxlen=64)
        self.made_ahead, self.together = maker.made_ahead, maker.together
        self.capacity = maker.capacity

    # Work

    def advance(
        self,
    ) -> Batch | type[Busy] | type[Blocked] | type[Resting] | type[Waiting] | type[Done]:
        """Do one step of work; return its result."""
        if self._unplaced is not None:
            return self._place(*self._unplaced)
        if self._next_read is not None:
            return Busy if self._read(self._next_read, wait=False) else Waiting
        step = self.commits.next_step(self.intake.limit(self.maker.most_rows))
        if isinstance(step, Plan):
            if self.commits.planned(step):
                return self._place(step, *self.maker.begin(step))
            return Busy
        self.commits.tidy()  # before a read, which brings further rows
        if isinstance(step, Read):
            self._next_read = step
            return Busy
        self.commits.all_made = step is None
        return Resting if step is Rest else Done

    @property
    def reads_next(self) -> bool:
        """Whether the next step reads, which may take long; others do not."""
        return self._next_read is not None

    @property
    def rests(self) -> bool:
        """Whether the next step would only find that it must wait for trainers."""
        return self.commits.content and self.machine.reads_nothing

    def prepare(self) -> bool:
        """Write the known parts of the next expected batch ahead; return whether there was any.

        It uses idle time: it changes when work is done, not its result.
        """
        return self._unplaced is None and self.maker.prepare()

    def check_ahead(self, stop: Callable[[], object]) -> bool:
        """Check examples before they are read until ``stop`` returns a value; return whether any.

        It uses idle time: the read itself takes less.
        """
        read = self.machine.later_read(self.intake.limit(self.maker.most_rows))
        return read is not None and self.intake.check_ahead(read, stop)

    def _read(self, read: Read, wait: bool = True) -> bool:
        """Read, without ``wait`` only what is there; return False where nothing is."""
        before = self.intake.begin()
        try:
            if not wait:
                there = self.intake.ready(read)
                if not there:  # orders that come meanwhile find no read under way
                    self._next_read = None
                    self.machine.failed()
                    return False
                read = self.machine.lessen(there)
            self._next_read = None
            chunk, position = self.intake.chunk(read)
            chunk, facts = self.maker.read(read, before, chunk)
            self.commits.read(read, before, chunk, facts)
            self.machine.arrived(read, len(chunk), position, facts)
            self.commits.tidy()
            self.intake.end()
        except Exception:  # earlier batches can still be announced, with a cursor
            self._next_read = None
            self.machine.failed()
            if before is not None:
                self.intake.stages.restore(before)
            raise
        return True

    def _place(
        self, plan: Plan, written: Written, block: Block | None = None
    ) -> Batch | type[Blocked]:
        block = block or self._slab.allocate(written.nbytes)
        if block is None:
            self._unplaced = plan, written
            self.machine.held = plan
            return Blocked
        self._unplaced = self.machine.held = None
        written.fill(self._slab.memory(block))
        meta = self.maker.made(plan)
        machine = self.machine
        in_turn = self.made_ahead and not machine.across_batches
        turn = machine.turn_of(plan.number) if in_turn else -1
        epoch = self.maker.epoch_of(plan)
        if epoch > self._last_epoch:
            self._last_epoch = epoch
            self._begun.append((plan.number, epoch))
        return Batch(
            self.intake.partition,
            plan.number,
            written.rows,
            InSlab(block, written),
            meta,
            epoch,
            turn,
            nbytes=written.nbytes,
        )

    # Orders and claims

    def begin_epoch(self) -> None:
        """Begin the next epoch, if it rests at the border and was not closed meanwhile."""
        if self.machine.at_border:
            self.machine.begin_epoch()

    def close(self, cancel: bool) -> None:
        """Stop reading: make batches of the rows already read, or with ``cancel`` drop them."""
        self.commits.close(cancel)
        if self.machine.state is not READING:  # else batches that trainers hold are made first
            self._next_read = None

    def set_target_probs(self, probs: list[float]) -> int:
        """Draw classes in other proportions; return the number of the first such batch."""
        targets = self.maker.targets()
        if len(targets) != 1:
            raise ValueError(
                f"the feed has {len(targets)} stages with target proportions; "
                "set_target_probs() needs exactly one"
            )
        targets[0].check_target(probs)
        self.commits.refuse_late()
        return self.commits.set_target(targets[0], probs)

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> int:
        """Make batches of other sizes; return the number of the first one."""
        least = max(batch_sizes, default=0) * least_bytes(self.maker.schema)
        if least > self._slab.budget_bytes:
            raise ValueError(
                f"batch_size={max(batch_sizes)}: such a batch has {least} bytes or more, and the "
                f"slab of a worker {self._slab.budget_bytes} (slab_bytes)"
            )
        return self.commits.set_batch_sizes(batch_sizes)

    def claim(self, number: int, segments: bytes) -> int | None:
        """Return the number of the batch that a trainer holds from before a restart, or None."""
        while (known := self.commits.claim(number, segments)) == UNREAD:
            limit = self.intake.limit(self.maker.most_rows)
            read = self._next_read or self.machine.next_read(limit)
            if read is None:
                return None
            self._read(read)
        return known

    # Queries

    @property
    def next_turn(self) -> int:
        """Turn of the batch that is made next, among those of all partitions."""
        number = self.machine.first_number
        return number if self.machine.across_batches else self.machine.turn_of(number)

    @property
    def share(self) -> int | None:
        """Number of examples of an epoch; None where only reading shows it."""
        return self.intake.share()

    def stats(self) -> dict[str, Any]:
        """Return counters, as in ``FeedStatus``: of dropped rows, and those of stages and shape."""
        of_stages = [stage.stats() for stage in self.intake.stratified]
        return {"dropped": self.dropped(), **self.maker.stats(of_stages)}

    def progress(self) -> dict[str, Any]:
        """Return its progress as numbers, for people."""
        return {**self.intake.progress(self.machine.reading()), **self.maker.progress()}

    def sizes(self) -> dict[str, int]:
        """Return counts of waiting rows and batches; see ``Feed.stats``."""
        sizes = self.maker.sizes()
        if self._unplaced is not None:
            waiting = 1 if self.made_ahead else self._unplaced[1].rows
            sizes["ready"] = sizes.get("ready", 0) + waiting
        return sizes

    def epoch_due(self, ended: bool) -> tuple[int, bool]:
        """Return the epoch of the first uncommitted rows, and whether there may be any.

        Where none is left, the epoch is the last one.  ``ended``: all batches are made.
        """
        due = self.commits.epoch_due(ended, self._begun)
        return (max(self.machine.epoch, self._last_epoch), False) if due is None else (due, True)

    def dropped(self) -> dict[str, int]:
        """Return rows dropped so far, by reason; those that broke a rule start with ``bad:``."""
        return self.intake.dropped_with(self.machine.dropped())


def segmented(declaration: Declaration) -> bool:
    """Return whether batches are of segments, with states."""
    return declaration.shape.kind == SEQUENCES


def shape_check(
    shape: Shape, fields: Mapping[str, Field], bad: BadRecords
) -> Callable[[Chunk], object]:
    """Return the check of a chunk by the shape, which reports rows that it can not place."""
    if shape.kind == SEQUENCES:
        cutting = Cutting(shape, fields, 0)
        return lambda chunk: cutting.offer(chunk, bad, 0)
    shaping = Shaping(shape, 0)
    return lambda chunk: shaping.facts(chunk, bad)


def compose(
    reader: Reader,
    declaration: Declaration,
    partition: int,
    partitions: int,
    slab: Slab,
    bad: BadRecords,
    max_state_bytes: int = sys.maxsize,
) -> Run:
    """Return a run of one partition, at its beginning.

    LimitExceeded where the states of an example have more than ``max_state_bytes``.
    """
    intake = Intake(reader, declaration, partition, partitions, bad)
    epochs, across = declaration.order.epochs, declaration.order.across_batches
    if not segmented(declaration):
        maker = PlainMaker(intake, declaration.shape, partition)
        machine = Partition(maker.shaping.machine, intake.start(), epochs, across)
        return Run(intake, machine, maker, PlainCommits(intake, machine, maker), slab)
    cutting = Cutting(declaration.shape, intake.fields, partition)
    cutting.check_state_bytes(max_state_bytes)
    stored = StoredExamples()
    segment_maker = SegmentMaker(intake, cutting, stored, slab)
    machine = Partition(cutting.machine, intake.start(), epochs, across, waits=not across)
    commits = SegmentCommits(intake, machine, segment_maker, stored)
    return Run(intake, machine, segment_maker, commits, slab)
