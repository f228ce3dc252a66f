"""One partition at work, as its desk sees it: it reads, makes batches, and takes commits.

    intake    reads chunks and takes them through the stages
    machine   decides: which rows are read next, which rows make a batch
    Run       holds the rows of chunks, writes batches of them, and has what outlives the process

                              machine         run
    plain batches             PlainMachine    PlainRun
    segments                  Segments        SegmentRun

    make() ─► batches              each lies in its block
           ─► []                   something else was done; call again
           ─► FULL                 the slab has no room; call again when a block was freed
           ─► WAITS                the source has no example yet; call again soon
           ─► IDLE, OVER, ENDED    as the machine says

A read is a step of its own, which ``reads_next`` announces.  So everything made before it can be
sent and stored first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace_proto import layout
from headrace_proto.channel import Frame
from headrace_proto.checks import Columns
from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ..leasing.words import Batch, Order, Outlook, Proposal, Slot, Token
from ..making.arena import Block
from ..making.assemble import Assembly
from ..making.segment_block import SegmentBlock
from ..making.slab import Slab, least_bytes
from ..reading.chunk import Chunk
from ..reading.intake import Intake
from ..shaping import plain
from ..shaping.plan import Plan, Position, Read, Stages, State
from ..shaping.segments import Segments
from ..shaping.stored_state import Change, Saved

Written = Assembly | SegmentBlock
Machine = plain.PlainMachine | Segments
#: Facts of the rows of a chunk, for the machine.
Facts = dict[str, Any]


#: The states that come with a commit: where each lies in a block, and the block.
Payload = tuple[Columns, Frame]
#: Bytes of batches that are made in one step, without a look at what else is to be done.
TOGETHER = 1 << 20
#: Number of batches after which a partition marks how to go on, if it did not read meanwhile.
_MOST_UNMARKED = 32


@dataclass(slots=True, eq=False)
class Made:
    """Counts of a feed's batches: those made, and those delivered or dropped."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    taken: int = 0
    taken_bytes: int = 0


@dataclass(eq=False)
class Body:
    """The bytes of a batch: where they lie, how messages describe them, and who needs them."""

    block: Block
    slots: Sequence[layout.ColumnPlace]
    # set later:
    columns: bytes = field(default=b"", init=False)  # the same as messages describe it
    crowded: bool = field(default=False, init=False)  # whether the slab was short of room then
    made: Made | None = field(default=None, init=False)  # the counts of its feed
    pins: int = field(default=0, init=False)  # number of those who read them
    gone: bool = field(default=False, init=False)  # whether the desk needs them no more
    taken: bool = field(default=False, init=False)  # whether it is counted as taken


class Run(ABC):
    """One partition at work.  Queries about rows and batches alone go to its machine."""

    capacity: int | None = None  # batches that are made ahead, where the shape bounds them
    most_rows: int | None = None  # rows of a read, where the shape bounds them
    calls = False  # whether a function of the user's is called when a batch is written
    held: dict[int, Any]  # the chunks in memory, as each kind needs them
    #: Returns why these can not be the states of a batch; "" if they can.
    judge: Callable[[Batch, Payload | None], str] = staticmethod(lambda batch, payload: "")
    #: Positions from which a later life reads a log, as last stored; empty for other sources.
    needs: Sequence[Position] = ()

    def __init__(self, intake: Intake, machine: Machine, slab: Slab) -> None:
        self.intake = intake
        self.machine = machine
        self._slab = slab
        self.number = machine.number
        self._next_read: Read | None = None
        self._ordered = False  # whether there is an order that is not stored
        self._behind = False  # whether an order waits for batches of an earlier life
        self._passing = -1  # up to where it leaves out records of a log, and that is not stored
        self._unmarked = 0  # number of batches since the last mark

    # PlainRun and SegmentRun override these

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, Field]:
        """The schema of a batch."""

    @property
    @abstractmethod
    def properties(self) -> State:
        """Description of the feed for trainers, beside its schema."""

    @abstractmethod
    def resume(self, saved: Saved) -> None:
        """Restore the state that an earlier life has stored."""

    @abstractmethod
    def _hold(self, read: Read, before: Stages, chunk: Chunk) -> tuple[Chunk, Facts]:
        """Hold a chunk; return the rows of it that can be used, and the facts for the machine.

        ``before`` is the state of the stages before the read.
        """

    @abstractmethod
    def _begin(self, plan: Plan) -> tuple[Written, Block | None]:
        """Return the batch of a plan, and its block where it was written ahead."""

    @abstractmethod
    def commit(self, batch: Batch, token: Token, payload: Payload | None) -> tuple[str, str] | None:
        """Take a commit, with the columns and the block of states; return a fault, or None."""

    @abstractmethod
    def take_records(self) -> list[Change]:
        """Return what is to be stored since the last call."""

    @abstractmethod
    def sizes_checked(self, batch_sizes: Sequence[int]) -> Sequence[int]:
        """Return the batch sizes that an order asks for; ValueError where they can not be."""

    def keep(self, batch: Batch, rows: Sequence[int], columns: Columns, block: Frame) -> None:
        """Store the states after a batch for some of its rows, which its trainer flushes."""
        return

    def lacks(self) -> str:
        """Describe the sequences that the next batch waits for: they have no new steps."""
        return ""

    def set_version(self, version: int) -> None:
        """Note the version of the policy that trains; another thread may call it during a step."""
        return

    def pass_by(self) -> bool:
        """Leave out what retention takes from a feed that is not required; return whether it does.

        The records are to be stored then."""
        return False

    @property
    def unstored(self) -> bool:
        """Whether a record is due though nothing was committed."""
        return False

    def take_release(self) -> Callable[[], object] | None:
        """Return the call that releases the log once the last records are stored; None: no log."""
        return partial(self.intake.release, self.needs) if self.needs else None

    def note_places(self) -> None:
        """Store the lanes of unfinished examples, so that the next process keeps them there."""
        return

    def _mark_here(self) -> None:
        """Store a cursor for a later life, if commits alone do not determine it."""
        return

    def _arrived(self) -> None:
        """Handle rows that were read or admitted, before another batch is made."""
        return

    def _tidy(self) -> None:
        """Forget the chunks that no later batch needs."""
        self._arrived()
        needed = self.machine.chunks()
        if gone := self.held.keys() - needed:
            for number in gone:
                del self.held[number]
            self.machine.input.forget_reads(needed)

    # Work

    def make(
        self, slot: Slot, epoch: int, beyond: bool = False, most: int = 1
    ) -> list[Batch] | Outlook:
        """Read a chunk, or make a batch or up to ``most`` small ones; return the result.

        It does neither before an order is stored, or what it leaves out of a log: another life
        could not repeat what follows.
        """
        if self._passing >= 0:
            return Outlook.WAITS
        if self._ordered:
            return []
        behind, self._behind = self._behind, False
        bring_forward = self.machine.bring_forward
        if self.machine.unwritten and not behind and (not beyond or bring_forward(slot)):
            return self._place(beyond)
        waits = self._next_read is not None
        if self._next_read is not None and self._read(self._next_read, wait=False):
            return []
        most = 1 if beyond or behind or self.calls else most  # a call of a function may take long
        source = self.machine.input
        here = source.epoch
        step = self.machine.step(slot, epoch, self.intake.limit(self.most_rows), most)
        if source.epoch != here and not source.across_batches:
            self._mark_here()  # a later life counts turns from there
        if isinstance(step, list):
            self.machine.unwritten.extend(step)
            if behind:
                return []
            return self._place(beyond and bring_forward(slot))
        self._mark()
        if step is Outlook.IDLE:  # as mostly after each batch
            self._arrived()
        else:
            self._tidy()  # before a read, which brings further rows
        if isinstance(step, Outlook):
            return step
        if waits:  # else a commit since then made a batch possible
            self.machine.input.failed()
            return Outlook.WAITS
        self._next_read = step
        return []

    def draft(self, slot: Slot, epoch: int) -> list[Batch] | Outlook:
        """Do as ``make``, but leave new batches unwritten in the machine."""
        self._behind = True
        return self.make(slot, epoch)

    @property
    def reads_next(self) -> bool:
        """Whether the next step reads, which may take long; others do not."""
        return self._next_read is not None and (self._behind or not self.machine.unwritten)

    def prepare(self) -> bool:
        """Write the known parts of the next expected batch ahead; return whether there was one.

        It uses idle time: it changes when work is done, not its result.
        """
        return False

    @property
    def calls_ahead(self) -> bool:
        """Whether a function of the user's is to be called for the batch that is written ahead."""
        return False

    def call_ahead(self, goes_on: Callable[[], bool]) -> None:
        """Call that function for each row until ``goes_on`` returns False."""
        return

    def _read(self, read: Read, wait: bool = True) -> bool:
        """Read a chunk, without ``wait`` only available rows; return False where there are none."""
        before, rows_before = self.intake.begin(), self.intake.rows_read
        self._next_read = None
        try:
            while True:
                if not wait or self.intake.bound:
                    there = self.intake.ready(read)
                    if not there:  # orders that come meanwhile find no read under way
                        self.machine.input.failed()
                        return False
                    read = self.machine.input.lessen(there)
                chunk, position = self.intake.chunk(read)
                if not self.intake.bound or position != read.position:
                    break  # else a log lacks an example of a mix, which only reading showed
            taken = self.intake.rows_read - rows_before
            chunk, facts = self._hold(read, before, chunk)
            self.machine.input.arrived(read, len(chunk), position, facts, taken)
            self._arrived()
            self.intake.end()
        except Exception:  # earlier batches can still be handed out, with a mark
            self.machine.input.failed()
            if before is not None:
                self.intake.stages.restore(before)
            raise
        return True

    def _place(self, beyond: bool = False) -> list[Batch] | Outlook:
        """Write batches into blocks as long as the slab has room; ``beyond``: at least one.

        If a later one can not be written, the next call shows why.
        """
        placed, nbytes, unwritten = list[Batch](), 0, self.machine.unwritten
        while unwritten and nbytes < TOGETHER:
            plan = unwritten[0]
            batch = plan.batch
            if batch.body is None:  # else it was written for an earlier run
                try:
                    if not self._write(plan, beyond and not placed):
                        return placed or Outlook.FULL
                except Exception:
                    if placed:
                        break
                    raise
                nbytes += batch.nbytes
            placed.append(batch)
            del unwritten[0]
        self._unmarked += len(placed)
        if self.machine.ahead and self._unmarked >= _MOST_UNMARKED:
            self._mark()
        return placed

    def _write(self, plan: Plan, beyond: bool) -> bool:
        """Write a batch; return False where there is no room for it."""
        written, block = (plan.begun, None) if plan.begun else self._begin(plan)
        block = block or self._slab.allocate(written.nbytes, beyond)
        plan.begun = None if block else written
        if block is None:
            return False
        try:
            written.fill(self._slab.memory(block))
        except DataError:  # of a function that writes its part
            self._slab.free(block)
            raise
        plan.batch.body, plan.batch.nbytes = Body(block, written.slots), written.nbytes
        return True

    def _mark(self) -> None:
        if self._unmarked:
            self._unmarked = 0
            self._mark_here()

    # What the desk asks for

    def reclaim(self, batch: Batch) -> bool:
        """Take out a batch of an earlier life, if that is still possible."""
        while (possible := self.machine.reclaim(batch)) is None:
            if not self._read_on():
                return False
        return possible

    def _read_on(self) -> bool:
        """Read a chunk whether or not batches are wanted; return False at the end of the input."""
        return False

    def deal(self, run: int, world: int) -> list[Batch]:
        """Deal all uncommitted rows anew to a run of ranks."""
        there = self.machine.deal(run, world)
        self._mark_here()
        return there

    def propose(self, what: Proposal) -> Order | None:
        """Return an order with its place; ValueError where it can not be carried out.

        None: ask again after the next step.  That makes batches again which an earlier life has
        made, and needs no memory: they are written later.

        ("close", whether to cancel); ("target", proportions of classes); ("weights", one for each
        source of a mix, to which the place is added); ("batch_size", a size for each bucket, or
        one for all).
        """
        kind, value = what
        if kind == "target":
            targets = self.machine.targets
            if len(targets) != 1:
                raise ValueError(
                    f"the feed has {len(targets)} stages with target proportions; "
                    "set_target_probs() needs exactly one"
                )
            targets[0].check_target(value)
        elif kind == "weights":
            if self.intake.mix is None:
                raise ValueError("the feed is no mix (hs.mix), so its sources have no weights")
            self.intake.mix.check_target(value)
            at = self.machine.reading()
            epoch, position = at["epoch"], at["position"]  # None: the epoch has no more examples
            value = [epoch + 1, 0, value] if position is None else [epoch, position[0], value]
        elif kind == "batch_size":
            least = max(value, default=0) * least_bytes(self.schema)
            if least > self._slab.budget_bytes:
                raise ValueError(
                    f"batch_size={max(value)}: such a batch has {least} bytes or more, and the "
                    f"slab of a worker {self._slab.budget_bytes} (slab_bytes)"
                )
            value = self.sizes_checked(value)
        order = self.machine.propose(kind, value)
        self._behind, self._ordered = order is None, order is not None
        return order

    def apply(self, order: Order) -> None:
        """Carry out an order, which is stored."""
        self._ordered = False
        if self._next_read is not None:  # else it would bring rows of a closed input
            self._next_read = None
            self.machine.input.failed()
        self.machine.apply(order)

    # Queries

    def status(self) -> dict[str, Any]:
        """Return the partition's part of a ``FeedStatus``."""
        by_class = [{}, *(target.stats() for target in self.machine.targets)]
        progress = self.intake.progress(self.machine.input.reading())
        status = {
            "dropped": self.dropped(),
            "classes": by_class[-1],
            "read": progress.pop("read"),
            "seconds": progress.pop("seconds"),
            "partitions": [{"partition": self.number, **progress}],
        }
        mix = self.intake.mix
        return status if mix is None else {**status, **mix.stats()}

    def sizes(self) -> dict[str, int]:
        """Return counts of waiting rows and batches; see ``Feed.stats``."""
        sizes, ahead = self.machine.sizes(), self.machine.ahead
        waiting = sum(1 if ahead else plan.batch.rows for plan in self.machine.unwritten)
        return {**sizes, "ready": sizes.get("ready", 0) + waiting}

    def epoch_due(self) -> tuple[int, bool]:
        """Return the epoch of the first uncommitted rows, and whether there may be any.

        Where none is left, the epoch is the last one.
        """
        due = self.machine.due()
        return (self.machine.input.epoch, False) if due is None else (due, True)

    def dropped(self) -> dict[str, int]:
        """Return rows dropped so far, by reason; those that broke a rule start with ``bad:``."""
        dropped = dict(self.machine.input.dropped())
        if self.machine.left_out:
            dropped["incomplete_round"] = self.machine.left_out
        return self.intake.dropped_with(dropped)
