"""The partitions of one worker at work: each step makes a batch, reads, or finds what it lacks.

    calls ─► [ one step of the partition whose turn it is ] × n ─► events

``partition_opening.py`` opens partitions, ``core/partition_turns.py`` gives turns, ``commits.py``
takes commits and has them stored.
"""

from __future__ import annotations

import itertools
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from headrace_proto.errors import HeadraceError, ProtocolError, code_of
from headrace_proto.layout import Slot
from headrace_proto.messages import FROM_SERVER, Deliver, Delivery
from headrace_proto.schema import schema_to_wire

from ..core import dispatch_effects
from ..core.dispatch_effects import Batch
from ..core.partition_turns import PartitionName, PartitionTurns
from ..making.partition_run import Blocked, Busy, Done, Resting, Run, Waiting
from ..making.slab import Slab
from ..process.relay_messages import BlockPlace
from ..shaping.input import HOPELESS_EPOCHS
from .commits import Stores
from .desk import Desk
from .events import Event, EventSink, Opened
from .partition_opening import Life, Opener, Step
from .reporter import Reporter

logger = logging.getLogger("headrace.worker")

#: Seconds without a batch after which a partition reports what it lacks, and between two reports.
_SILENT_S = 1.0


class StallReports:
    """The reports of one worker.

    made() ─► nothing for a second ─► wait() ─► desk, once a second
    full(), starve() ─► desk, once until a batch is made
    end() ─► the log, where no batch could ever be made
    """

    def __init__(self, send: EventSink) -> None:
        self._send = send
        self._reported: dict[PartitionName, float] = {}  # time of the last batch or report
        self._full: set[str] = set()  # feeds that were told that the slab is full
        self.starved: set[PartitionName] = set()  # partitions that wait for states

    def made(self, name: PartitionName, now: float) -> None:
        """Note that a partition has made a batch."""
        self._reported[name] = now
        self._full.discard(name[0])

    def wait(self, name: PartitionName, run: Run, text: str = "") -> None:
        """Report what a partition lacks, in its words or by ``text``, after a second of silence."""
        now = time.monotonic()
        if now - self._reported.setdefault(name, now) < _SILENT_S:
            return
        self._reported[name] = now
        batch = -1
        if not text:
            text, batch = run.commits.lacks()
        if text:
            self._send((name[0], Desk.on_waiting, name[1], text[:1000], batch))

    def full(self, running: Mapping[PartitionName, Run]) -> None:
        """Report once to each feed that the slab is full until trainers commit."""
        for name, run in running.items():
            if run.made_ahead and name[0] not in self._full:
                self._full.add(name[0])
                self._send((name[0], Desk.on_starved, name[1]))

    def end(self, name: PartitionName, run: Run) -> None:
        """Warn of a partition that ends since no batch can come any more."""
        if run.machine.hopeless and run.share != 0:
            logger.warning(
                "partition %d of feed %r ends: %d epochs in a row made no batch, since its stages "
                "drop each example, or none fills a batch",
                name[1],
                name[0],
                HOPELESS_EPOCHS,
            )

    def starve(self, name: PartitionName, starved: bool) -> None:
        """Note that a partition rests, and whether it waits for states."""
        if starved and name not in self.starved:
            self.starved.add(name)
            self._send((name[0], Desk.on_starved, name[1]))


#: Number of columns above which a description is checked against the limit of a header.
_MANY_COLUMNS = 64
#: Number of batches after which partitions note how to go on.
_MOST_UNNOTED = 32
#: Maximum number of cached lists of columns: most batches of a feed share a few.
_MOST_KNOWN = 64


class Announcer:
    """The announcements of one worker.

    announce(partition, batch) ─► desk        note() ─► partitions

    A partition notes its cursor, which is long where many rows wait, after some batches and before
    the worker rests.  A later process makes the batches since then again, and skips the done ones.
    """

    def __init__(self, slab: Slab, send: EventSink) -> None:
        self._slab = slab
        self._send = send
        self._unnoted: set[Run] = set()  # that have made batches ahead …
        self._count = 0  # … and the number of these
        self._known: dict[int, tuple[list[Slot], list[Any]]] = {}  # columns by identity of slots

    def announce(self, feed: str, run: Run, batch: Batch) -> None:
        """Announce a batch.  ProtocolError where it fits no message: it has too many columns."""
        slab, block = self._slab, batch.body.block
        columns, crowded = self._columns_of(batch.body.written.slots), slab.crowded
        segment = slab.name_of(block)
        batch.body = BlockPlace(segment, block.offset, columns, crowded, block)
        self._send((feed, Desk.on_made, batch))
        if run.made_ahead:
            self._unnoted.add(run)
            self._count += 1

    def note(self, least: int = 1) -> None:
        """Have partitions note how to go on, if ``least`` batches were announced since they did."""
        if self._count >= least:
            self._count = 0
            for run in self._unnoted:
                run.commits.announced()
            self._unnoted.clear()

    def _columns_of(self, slots: list[Slot]) -> list[Any]:
        """Return the columns of a message: the same list for the same list of slots."""
        known = self._known.get(id(slots))
        if known is None or known[0] is not slots:
            known = slots, [[slot.offset, slot.nbytes, list(slot.shape)] for slot in slots]
            if len(slots) > _MANY_COLUMNS:
                described = Delivery(0, 0, 0, 0, 0, 0, known[1], {})
                FROM_SERVER.encode(Deliver(0, (described,)))
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[id(slots)] = known
        return known[1]


#: A batch waits for others to leave with it, at most so long and up to bytes that caches hold.
_GATHER_S, _GATHER_BYTES = 0.001, 6 << 20
#: Time between two looks at a source that had no example yet.
_SOURCE_S = 0.02


class Partitions:
    """All partitions of one life of one worker."""

    def __init__(self, begun: Life, send: Callable[[Event], None]) -> None:
        """``send`` hands events to the desks."""
        config, worker, life = begun.config, begun.worker, begun.number
        self._diary = begun.diary
        self._send: EventSink = send
        self._feeds = {feed.name: feed for feed in config.feeds}
        self._worker = worker
        directory = Path(config.directory)
        self._slab = Slab(directory, worker, life, config.slab_bytes, config.segment_bytes)
        self.removed = self._slab.removed  # names of segments that trainers are to unmap
        self.stores = Stores(*config.journals, send, self._fail, config.term, config.max_credits)
        self.reporter = Reporter(begun.diary.totals, self._feeds, self._slab, self.stores.progress)
        self._announcer = Announcer(self._slab, send)
        self._stalls = StallReports(send)
        self._opener = Opener(begun, self._slab, self.stores)
        self._running: dict[PartitionName, Run] = {}
        self._made: dict[PartitionName, Run] = {}  # partitions that have ended
        self._epochs: dict[PartitionName, int] = {}  # current, where no batch crosses epochs
        self._full = False  # whether the slab has no room for the next batch
        self._sources: dict[PartitionName, float] = {}  # that have nothing yet: the next look
        self.unchecked: set[PartitionName] = set()  # their next examples can be checked ahead
        self.turns = PartitionTurns(
            self._feeds, config.max_ahead, config.max_ahead_bytes, config.slab_bytes
        )

    def turn(self) -> PartitionName | None:
        """Return the partition that makes the next batch; None if the worker has to wait."""
        if time.monotonic() >= self.reporter.due:
            self.reporter.look(self._running, self._made)
        if self._sources:
            now = time.monotonic()
            for due in [one for one, look in self._sources.items() if now >= look]:
                del self._sources[due]
                self.turns.wake(due)
        name = None if self._full else self.turns.turn()
        if name is None:  # else its step beats
            self._diary.beat()
        return name

    def prepare(self, poll: Callable[[float], Any]) -> Any:
        """Write next batches ahead until ``poll`` returns events; return these, or None."""
        for name in self.turns.waiting:
            if self._running[name].prepare() and (events := poll(0)):
                return events  # other partitions can prepare later
        return None

    def check_ahead(self, poll: Callable[[float], Any]) -> None:
        """Check examples of an ``unchecked`` partition, until ``poll`` returns events."""
        feed, partition = name = self.unchecked.pop()
        with Step(self._diary, feed, partition, reads=False):
            if name in self._running and self._running[name].check_ahead(partial(poll, 0)):
                self.unchecked.add(name)

    def rest(self, poll: Callable[[float], Any], at_most_s: float) -> Any:
        """Wait by ``poll`` and record the reason; return the result of ``poll``."""
        self._announcer.note()
        if self._sources:  # the diary has the rows for which the last one waits
            self._diary.beat()
        else:
            self._diary.idle()
        for name in self.turns.waiting:
            run = self._running[name]
            text = f"it waits for its source {run.intake.awaited}" if name in self._sources else ""
            self._stalls.wait(name, run, text)
        reason = "slab" if self._full else "states" if self._stalls.starved else "trainers"
        self._full = False
        if self._sources:  # it counts as reading
            return poll(min(at_most_s, _SOURCE_S))
        return self.reporter.rest(reason, poll, at_most_s)

    def reads_next(self, name: PartitionName) -> bool:
        """Return whether the next step of a partition reads, and may call user functions."""
        return self._running[name].reads_next

    def work(self, name: PartitionName) -> None:
        """Make batches in turn, as long as the first of them can wait for the others."""
        began = time.monotonic()
        until, nbytes = began + _GATHER_S, 0
        for count in itertools.count(1):
            run, made = self._running[name], self._step(name)
            going, now = made is not None and self._announce(name, run, made), time.monotonic()
            took, began = now - began, now  # the next one takes as long
            if len(self._running) > 1:
                self.turns.worked(name, took, int(going))
            if made is None or not going:
                break
            nbytes += made.nbytes
            self._stalls.made(name, now)
            if run.rests:
                self.turns.wait(name)
            if now + took >= until or nbytes >= _GATHER_BYTES or count >= run.together:
                break
            following = self.turns.turn()
            if following is None or self._running[following].reads_next:
                break
            name = following
        self._announcer.note(_MOST_UNNOTED)

    def _step(self, name: PartitionName) -> Batch | None:
        """Take one step of a partition; return the batch that it made."""
        feed, partition = name
        run = self._running[name]
        try:
            work = Step(self._diary, feed, partition, reads=run.reads_next)
            with work:
                step = run.advance()
                work.lasts = step is Waiting
        except Exception as error:
            self._fail(name, error)
            return None
        if step is Waiting:
            self.turns.wait(name)
            self._sources[name] = time.monotonic() + _SOURCE_S
        if step is Resting:
            self.turns.wait(name)
            self._stalls.starve(name, run.commits.starved)
        else:
            self._stalls.starved.discard(name)
        if run.commits.take_placed():  # before a batch after it goes out
            self.stores.submit(name, run)
            self.stores.write()
        for stripe in run.commits.take_dry():
            self._send((feed, Desk.on_dry, stripe))
        if step is Resting and run.machine.at_border:
            self._send((feed, Desk.on_border, partition, run.machine.epoch))
        if isinstance(step, Batch):
            return step
        self._announcer.note()
        self._report(name, run, step)
        return None

    def _report(self, name: PartitionName, run: Run, step: object) -> None:
        """Report a step that has made no batch."""
        feed, partition = name
        if step is Busy:
            if not run.reads_next:  # it has read
                self._send((feed, Desk.on_counted, partition, run.stats()))
                if not run.made_ahead:  # else reads are ahead of trainers, too
                    self.unchecked.add(name)
                self._stalls.wait(name, run)
            epoch = run.machine.epoch
            if not run.machine.across_batches and epoch > self._epochs.get(name, 0):
                self._epochs[name] = epoch
                self._send((feed, Desk.on_next_epoch, partition, epoch, run.next_turn))
        elif step is Done:
            self._stalls.end(name, run)
            self._made[name] = self._running.pop(name)
            self.turns.end(name)
            self.stores.submit(name, run)
            self.stores.answer(name, (feed, Desk.on_finished, partition, run.stats()))
        elif step is Blocked:
            text = f"the slab of worker {self._worker} is full: {self._slab.used_bytes} bytes wait "
            self._stalls.wait(name, run, text + "for trainers (slab_bytes bounds it)")
            self._full = True  # only trainers can free a block
            self._stalls.full(self._running)

    def _announce(self, name: PartitionName, run: Run, batch: Batch) -> bool:
        """Announce a batch; return False where it fits no message, so its feed fails."""
        try:
            self._announcer.announce(name[0], run, batch)
        except ProtocolError as error:
            self._fail(name, error)
            return False
        return True

    # Calls of the desks

    def open(self, feed: str, partition: int) -> None:
        """Open a partition as the last process left it."""
        name = feed, partition
        with self._failing(name):
            self._diary.begin(feed, partition, opening=True)
            run = self._opener.open(self._feeds[feed], partition)
            opened = Opened(
                partition,
                schema_to_wire(run.maker.schema),
                dict(run.maker.properties),
                next=run.machine.first_number,
                turn=-1 if run.machine.across_batches else run.next_turn,
                epoch=0 if run.machine.across_batches else run.machine.epoch,
                share=run.share,
                rounds=self.stores.rounds(name),
                done=run.commits.done_numbers,
            )
            self._send((feed, Desk.on_opened, opened))
            self._running[name] = run
            self.turns.open(name, run)

    def free(self, feed: str, effect: dispatch_effects.Freed) -> None:
        """Free the block of a batch."""
        place = effect.batch.body
        if place is not None:  # else the batch is of an earlier life, which had its bytes
            self._slab.free(place.block)

    def pass_over(self, feed: str, effect: dispatch_effects.PassOver) -> None:
        """Count a batch as done that no trainer gets."""
        name = feed, effect.partition
        if run := self._known(name):
            run.commits.saved(effect.number)
            self.stores.submit(name, run)

    def save(self, feed: str, effect: dispatch_effects.StoreCommit) -> None:
        """Take the commit of a batch, of segments with its states."""
        name = feed, effect.batch.partition
        if run := self._running.get(name) or self._made.get(name):
            self.stores.save(name, run, effect)
            self.turns.wake(name)

    def flush(self, feed: str, effect: dispatch_effects.StoreLanes) -> None:
        """Take states of lanes that a trainer flushes."""
        name = feed, effect.batch.partition
        self.stores.flush(name, self._running.get(name), *effect.payload)

    def want(self, feed: str, effect: dispatch_effects.Want) -> None:
        """Allow batches of segments, of these lanes."""
        name = feed, effect.partition
        if run := self._called(name):
            run.commits.want(effect.more, effect.stripe)
            self._stalls.starved.discard(name)

    def begin_epoch(self, feed: str, effect: dispatch_effects.BeginEpoch) -> None:
        """Let a partition that rests at the border of an epoch begin the next one."""
        if run := self._called((feed, effect.partition)):
            run.begin_epoch()

    def leave(self, feed: str, effect: dispatch_effects.Leave) -> None:
        """Take lanes back from a trainer that left; its rank has others instead."""
        name = feed, effect.partition
        if run := self._called(name):
            run.commits.leave(effect.stripe, effect.instead)
            self.stores.submit(name, run)

    def deal(self, feed: str, effect: dispatch_effects.Deal) -> None:
        """Make batches for the ranks of a run, or for any trainer."""
        name = feed, effect.partition
        if run := self._called(name):
            run.commits.deal(effect.world, effect.run, effect.stripe, effect.at)
            self.stores.submit(name, run)

    def store_rounds(self, name: PartitionName) -> None:
        """Have the rounds of a partition stored.  It may be at work meanwhile."""
        if run := self._known(name):
            self.stores.submit(name, run)

    def release(self, feed: str, effect: dispatch_effects.Release) -> None:
        """Take a claimed batch back from a trainer that did not finish it."""
        if run := self._called((feed, effect.partition)):
            run.commits.release(effect.number)

    def claim(self, feed: str, effect: dispatch_effects.Claim) -> None:
        """Judge a trainer's claim of a batch from before a restart."""
        name = feed, effect.partition
        if run := self._known(name):
            self.turns.wake(name)
            with self._failing(name), Step(self._diary, feed, effect.partition):
                self.stores.claim(name, run, effect.place)

    def _known(self, name: PartitionName) -> Run | None:
        """Return the run of a partition, at work or at its end; None where its feed has failed."""
        return self._running.get(name) or self._made.get(name)

    def _called(self, name: PartitionName) -> Run | None:
        """Return the run for a call, which may now have work to do; None if it has ended."""
        self.turns.wake(name)
        return self._running.get(name)

    def used(self, feed: str, partition: int) -> list[float] | None:
        """Return the commits that a partition has stored, see ``Stores.used``."""
        return self.stores.used((feed, partition))

    def count(self) -> None:
        """Send the totals of all partitions at work."""
        for (feed, partition), run in self._running.items():
            self._send((feed, Desk.on_counted, partition, run.stats()))

    def close(self, feed: str, cancel: bool) -> None:
        """End the input of a feed: make batches of the rows read, or with ``cancel`` drop them."""
        for name, run in _of(feed, self._running):
            run.close(cancel)
            self.stores.submit(name, run)
            self.turns.wake(name)
        self.stores.write()

    def abandon(self, feed: str) -> None:
        """Stop all partitions of a feed, which has failed."""
        for name, _ in _of(feed, self._running):
            del self._running[name]
            self.turns.end(name)

    def change(self, feed: str, change: Callable[[Run], int]) -> tuple[list[list[int]], str]:
        """Change what the partitions of a feed make; where all are made, only check the change.

        Return each with its first changed batch, and the first fault.
        """
        since, faults = [], [""]
        for name, run in _of(feed, self._running) or _of(feed, self._made):
            number = 0
            try:
                number = change(run)
                self.turns.wake(name)  # it may have enough rows for smaller batches
                self.stores.submit(name, run)
                self.stores.write()
            except Exception as error:  # the numbers come from a trainer
                faults.append(str(error))
            since.append([name[1], number])
            self._send((feed, Desk.on_counted, name[1], run.stats()))
        return since if _of(feed, self._running) else [], faults[:2][-1]

    def sizes(self, feed: str) -> list[tuple[dict[str, int], int, bool]]:
        """Return the waiting rows of each partition, its epoch, and whether it is open."""
        return [
            (run.sizes(), *run.epoch_due(runs is self._made))
            for runs in (self._running, self._made)
            for _, run in _of(feed, runs)
        ]

    def seek(self, feed: str, key: bytes) -> list[list[Any]]:
        """Return a key's examples: [partition, epoch, segment, of how many, where, batch]."""
        return [
            [partition, *example]
            for (_, partition), run in _of(feed, {**self._running, **self._made})
            for example in run.commits.seek(key)
        ]

    def copy(self, feed: str, directory: str, then: Callable[[int, str], object]) -> None:
        """Copy the stores of a feed; call ``then`` with each copied partition, and any fault."""
        for name, run in _of(feed, self._running):
            run.commits.note_places()
            self.stores.submit(name, run)
        self.stores.write()
        self.stores.copy(feed, directory, then)

    @contextmanager
    def _failing(self, name: PartitionName) -> Iterator[None]:
        """Let a feed fail by an error."""
        try:
            yield
        except Exception as error:
            self._fail(name, error)

    def _fail(self, name: PartitionName, error: Exception) -> None:
        """Report that a feed can not go on; an unforeseen error is logged with its traceback."""
        if isinstance(error, MemoryError):
            raise error  # the next life repeats the step, and the diary has the rows
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        elif not isinstance(error, HeadraceError):
            text = f"{type(error).__name__}: {text}"
            logger.error("%s", "".join(traceback.format_exception(error)))
        self._send((name[0], Desk.fail, code_of(error), text[:8000]))
        self.abandon(name[0])


def _of(feed: str, runs: Mapping[PartitionName, Run]) -> list[tuple[PartitionName, Run]]:
    """Return the runs of one feed, with their names."""
    return [(name, run) for name, run in runs.items() if name[0] == feed]
