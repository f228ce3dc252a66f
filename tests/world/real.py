"""Plain partitions as headrace has them, for worlds: only the rows are synthetic.

A record of a world has the records of the machine with it (``Folded``); what a new life knows is
the fold of these alone.
"""

from __future__ import annotations

from headrace_server.leasing.protocol import ANYONE, Outlook
from headrace_server.shaping.plain import Stored
from tests.plain_partition import FOREVER, PlainPartition, orders_before, rows_in

from .journal import Folded


class Rows(tuple):
    """The rows of a committed batch."""


class RealPlain(PlainPartition):
    """See ``synthetic.Plain``."""

    def __init__(
        self, number, stored, slab, *, rows, size, epochs=1, borders=False, buckets=1
    ):  # fmt: skip
        super().__init__(
            number, stored.machine or Stored(), rows=rows, size=size, epochs=epochs,
            across=not borders, buckets=buckets, limit=1 + number % 3 * size,
        )  # fmt: skip
        self.slab = slab
        self.records = []

    def make(self, slot=ANYONE, epoch=FOREVER):
        if not self._unplaced and isinstance(step := self._step(slot, epoch), Outlook):
            self.mark()
            return step
        placed = []
        while self._unplaced:
            plan = self._unplaced[0]
            if plan.batch.body is None:
                if len(self.slab.bodies) >= self.slab.room:
                    return placed or Outlook.FULL
                self._placed(plan)
                plan.batch.body = [tuple(rows_in(plan.batch)), orders_before(plan.batch)]
                self.slab.bodies.add(id(plan.batch.body))
            placed.append(plan.batch)
            del self._unplaced[0]
        return placed

    def reclaim(self, batch):
        possible = super().reclaim(batch)
        if possible:
            self._unplaced = [one for one in self._unplaced if one.batch.number != batch.number]
        return possible

    def commit(self, batch, token, payload):
        fault = self.machine.commit(batch, token, payload)
        assert fault is None, fault
        self._record("commit", batch.number, batch.slot, batch.turn, token, Rows(rows_in(batch)))

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
        records = Folded(self.machine.take_records())
        committed = what[0] if kind == "commit" else None
        self.records.append((kind, *what, records))
        for of in records:
            if of[0] == "done" and of[1] != committed:  # of an incomplete round
                self.records.append(("drop", of[1], Folded()))

    def take_records(self):
        self._record("machine")
        records, self.records = self.records, []
        return records
