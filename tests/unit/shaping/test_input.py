"""An input reads and drafts every row once per epoch, and goes on from any point.

``Driver`` answers reads from a table that stands for the data, and keeps the payload of chunks only
for as long as the machine needs it.
"""

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping.bucket import PlainBatches
from headrace_server.shaping.input import Input, Rest
from headrace_server.shaping.plan import Read
from tests.examples import some

LIMITS = st.lists(st.integers(1, 7), min_size=1, max_size=5)


class Driver:
    """An input of ``examples`` rows, some of which stages drop (``drops``)."""

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
        self.new = lambda: Input(PlainBatches(batch_size, smaller), 0, epochs, across)
        self.machine = self.new()
        self.limits = limits
        self.drops = drops
        self.chunks = {}
        self.steps = 0
        self.batches = {}  # number → epoch of the input and rows, of all drafts

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
        if step is Rest:
            assert self.machine.at_border, "rows wait for nothing but rows"
            self.machine.begin_epoch()
        elif isinstance(step, Read):
            assert 0 < step.limit == limit
            self.chunks[step.chunk], position = self.rows(step)
            self.machine.arrived(step, len(self.chunks[step.chunk]), position)
        else:
            rows = [row for part in step.parts for row in self.chunks[part.chunk][part.rows]]
            number = self.machine.next_number - 1
            turn = self.machine.epoch, number - self.machine.first_of_epoch
            self.batches[number] = None if self.machine.across_batches else turn, rows
            needed = self.machine.chunks()
            self.chunks = {chunk: self.chunks[chunk] for chunk in sorted(needed)}
            self.machine.forget_reads(needed)
        return True

    def run(self):
        while self.step():
            pass
        return self

    def restored(self, state):
        """Another one that goes on from a state."""
        other = Driver.__new__(Driver)
        other.__dict__.update(self.__dict__, chunks={}, batches={})
        other.machine = self.new()
        for read in other.machine.restore(msgpack.unpackb(msgpack.packb(state))):
            other.chunks[read.chunk] = other.rows(read)[0]
        return other


@settings(max_examples=some(100), deadline=None)
@given(
    examples=st.integers(0, 20),
    batch_size=st.integers(1, 6),
    smaller=st.booleans(),
    across=st.booleans(),
    limits=LIMITS,
    data=st.data(),
)
def test_a_cursor_at_every_step_continues_the_same_stream(
    examples, batch_size, smaller, across, limits, data
):
    def drops(e, i):
        return (7 * e + i) % 5 == 0

    whole = Driver(examples, batch_size, smaller, 3, limits, drops, across).run()
    driver = Driver(examples, batch_size, smaller, 3, limits, drops, across)
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


@pytest.mark.parametrize("across", [True, False])
def test_a_feed_ends_after_many_empty_epochs_in_a_row_and_not_before(
    across: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_server.shaping.input.HOPELESS_EPOCHS", 3)
    full = (0, 1, 2, 3, 6)
    driver = Driver(4, epochs=None, across=across, drops=lambda epoch, row: epoch not in full)
    assert not all(driver.step() for _ in range(100)), "it goes on for ever"
    assert [rows[0][0] for _, rows in driver.batches.values()] == list(full)
    assert driver.machine.hopeless
