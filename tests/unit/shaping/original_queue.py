"""The queue of segments as TensorFlow had it, written down plainly, and a feed for the machines.

    prefetch ─token─► ready ─► take ─► save ─► ready …          close ─► smaller, or the end

`OriginalQueue` looks at every example in flight for every batch.  It differs from TensorFlow's only
where that was at fault: a key that is in flight is refused whole, a token comes back when the last
segment is taken, and the end comes as soon as no full batch can be formed any more.

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


class OriginalQueue:
    def __init__(self, batch_size, capacity, allow_small):
        self.batch_size, self.capacity, self.allow_small = batch_size, capacity, allow_small
        self.examples = {}  # insertion index → [name, key, segments, next segment], in flight
        self.unsaved = {}  # the same, of those whose next segment waits for its state
        self.keys = set()
        self.index = FIRST
        self.tokens = 0
        self.closed = False

    def prefetch(self, name, key, segments):
        """ "refused", "blocked" or "inserted"."""
        if self.capacity is not None and self.tokens == self.capacity:
            return "blocked"
        if key in self.keys:
            return "refused"
        self.tokens += 1
        self.keys.add(key)
        self.examples[self.index] = [name, key, segments, 0]
        self.index += 1
        return "inserted"

    def take(self, rows=None):
        """A batch of (insertion index, name, segment); None at the end, "waits" before it."""
        ready, rows = sorted(self.examples), rows or self.batch_size
        if len(ready) < rows:
            if not self.closed:
                return "waits"
            if not self.allow_small or not ready:
                return None
        batch = []
        for index in ready[:rows]:
            name, key, segments, segment = example = self.examples.pop(index)
            batch.append((index, name, segment))
            if segment + 1 == segments:
                self.tokens -= 1
                self.keys.remove(key)
            else:
                self.unsaved[index] = example
        return batch

    def save(self, batch):
        for index, _, _ in batch:
            if index in self.unsaved:
                self.unsaved[index][3] += 1
                self.examples[index] = self.unsaved.pop(index)

    def left(self):
        return sum(segments - segment for _, _, segments, segment in self.examples.values())


def original_stream(batch_size, capacity, allow_small, counts, keys=None, takes=(None,)):
    """All batches for one trainer, examples that were refused, and segments that were left over.

    ``takes``: the rows of each batch, again and again; None: the declared size.
    """
    takes = cycle(takes)
    queue = OriginalQueue(batch_size, capacity, allow_small)
    batches, refused, at = [], [], 0
    keys = range(len(counts)) if keys is None else keys
    while True:
        while at < len(counts):
            verdict = queue.prefetch(at, keys[at], counts[at])
            if verdict == "blocked":
                break
            if verdict == "refused":
                refused.append(at)
            at += 1
        queue.closed = at == len(counts)
        batch = queue.take(next(takes))
        assert batch != "waits", "one trainer that saves what it takes never waits for ever"
        if batch is None:
            return batches, refused, queue.left()
        batches.append(batch)
        queue.save(batch)


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
