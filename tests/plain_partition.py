"""A plain partition without payload, as a desk sees it: headrace's own machine, and rows.

PlainPartition(stored) ─► make() ─► batches; ``place`` names their rows
                       ─► take_records() ─► Stored.fold ─► another life
"""

from copy import deepcopy
from dataclasses import replace

import msgpack
import numpy as np

from headrace_server.leasing.words import ANYONE, Outlook
from headrace_server.shaping.bucket import Buckets, PlainBatches
from headrace_server.shaping.input import Input
from headrace_server.shaping.plain import PlainMachine, Stored
from headrace_server.shaping.plan import Read

FOREVER = 1 << 62


def rows_in(batch):
    """Return the rows of a batch: (epoch, row) of each."""
    return [tuple(row) for row in msgpack.unpackb(batch.place)[1]]


def orders_before(batch):
    return msgpack.unpackb(batch.place)[0]


class PlainPartition:
    """``rows`` rows in each epoch, read ``limit`` at a time; row i has bucket i² % ``buckets``."""

    ahead, lanes, voids = True, False, False

    def __init__(
        self, number, stored=None, *, rows, size, buckets=1, epochs=1, across=True, limit=3
    ):
        self.number, self.rows, self.buckets, self.limit = number, rows, buckets, limit
        shaper = Buckets([size] * buckets, True) if buckets > 1 else PlainBatches(size, True)
        self.machine = PlainMachine(number, Input(shaper, 0, epochs, across), shaper)
        self.gone = self.machine.gone
        self._chunks = {}  # (epoch, row) of each row, by number
        self._next_read = None
        self._marked = 0
        for read in self.machine.resume(deepcopy(stored or Stored())):
            self._read(read)

    def __getattr__(self, name):
        return getattr(self.machine, name)

    def make(self, slot=ANYONE, epoch=FOREVER, beyond=False, most=1):
        if not self.unwritten and isinstance(step := self._step(slot, epoch), Outlook):
            self.mark()
            return step
        made = []
        while self.unwritten:
            made.append(self._placed(self.unwritten.popleft()))
        return made

    def _step(self, slot, epoch):
        """Do one step; a read is one of its own, after the one that announces it."""
        if self._next_read is not None:
            step, self._next_read = self._next_read, None
            stop = self._read(step)
            numbers = [row * row % self.buckets for _, row in self._chunks[step.chunk]]
            facts = {"bucket": np.array(numbers, np.int64)}
            position = stop if stop < self.rows else None
            self.machine.input.arrived(step, len(numbers), position, facts, len(numbers))
            return step
        here = self.machine.epoch
        step = self.machine.step(slot, epoch, self.limit)
        if self.machine.epoch != here:
            self.mark()
        if isinstance(step, Read):
            if self.machine.input.next_number >= self._marked + 4:
                self.mark()
            self._next_read = step
        elif isinstance(step, list):
            self.unwritten.extend(step)
        return step

    def apply(self, order):
        if self._next_read is not None:
            self._next_read = None
            self.machine.input.failed()
        self.machine.apply(order)

    def _read(self, read):
        stop = min(read.position + read.limit, self.rows)
        self._chunks[read.chunk] = [(read.epoch, row) for row in range(read.position, stop)]
        return stop

    def _placed(self, plan):
        if plan.batch.body is not None:  # of an earlier run
            return plan.batch
        rows = []
        for part in plan.draft.parts:
            chunk = self._chunks[part.chunk]
            rows += [chunk[i] for i in np.arange(len(chunk))[part.rows]]
        plan.batch.body, plan.batch.place = True, msgpack.packb([plan.batch.place, rows])
        needed = self.machine.chunks()
        self._chunks = {chunk: self._chunks[chunk] for chunk in sorted(needed)}
        self.machine.input.forget_reads(needed)
        return plan.batch

    def reclaim(self, batch):
        return self.machine.reclaim(replace(batch, place=msgpack.unpackb(batch.place)[0]))

    def deal(self, run, world):
        there = self.machine.deal(run, world)
        self.mark()
        return there

    def mark(self):
        self._marked = self.machine.input.next_number
        self.machine.mark(msgpack.unpackb(msgpack.packb(self.machine.cursor())))

    def propose(self, what):
        while (order := self.machine.propose(*what)) is None:
            self._step(ANYONE, FOREVER)
        return order
