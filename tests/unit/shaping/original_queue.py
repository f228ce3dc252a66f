"""The queue of segments as TensorFlow had it, written down plainly, and a feed for the machines.

`original_stream` differs from TensorFlow's queue only where that was at fault: a key that is in
flight is refused whole, a place of the capacity is free when the last segment is taken, and the end
comes as soon as no full batch can be formed any more.

`Feed` plays the source of a partition: it answers the reads of a machine.
"""

from itertools import cycle

import numpy as np
from hypothesis import strategies as st

from headrace_server.leasing.words import ANYONE, Outlook
from headrace_server.shaping.input import Input
from headrace_server.shaping.plan import Read

FIRST = -(2**63)

#: Segments of each example, and how many examples each chunk has.
COUNTS = st.integers(0, 30).flatmap(lambda n: st.lists(st.integers(1, 6), min_size=n, max_size=n))
CUTS = st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any)


def sizes(largest_batch):
    """Generate batch size, capacity and whether small batches are allowed."""
    beyond = st.none() | st.integers(0, 6)
    return st.tuples(st.integers(1, largest_batch), beyond, st.booleans()).map(
        lambda t: (t[0], None if t[1] is None else t[0] + t[1], t[2])
    )


def original_stream(batch_size, capacity, allow_small, counts, keys=None, takes=(None,)):
    """All batches for one trainer, examples that were refused, and segments that were left over.

    Rows are (insertion index, example, segment).  ``takes``: the rows of each batch, again and
    again; None: the declared size.
    """
    takes, keys = cycle(takes), range(len(counts)) if keys is None else keys
    batches, refused, at = [], [], 0
    flight = []  # insertion index, example and next segment of each example in flight
    while True:
        while at < len(counts) and (capacity is None or len(flight) < capacity):
            if keys[at] in {keys[example] for _, example, _ in flight}:
                refused.append(at)
            else:
                flight.append((FIRST + at - len(refused), at, 0))
            at += 1
        rows = next(takes) or batch_size
        if not flight or (len(flight) < rows and not allow_small):
            return batches, refused, sum(counts[example] - n for _, example, n in flight)
        batches.append(flight[:rows])
        saved = [(index, example, n + 1) for index, example, n in flight[:rows]]
        flight = [one for one in (*saved, *flight[rows:]) if one[2] < counts[one[1]]]


class Feed:
    """Examples of ``counts`` steps, read in chunks of the sizes of ``cuts``: epoch for epoch.

    ``known`` marks examples that an earlier life has begun.
    """

    def __init__(self, machine, counts, cuts=(7,), keys=None, epochs=1, across=True, known=None):
        self.machine, self.counts, self.cuts = machine, counts, cycle(cuts)
        machine.input = Input(machine, 0, epochs, across)
        self.keys = keys or [f"key {i}" for i in range(len(counts))]
        self.known = known or {}
        self.examples = {}  # the first one and the epoch, by chunk
        self.chunk_of = []  # by example, in the order of reads

    @property
    def at(self):
        """Number of examples that were read."""
        return len(self.chunk_of)

    @property
    def closed(self):
        return self.machine.admission.finished

    def example(self, chunk, row):
        epoch, first = self.examples[chunk]
        return epoch * len(self.counts) + first + int(row)

    def rows(self, batch):
        """(insertion index, example, segment) of each row of a batch."""
        examples = [self.example(*at) for at in zip(batch.chunks, batch.rows, strict=True)]
        return list(zip(batch.indices.tolist(), examples, batch.first.tolist(), strict=True))

    def answer(self, read):
        """Read what a machine asks for."""
        n = len(self.counts)
        stop = min(read.position + min(next(self.cuts), read.limit), n)
        rows = slice(read.position, stop)
        line = read.epoch * n + read.position
        facts = {"key": [(read.epoch, key) for key in self.keys[rows]], "steps": self.counts[rows]}
        if self.known:
            marks = [self.known.get(line + row, 0) for row in range(stop - read.position)]
            facts |= {"line": line, "known": np.array(marks)}
        self.examples[read.chunk] = read.epoch, read.position
        self.chunk_of += [read.chunk] * (stop - read.position)
        rows, after = stop - read.position, stop if stop < n else None
        self.machine.input.arrived(read, rows, after, facts, rows)

    def step(self, slot=ANYONE, epoch=0):
        """Batches, or why there are none, reading as much as it takes."""
        while isinstance(step := self.machine.step(slot, epoch, 10**6), Read):
            self.answer(step)
        return step

    def draft(self, slot=ANYONE):
        """The next batch for one slot; None when it must wait or has ended."""
        step = self.step(slot)
        if isinstance(step, Outlook):
            return None
        (plan,) = step
        return plan

    def order(self, kind, what):
        self.machine.apply(self.machine.propose(kind, what))
