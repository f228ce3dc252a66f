"""Batches of segments that trainers have, their commits, and the state that is stored.

    planned() ─► out ─► saved() ─► machine, states ─► StoredExamples ─► Change ─► store
                  └───► leave(), release(): back to the machine

A commit takes effect at once, so that the trainer's next batch can be made.  ``take_changes()``
builds its change later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from headrace_proto.codec import pack

from ..core.admitted_examples import AdmittedExamples, MemberRows, RoundMembers, place_of
from ..core.arrival_order import ArrivalOrder
from ..core.slots import Segments
from ..pipeline.argument_checks import MAX_BATCH_SIZE, checked_int
from ..reading.chunk import Chunk
from ..reading.intake import Intake
from ..shaping.input import Partition, Rest
from ..shaping.plan import RESIZED, Plan, Read
from ..shaping.stored_state import Change, Saved
from .partition_commits import UNREAD, PartitionCommits, Target
from .segment_block import arrays_of, state_columns, stored_states
from .segment_maker import SegmentMaker
from .stored_examples import Commit, StoredExamples


class StoredRounds:
    """The changes of one partition's rounds.

        dealt     [world, run, next round, [[round, rank], …] that are not done]    with each commit
        members   [run, [[round, rank, indices, segments, places], …]] of the last round

    Trainers get a round once it is stored, so a later process gives each rank the same member
    again.
    """

    def __init__(self, machine: AdmittedExamples) -> None:
        self._machine = machine
        self._run = 0
        self._dealt = False  # whether rounds were dealt anew since the last store
        self._newest = -1  # the last round that was stored

    def dealt(self, run: int) -> None:
        """Note that the batches of another run begin."""
        self._run = run
        self._dealt = True
        self._newest = -1

    @property
    def moved(self) -> bool:
        """Whether anything changed since ``changes`` was called last."""
        members = self._machine.members
        return self._dealt or (members is not None and members.moved)

    def changes(self) -> list[Change]:
        """Return the changes since the last call."""
        members = self._machine.members
        self._dealt = False
        if members is None:
            return [Change(meta={"dealt": pack([0, self._run, 0, []])})]
        members.moved = False
        meta = {"dealt": pack([members.world, members.run, members.next_round, self._machine.left])}
        if members.next_round > self._newest and members.newest and not self._machine.ahead:
            self._newest = members.next_round
            meta["members"] = pack([members.run, members.newest_rows()])
        return [Change(meta=meta)]

    def resume(self, meta: Mapping[str, bytes], epoch: int) -> None:
        """Go on with what an earlier process stored; ``epoch``: as for ``RoundMembers``."""
        if "dealt" not in meta:
            return
        world, self._run, next_round, left = msgpack.unpackb(meta["dealt"])
        if not world:
            return
        members = RoundMembers(world, self._run, 0, self._machine.batch_size, epoch)
        members.next_round = self._newest = next_round
        members.again = dict.fromkeys((at, rank) for at, rank in left)
        run, stored = msgpack.unpackb(meta["members"]) if "members" in meta else (-1, [])
        rows = {
            (at, rank): MemberRows.from_plain(plain)
            for at, rank, *plain in stored
            if run == self._run
        }
        self._machine.resume_rounds(members, rows)


def closing(cancel: bool) -> Change:
    """Return the change that makes later processes close the input."""
    return Change(meta={"closing": b"cancel" if cancel else b"close"})


class SegmentCommits(PartitionCommits):
    """The commits of one partition."""

    def __init__(
        self,
        intake: Intake,
        partition: Partition,
        maker: SegmentMaker,
        stored: StoredExamples,
    ) -> None:
        self._intake = intake
        self._partition = partition
        self._maker = maker
        self._cutting = maker.cutting
        self._machine = self._cutting.machine
        self._stored = stored
        self._out: dict[int, Segments] = {}  # by number
        self._after: dict[int, tuple[int, Segments]] = {}  # by stripe: the last saved batch
        self._moved = False  # whether rows got other places in these since that was stored
        self._early: set[int] = set()  # numbers of _out that are done before earlier ones
        self._saved: list[Commit] = []  # since the last change
        self._commits = 0  # number of commits ever, by earlier processes too
        self._epoch = 0  # that is read, where no batch crosses its border
        self._changes: list[Change] = []
        self._rounds = StoredRounds(self._machine)

    # Steps

    def next_step(self, limit: int) -> Read | Plan | type[Rest] | None:
        return self._partition.next_step(limit)

    def planned(self, plan: Plan) -> bool:
        self._out[plan.number] = plan.draft
        if self._machine.refused or self._machine.through:
            self._drop_gone()
        return True

    def read(self, read: Read, before: Any, chunk: Chunk, facts: dict[str, Any]) -> None:
        """Record a chunk; add its first line and the marks of its rows to the facts."""
        cursor = {
            "input": self._partition.reading(),
            "index": self._machine.next_index,
            "dropped": dict(self._intake.dropped),
        }
        self._settle()
        if read.epoch > self._epoch and not self._partition.across_batches:
            self._epoch = read.epoch
            self._changes.append(Change(meta={"epoch": pack([read.epoch, self._commits])}))
        facts["line"], facts["known"] = self._stored.read(read, len(chunk), before, cursor)

    def tidy(self) -> None:
        self._drop_gone()
        if self._maker.forget():
            self._partition.forget_reads()

    def _drop_gone(self) -> None:
        """Report refused examples, and drop handed states before their slots have new examples."""
        if self._machine.refused:
            self._report_refused()
        if self._machine.through:
            self._maker.states.forget(self._machine.take_through())

    def _report_refused(self) -> None:
        self._settle()
        for chunk, row in self._machine.take_refused():
            self._maker.refuse(chunk, row)
            self._changes.append(self._stored.refused(chunk, row))
        self._intake.count_dropped()
        self._intake.check_bad()

    # Trainers

    def want(self, more: int, stripe: int) -> None:
        self._machine.want(more, stripe)

    def saved(self, number: int, block: Any = b"", columns: Sequence[Any] = ()) -> tuple[str, str]:
        batch = self._out.get(number)
        if batch is None or number in self._early:
            return "stale", f"batch {number} is not out"
        if self._cutting.stateless:
            return self._done(number, batch)
        del self._out[number]
        keys = self._machine.keys_of(batch.slots)  # before the machine may drop examples
        rows = self._machine.saved(batch)
        if rows is None:
            if self._machine.cancelled:
                return "cancelled", "the feed was drained with cancel=True: states are not saved"
            return "stale", "its lanes went to another trainer"
        if self._cutting.lanes:
            self._note_after(number, batch)
        if self._cutting.at_trainer:
            keys = []
        elif len(rows):
            # Ended examples too: their slots are not read before other examples begin there.
            arrays = arrays_of(self._cutting.states, block, columns)
            if batch.member is not None:
                arrays = [array[batch.lanes] for array in arrays]
            self._maker.states.put(batch.slots, arrays)
        self._saved.append((batch.numbers, batch.slots, keys))
        self._commits += 1
        return "", ""

    def _done(self, number: int, batch: Segments) -> tuple[str, str]:
        """Take the commit of a batch without states.

        It counts once all earlier ones of its lanes are done: an example continues in other lanes
        after the last segment before which all are done.
        """
        self._commits += 1
        self._early.add(number)
        for first, out in [(n, b) for n, b in self._out.items() if b.stripe == batch.stripe]:
            if first not in self._early:
                break
            self._early.discard(first)
            del self._out[first]
            keys = self._machine.keys_of(out.slots)
            self._note_after(first, out)
            self._machine.saved(out)
            if self._machine.cancelled:  # its examples have no further segments
                keys = []
            self._saved.append((out.numbers, out.slots, keys))
        return "", ""

    def _note_after(self, number: int, batch: Segments) -> None:
        """Note the last saved batch of a stripe, and the places of its rows."""
        if batch.stripe < 0:  # a claimed batch: the machine has its places
            self._moved = True
            return
        last = self._after.get(batch.stripe)
        if last is None or last[0] < number:
            self._after[batch.stripe] = number, batch
            self._moved |= last is None or len(batch.starts) > 0

    def note_places(self) -> None:
        """Have the next process put rows that go on in the lanes that they have here."""
        self._moved = False
        after = {stripe: batch for stripe, (_, batch) in self._after.items()}
        if places := self._machine.places_after(after):
            plain = [[a.astype("<i8").tobytes() for a in one] for one in places]
            self._changes.append(Change(meta={"places": pack(plain)}))

    def flushed(self, number: int, rows: list[int], block: Any, columns: Sequence[Any]) -> None:
        """Take states of lanes after a batch; states that are too old are dropped."""
        for last, batch in self._after.values():
            if batch.member is not None and last == number:
                of_place = {place: row for row, place in enumerate(batch.lanes.tolist())}
                rows = [of_place.get(place, -1) for place in rows]
            if last == number and rows and min(rows) >= 0 and max(rows) < len(batch):
                arrays = arrays_of(self._cutting.states, block, columns)
                places = {row: i for i, row in enumerate(rows)}
                kept = self._machine.keep(batch, np.array(sorted(places), np.int64))
                at = np.array([places[row] for row in kept.tolist()], np.int64)
                if len(kept):
                    states = [array[at] for array in arrays]
                    self._settle()
                    self._maker.states.put(batch.slots[kept], states)
                    keys = self._machine.keys_of(batch.slots[kept])
                    change = self._stored.flushed(batch, kept, keys, state_columns(states))
                    self._changes.append(change)

    @property
    def _epoch_of_rounds(self) -> int:
        """The epoch that is read, where no batch crosses its border; else 0."""
        return 0 if self._partition.across_batches else self._partition.epoch

    def deal(self, world: int, run: int, stripe: int, at: int = 0) -> None:
        self._machine.deal(world, run, stripe, self._epoch_of_rounds, at)
        self._out.clear()
        self._after.clear()
        self._rounds.dealt(run)

    def leave(self, stripe: int, instead: int = -1) -> None:
        self._machine.leave(stripe, instead)
        self._after.pop(stripe, None)
        for number in [n for n, batch in self._out.items() if batch.stripe == stripe]:
            batch = self._out.pop(number)
            if number in self._early:
                self._early.discard(number)
                self._machine.rewound += len(batch)

    def claim(self, number: int, segments: bytes) -> int | None:
        """``segments`` are insertion indices (int64), then numbers of segments (int32).

        Return None when they are not the next of their examples, or were handed out again.  A
        member of a round is made again, under a number that is not known yet.
        """
        place = place_of(segments)
        if place is not None:
            return 0 if self._machine.will_make(place) else None
        rows = len(segments) // 12
        if (
            self._machine.ahead
            or self._machine.members is not None
            or len(segments) != 12 * rows
            or not rows
        ):
            return None
        slots = self._machine.find(np.frombuffer(segments, np.int64, rows))
        if (slots < 0).any():
            return UNREAD
        batch = self._machine.claim(slots, np.frombuffer(segments, np.int32, rows, 8 * rows))
        if batch is None:
            return None
        # The trainer may save its states before another batch is made.
        self._maker.states.grow(self._machine.slots)
        taken = self._partition.take_number()
        self._out[taken] = batch
        return taken

    def release(self, number: int) -> None:
        batch = self._out.pop(number, None)
        if batch is not None:
            self._machine.release(batch)

    def close(self, cancel: bool) -> None:
        self._settle()
        self._partition.close(cancel)
        self._changes.append(closing(cancel))

    def set_target(self, target: Target, probs: list[float]) -> int:
        """Draw in other proportions from now on; return the number of the next batch."""
        return target.set_target(probs, self._partition.next_number)

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> int:
        cutting, machine = self._cutting, self._machine
        if not isinstance(machine, ArrivalOrder):
            raise ValueError(
                'with order="lanes" a lane is a row of each batch, so their number stays; declare '
                "another batch_size and start the server again"
            )
        if machine.members is not None:
            raise ValueError(
                "ranks get blocks of one shape in every round; declare another batch_size and "
                "start the server again, or connect without rank="
            )
        if len(batch_sizes) > 1:
            raise ValueError(
                f"there are {len(batch_sizes)} sizes; the feed has one size for all batches"
            )
        batch_size = checked_int("batch_size", batch_sizes[0], 1, MAX_BATCH_SIZE)
        if cutting.capacity is not None and batch_size > cutting.capacity:
            raise ValueError(
                f"a batch has rows of batch_size={batch_size} examples in flight, more than "
                f"capacity={cutting.capacity}"
            )
        self.refuse_late()
        self._resize(machine, batch_size)
        self._changes.append(Change(meta={"batch_size": pack([cutting.batch_size, batch_size])}))
        return self._partition.next_number

    def _resize(self, machine: ArrivalOrder, batch_size: int) -> None:
        machine.set_batch_size(batch_size)
        self._maker.properties = {
            **self._maker.properties,
            **RESIZED,
            "batch_size": batch_size,
        }

    # The store

    def take_changes(self) -> list[Change]:
        self._settle()
        changes, self._changes = self._changes, []
        return changes + self._rounds.changes() if self._rounds.moved else changes

    def _settle(self) -> None:
        """Build one change of the commits since the last one.

        Until then their states stay in the table: the slot of a dropped example is reused
        only after the next chunk was read.
        """
        if self._saved:
            self._changes.append(self._stored.saved(self._saved, self._maker.states.stored))
            self._saved.clear()
        if self._moved and self._machine.members is None and not self._cutting.at_trainer:
            self.note_places()

    def resume(self, saved: Saved) -> None:
        if "base" in saved.meta:
            self._go_on(saved)
        declared, rows = msgpack.unpackb(saved.meta.get("batch_size", pack([0, 0])))
        machine = self._machine
        if declared == self._cutting.batch_size and isinstance(machine, ArrivalOrder):
            self._resize(machine, rows)  # else it was declared anew since
        if "used" in saved.meta:
            self._commits = int(msgpack.unpackb(saved.meta["used"])[0])
        if not self._partition.across_batches:
            epoch, before = 0, 0
            if "epoch" in saved.meta:
                epoch, before = msgpack.unpackb(saved.meta["epoch"])
            self._epoch = epoch
            if epoch == self._partition.epoch:
                self._partition.resume_epoch(self._commits - before)
        self._rounds.resume(saved.meta, self._epoch_of_rounds)
        if "places" in saved.meta:
            self._machine.places = [
                (np.frombuffer(indices, "<i8"), np.frombuffer(lanes, "<i8"))
                for indices, lanes in msgpack.unpackb(saved.meta["places"])
            ]
        if "closing" in saved.meta:
            self._partition.close(saved.meta["closing"] == b"cancel")

    def _go_on(self, saved: Saved) -> None:
        cursor, examples = self._stored.resume(saved), saved.examples
        place = cursor["input"]
        self._partition.resume_reading(place, max([cursor["chunk"], *saved.chunks]) + 1)
        self._intake.stages.restore(cursor["stages"])
        self._intake.resume(place["epoch"], place["position"], cursor["dropped"])
        self._machine.next_index = cursor["index"]
        slots = self._machine.resume(examples)
        self._stored.in_slots(slots, examples.lines)
        states = stored_states(self._cutting.states, examples)
        self._maker.states.resume(slots, states, self._machine.slots)

    # Queries

    @property
    def starved(self) -> bool:
        return self._machine.starved

    @property
    def content(self) -> bool:
        return self._machine.content

    def epoch_due(self, ended: bool, begun: Iterable[tuple[int, int]]) -> int | None:
        self._settle()
        epoch = self._stored.epoch
        return epoch if ended or epoch is not None else self._partition.epoch

    def take_dry(self) -> list[int]:
        dry = self._machine.take_dry() if self._machine.dry else []
        for stripe in dry:
            self._after.pop(stripe, None)
        return dry

    def lacks(self) -> tuple[str, int]:
        batch = self._machine.oldest_out()
        if batch is None:
            return "", -1
        number = next((number for number, out in self._out.items() if out is batch), -1)
        if number < 0:
            return "", -1
        if not len(batch):
            return f"it waits for save_state of an empty batch (batch {number})", number
        segment, count = int(batch.segments[0]), int(batch.counts[0])
        key: Any = self._machine.key_of(int(batch.slots[0]))
        name = f"{segment:05d}_of_{count:05d}:{key[1].decode(errors='backslashreplace')}"
        others = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
        ready = ""
        if not self._cutting.lanes:
            ready = f"{self._machine.ready} of {self._machine.most_rows} rows are ready; "
        text = f"{ready}it waits for save_state of {name[:300]}{others} (batch {number})"
        return text, number

    def seek(self, key: bytes) -> list[list[Any]]:
        numbers = {id(batch): number for number, batch in self._out.items()}
        return [
            [f.epoch, f.segment, f.segments, f.where, numbers.get(id(f.out), -1)]
            for f in self._machine.seek(key)
        ]
