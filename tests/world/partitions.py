"""Partitions as headrace has them, for worlds: only the rows are synthetic.

A record of a world has the records of the machine with it (``Folded``); what a new life knows is
the fold of these alone.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from headrace_server.leasing.words import ANYONE, Batch, Outlook
from headrace_server.shaping.admission import BEGUN, FIRST_INDEX
from headrace_server.shaping.input import Input
from headrace_server.shaping.plain import Stored
from headrace_server.shaping.plan import Read
from headrace_server.shaping.segments import AT_SERVER, NOWHERE
from headrace_server.shaping.segments import Segments as Machine
from headrace_server.shaping.stored_state import LINE, Examples
from tests.plain_partition import FOREVER, PlainPartition, orders_before, rows_in

from .journal import Folded

_PLACE = struct.Struct("<iiiiQ")
#: An insertion index has the number of the example below the partition.
_EXAMPLE = (1 << 51) - 1


def rows_of(place: bytes) -> list[tuple[int, int, int, int]]:
    """Return lane, example, segment and version of each row."""
    first = int.from_bytes(place[:8], "little") & _EXAMPLE
    rows = _PLACE.iter_unpack(place[8:])
    return [(lane, first + delta, segment, version) for lane, delta, segment, _, version in rows]


class Slab:
    """The memory of an owner: room for some batches."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.bodies: set[int] = set()
        self.mapped: list[Any] = []  # bodies of batches that are gone

    def has_room(self, beyond: bool = False) -> bool:
        return beyond or len(self.bodies) < self.room

    def gone(self, batch: Batch) -> None:
        """Keep the body of a batch until its trainer has unmapped it."""
        if batch.body is not None:
            assert id(batch.body) in self.bodies, f"{batch} is freed twice"
            self.mapped.append(batch.body)
            batch.body = None

    def free(self) -> None:
        """Free the bodies of all batches that are gone."""
        self.bodies.difference_update(map(id, self.mapped))
        self.mapped.clear()


class Plain(PlainPartition):
    """Rows in batches, made ahead of requests."""

    def __init__(
        self, number, stored, slab, *, rows, size, epochs=1, borders=False, buckets=1
    ):  # fmt: skip
        super().__init__(
            number, stored.machine or Stored(), rows=rows, size=size, epochs=epochs,
            across=not borders, buckets=buckets, limit=1 + number % 3 * size,
        )  # fmt: skip
        self.slab = slab
        self.records = []

    def make(self, slot=ANYONE, epoch=FOREVER, beyond=False, most=1):
        alone = most == 1 or beyond or self._next_read is not None
        made = self._make(slot, epoch, beyond)
        while not (alone or isinstance(made, Outlook) or len(made) >= most):
            if self._next_read is not None:
                break
            more = self._make(slot, epoch, False)
            if isinstance(more, Outlook):
                return made or more
            made += more
        return made

    def _make(self, slot, epoch, beyond):
        there = self.bring_forward(slot) if beyond else self.unwritten
        if not there and isinstance(step := self._step(slot, epoch), Outlook):
            self.mark()
            return step
        beyond = beyond and self.bring_forward(slot)
        placed = []
        while self.unwritten:
            plan = self.unwritten[0]
            if plan.batch.body is None:
                if not self.slab.has_room(beyond and not placed):
                    return placed or Outlook.FULL
                self._placed(plan)
                plan.batch.body = [tuple(rows_in(plan.batch)), orders_before(plan.batch)]
                self.slab.bodies.add(id(plan.batch.body))
            placed.append(plan.batch)
            del self.unwritten[0]
        return placed

    def commit(self, batch, token, payload):
        fault = self.machine.commit(batch, token, payload)
        assert fault is None, fault
        self._record("commit", batch.number, batch.slot, batch.turn, token, tuple(rows_in(batch)))

    def deal(self, run, world):
        dealt = super().deal(run, world)
        self._record("deal", run, world)
        return dealt

    def propose(self, what):
        kind, value = what
        what = ("close", False) if kind == "close" else ("batch_size", [value] * self.buckets)
        try:
            return super().propose(what)
        except ValueError:
            return None  # all are made

    def _record(self, kind, *what):
        self.records.append((kind, *what, Folded(self.machine.take_records())))

    def take_records(self):
        self._record("machine")
        records, self.records = self.records, []
        return records


class SegmentStored:
    """The fold of the records of a machine of segments."""

    def __init__(self):
        self.run = self.base = 0
        self.examples = {}  # number of the next segment, token and state, by example
        self.turns, self.places, self.orders = None, {}, []

    def fold(self, kind, what):
        if kind == "rows":
            self.examples.update(what)
        else:
            setattr(self, kind, what)
            if kind == "turns":
                self.run = what[0]


class FoldedSegments(Folded):
    """Records of a machine of segments."""

    stored = SegmentStored


class Segments:
    """Examples of some segments, in the order of arrival or in lanes."""

    def __init__(
        self, number, stored, slab, *, counts, size, capacity, order="arrival", states=True,
        epochs=1, borders=False, small=True,
    ):  # fmt: skip
        where = AT_SERVER if states else NOWHERE
        lanes = order == "lanes"
        self.machine = Machine(number, size, capacity, small, lanes=lanes, states=where)
        self.machine.input = Input(self.machine, 0, epochs, not borders)
        self.number, self.slab, self.counts = number, slab, counts
        self.gone, self.records = self.machine.gone, []
        self.states = {}  # by example
        self.cut = 1 + number % 3 * size  # examples of a read
        self.first = {}  # the first example of each chunk
        self._resume(stored.machine or SegmentStored())

    def _resume(self, known):
        self.known, self.base = known, known.base
        epoch, row = divmod(known.base, len(self.counts))
        machine = self.machine
        reading = {
            "epoch": epoch, "epoch_rows": row, "empty_epochs": 0, "position": row,
            "read": known.base,
        }  # fmt: skip
        machine.input.resume_reading(reading, 1000)
        going = sorted(e for e, at in known.examples.items() if at[0] < self._count(e))
        index = FIRST_INDEX + (self.number << 51)
        numbers = [
            (e, index + e, 0, e, known.examples[e][0], self._count(e), known.examples[e][1])
            for e in going
        ]
        keys = [(e // len(self.counts), e) for e in going]
        columns = np.array(numbers, np.int64).reshape(-1, 7).T
        machine.admission.resume(Examples(columns, keys, ()), index + known.base, known.base)
        self.states = {e: known.examples[e][2] for e in going}
        self.begun = set(known.examples)
        if known.turns is not None:
            machine.resume_turns(known.turns, known.places)
        machine.resume_orders(known.orders)

    def _count(self, e):
        return self.counts[e % len(self.counts)]

    def __getattr__(self, name):
        return getattr(self.machine, name)

    # Making

    def make(self, slot=ANYONE, epoch=FOREVER, beyond=False, most=1):
        made = self._make(slot, epoch, beyond)
        while not (beyond or self.machine.chained or isinstance(made, Outlook)):
            if not made or len(made) >= most:
                break
            more = self._make(slot, epoch, False)
            if isinstance(more, Outlook):
                break
            made += more
        return made

    def _make(self, slot, epoch, beyond):
        if not (self.bring_forward(slot) if beyond else self.unwritten):
            step = self.machine.step(slot, epoch, self.cut)
            if isinstance(step, Outlook):
                return step
            if isinstance(step, Read):
                self._answer(step)
                return []
            self.unwritten.extend(step)
        beyond = beyond and self.bring_forward(slot)
        placed = []
        while self.unwritten:
            if not self.slab.has_room(beyond and not placed):
                return placed or Outlook.FULL
            batch = self.unwritten.popleft().batch
            batch.body = [self.states.get(e) for _, e, _, _ in rows_of(batch.place)]
            if self.machine.states == NOWHERE:
                batch.body = []
            self.slab.bodies.add(id(batch.body))
            placed.append(batch)
        return placed

    def _answer(self, read):
        n = len(self.counts)
        stop = min(n, read.position + min(read.limit, self.cut))
        first = read.epoch * n + read.position
        examples = range(first, first + stop - read.position)
        facts = {
            "key": [(read.epoch, e) for e in examples],
            "steps": [self._count(e) for e in examples],
            "line": first,
            "known": np.array([BEGUN * (e in self.begun) for e in examples]),
        }
        self.first[read.chunk] = first
        after = stop if stop < n else None
        self.machine.input.arrived(read, len(examples), after, facts, len(examples))

    # Trainers

    def commit(self, batch, token, payload):
        out = self.machine.commit(batch, token)
        if isinstance(out, tuple):
            return out
        rows, stored = [], {}
        for at, (_, e, segment, _) in enumerate(rows_of(batch.place)):
            state = payload[at] if payload else None
            rows.append((e, segment, state))
            stored[e] = segment + 1, token, state
            self.states[e] = state
        self.begun.update(stored)
        self._record(
            "commit", batch.number, batch.slot, batch.turn, token, tuple(rows), rows=stored
        )
        return None

    def reclaim(self, batch):
        while (possible := self.machine.reclaim(batch)) is None:
            read = self.machine.input.next_read(self.cut)
            if read is None:
                return False
            self._answer(read)
        return possible

    def deal(self, run, world):
        self.machine.deal(run, world)
        self._record("deal", run, world)
        return []

    def propose(self, what):
        order = self.machine.propose("close", False)
        self._record("order", order)
        return order

    # Records

    def _record(self, kind, *what, **records):
        machine = self.machine
        self.base = max(
            [self.base]
            + [e for e in self.first.values() if self.begun.issuperset(range(self.base, e))]
        )
        turns = machine.turns()
        folded = FoldedSegments(records.items())
        folded += [
            ("turns", [*turns[:-1], list(turns[-1])]),
            ("places", machine.places()),
            ("orders", list(machine.orders)),
            ("base", self.base),
        ]
        self.records.append((kind, *what, folded))

    def take_records(self):
        left = [e for numbers, _ in self.machine.admission.drops for e in numbers[LINE].tolist()]
        self.machine.admission.drops.clear()
        self.begun.update(left)
        self._record("left", left, rows={e: (self._count(e), 0, None) for e in left})
        records, self.records = self.records, []
        return records
