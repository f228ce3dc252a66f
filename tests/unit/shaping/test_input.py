"""A partition reads and batches every row once per epoch, and goes on from any point.

``Driver`` plays the worker: it answers reads from a table that stands for the data, and keeps
the payload of chunks only for as long as the machine needs it.
"""

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping.bucket import PlainBatches
from headrace_server.shaping.input import TURN_BITS, Partition, Rest
from headrace_server.shaping.plan import Read
from tests.examples import some

LIMITS = st.lists(st.integers(1, 7), min_size=1, max_size=5)


class Driver:
    """A worker of ``examples`` rows, some of which stages drop (``drops``)."""

    def __init__(
        self,
        examples,
        batch_size=4,
        smaller=False,
        epochs=1,
        limits=(3,),
        drops=lambda e, i: False,
        across=True,
    ):
        self.examples = examples
        self.new = lambda: Partition(PlainBatches(batch_size, smaller), 0, epochs, across)
        self.turns = {}  # of plans by number
        self.machine = self.new()
        self.limits = limits
        self.drops = drops
        self.chunks = {}
        self.steps = 0
        self.most_chunks = 0
        self.batches = {}  # number → rows, of all plans given out

    def rows(self, read):
        stop = min(read.position + read.limit, self.examples)
        rows = [
            (read.epoch, i) for i in range(read.position, stop) if not self.drops(read.epoch, i)
        ]
        return rows, stop if stop < self.examples else None

    def step(self):
        """Do one step of work; return whether there is more."""
        limit = self.limits[self.steps % len(self.limits)]
        self.steps += 1
        step = self.machine.next_step(limit)
        if step is None:
            return False
        assert step is not Rest, "batches of rows wait for nothing but rows"
        if isinstance(step, Read):
            assert 0 < step.limit == limit
            self.chunks[step.chunk], position = self.rows(step)
            self.machine.arrived(step, len(self.chunks[step.chunk]), position)
        else:
            rows = [row for part in step.draft.parts for row in self.chunks[part.chunk][part.rows]]
            assert self.batches.get(step.number, rows) == rows, "a number names one batch only"
            self.batches[step.number] = rows
            self.turns[step.number] = self.machine.turn_of(step.number)
            needed = self.machine.chunks()
            self.chunks = {chunk: self.chunks[chunk] for chunk in sorted(needed)}
            self.most_chunks = max(self.most_chunks, len(needed))
            self.machine.forget_reads()
        return True

    def run(self, steps=10**6):
        while steps and self.step():
            steps -= 1
        return self

    def restored(self, state):
        """Another worker that goes on from a state."""
        other = Driver.__new__(Driver)
        other.__dict__.update(self.__dict__, chunks={}, batches={}, turns={})
        other.machine = self.new()
        for read in other.machine.restore(msgpack.unpackb(msgpack.packb(state))):
            other.chunks[read.chunk] = other.rows(read)[0]
        return other

    def stream(self):
        assert list(self.batches) == sorted(self.batches)
        return [row for n in sorted(self.batches) for row in self.batches[n]]


def expected(examples, epochs, drops=lambda e, i: False):
    return [(e, i) for e in range(epochs) for i in range(examples) if not drops(e, i)]


@given(
    examples=st.integers(0, 30),
    batch_size=st.integers(1, 8),
    smaller=st.booleans(),
    epochs=st.integers(0, 3),
    limits=LIMITS,
    one=st.integers(2, 5),
)
def test_every_row_comes_once_per_epoch_in_order_for_any_sizes_of_reads(
    examples, batch_size, smaller, epochs, limits, one
):
    def drops(e, i):
        return (e + i) % one == 0

    driver = Driver(examples, batch_size, smaller, epochs, limits, drops).run()
    rows = expected(examples, epochs, drops)
    rest = 0 if smaller else len(rows) % batch_size
    assert driver.stream() == rows[: len(rows) - rest]
    assert list(driver.batches) == list(range(len(driver.batches)))
    assert [len(b) for b in driver.batches.values()][:-1] == [batch_size] * (
        len(driver.batches) - 1
    )
    assert driver.machine.dropped() == ({"remainder": rest} if rest else {})
    assert not driver.step() and driver.machine.chunks() == set()


# Batches that end with their epoch


@given(
    examples=st.integers(0, 20),
    batch_size=st.integers(1, 8),
    smaller=st.booleans(),
    epochs=st.integers(1, 4),
    limits=LIMITS,
    one=st.integers(2, 5),
)
def test_without_batches_across_epochs_each_epoch_is_a_whole_feed(
    examples, batch_size, smaller, epochs, limits, one
):
    """Batches, their order, and dropped rows are those of feeds of one epoch, one after another."""

    def drops(e, i):
        return (e + i) % one == 0

    whole = Driver(examples, batch_size, smaller, epochs, limits, drops, across=False).run()
    batches, turns, dropped = [], [], 0
    for epoch in range(epochs):
        alone = Driver(
            examples, batch_size, smaller, 1, limits, lambda e, i, epoch=epoch: drops(epoch, i)
        ).run()
        batches += [[(epoch, i) for _, i in rows] for rows in alone.batches.values()]
        turns += [(epoch << TURN_BITS) + number for number in alone.batches]
        dropped += alone.machine.dropped().get("remainder", 0)
    assert list(whole.batches.values()) == batches
    assert list(whole.batches) == list(range(len(batches))), "numbers go on over the border"
    assert list(whole.turns.values()) == turns
    assert whole.machine.dropped().get("remainder", 0) == dropped
    assert not whole.step() and not whole.machine.chunks()


@settings(max_examples=some(60), deadline=None)
@given(
    examples=st.integers(0, 9),
    batch_size=st.integers(1, 4),
    smaller=st.booleans(),
    limits=LIMITS,
    data=st.data(),
)
def test_a_cursor_at_every_step_continues_the_epochs(examples, batch_size, smaller, limits, data):
    new = lambda: Driver(examples, batch_size, smaller, 3, limits, across=False)  # noqa: E731
    whole, driver = new().run(), new()
    while True:
        before, turns = dict(driver.batches), dict(driver.turns)
        other = driver.restored(driver.machine.cursor())
        other.limits = data.draw(LIMITS)
        assert {**before, **other.run().batches} == whole.batches
        assert {**turns, **other.turns} == whole.turns
        assert other.machine.dropped() == whole.machine.dropped()
        if not driver.step():
            break


# The end by order


# Rest


# Going on elsewhere


@settings(max_examples=some(60), deadline=None)
@given(
    examples=st.integers(0, 20),
    batch_size=st.integers(1, 6),
    smaller=st.booleans(),
    limits=LIMITS,
    data=st.data(),
)
def test_a_cursor_at_every_step_continues_the_same_stream(
    examples, batch_size, smaller, limits, data
):
    def drops(e, i):
        return (7 * e + i) % 5 == 0

    whole = Driver(examples, batch_size, smaller, 2, limits, drops).run()
    driver = Driver(examples, batch_size, smaller, 2, limits, drops)
    while True:
        before = dict(driver.batches)
        other = driver.restored(driver.machine.cursor())
        other.limits = data.draw(LIMITS)  # another machine, another pace
        assert {**before, **other.run().batches} == whole.batches
        assert not before.keys() & other.batches.keys()
        assert other.machine.dropped() == whole.machine.dropped()
        assert other.machine.reading()["epoch"] == whole.machine.reading()["epoch"]
        if not driver.step():
            break


# What is refused
