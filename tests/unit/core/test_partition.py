"""A partition reads and batches every row once per epoch, and goes on from any point.

``Driver`` plays the worker: it answers reads from a table that stands for the data, and keeps
the payload of chunks only for as long as the machine needs it.
"""

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.bucket import Buckets
from headrace_server.core.class_queues import ClassQueues
from headrace_server.core.partition import TURN_BITS, VERSION, Partition, Rest
from headrace_server.core.plain_batches import PlainBatches
from headrace_server.core.plan import Draft, Part, Plan, Read
from tests.examples import some

from .drafts import size_of

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


def test_the_later_read_is_the_one_that_comes_next_and_changes_nothing():
    machine = Partition(PlainBatches(4, False), 0, 1)
    for start in (0, 3):
        later = machine.later_read(3)
        assert later == machine.later_read(3)
        read = machine.next_step(3)
        assert read == later and read.position == start
        assert machine.later_read(3) is None  # it is being read
        machine.arrived(read, 3, start + 3 if start < 3 else None)
    assert machine.later_read(3) is None


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


def test_batches_run_over_the_end_of_an_epoch():
    driver = Driver(5, batch_size=4, epochs=2, smaller=True).run()
    assert driver.batches[1] == [(0, 4), (1, 0), (1, 1), (1, 2)]
    assert driver.batches[2] == [(1, 3), (1, 4)] and driver.machine.reading()["epoch"] == 2


def test_without_a_number_of_epochs_there_is_no_end():
    driver = Driver(3, batch_size=2, epochs=None).run(steps=100)
    assert driver.stream() == expected(3, 100)[: len(driver.stream())]
    assert driver.machine.next_number == len(driver.batches) > 40


@pytest.mark.parametrize("epochs", [None, 5000])
def test_a_partition_without_rows_ends_though_it_is_repeated(epochs):
    assert Driver(0, epochs=epochs).run(steps=5000).batches == {}
    driver = Driver(4, epochs=epochs, drops=lambda e, i: True).run(steps=5000)
    assert driver.batches == {} and not driver.step()
    assert driver.machine.hopeless


@pytest.mark.parametrize("across", [True, False])
def test_a_partition_whose_epochs_were_all_read_is_not_hopeless(across):
    driver = Driver(4, epochs=1000, drops=lambda e, i: True, across=across).run(steps=5000)
    assert driver.batches == {} and not driver.step() and not driver.machine.hopeless


@pytest.mark.parametrize("epochs", [None, 40])
def test_an_epoch_that_is_empty_by_chance_is_not_the_end(epochs):
    """Stages may drop all rows of a small partition in one epoch, and not in the next."""
    driver = Driver(2, batch_size=1, epochs=epochs, drops=lambda e, i: e % 13 != 0).run(steps=60)
    assert driver.stream()[:6] == [(0, 0), (0, 1), (13, 0), (13, 1), (26, 0), (26, 1)]


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


@pytest.mark.parametrize(
    ("shape", "facts"),
    [
        (lambda: Buckets((2, 3, 2)), lambda rows: {"bucket": rows % 3}),
        (lambda: Buckets((2, 3, 2), True), lambda rows: {"bucket": rows % 3}),
        (
            lambda: Buckets((None,), True, max_padded_elements=9),
            lambda rows: {"bucket": rows * 0, "length": rows},
        ),
        (lambda: ClassQueues(2, [0.5, 0.5], 3), lambda rows: {"label": rows % 2}),
    ],
    ids=["buckets", "small buckets", "a budget", "classes"],
)
@pytest.mark.parametrize("limit", [3, 20])
def test_every_shape_ends_with_the_epoch_and_begins_with_the_next(shape, facts, limit):
    def epochs(count):
        """By epoch the rows of each batch."""
        machine = Partition(shape(), 0, count, across_batches=False)
        batches = [[] for _ in range(count)]
        epoch_of = {}
        while (step := machine.next_step(limit)) is not None:
            if isinstance(step, Read):
                stop = min(step.position + limit, 17)
                rows = np.arange(step.position, stop)
                epoch_of[step.chunk] = step.epoch, rows
                machine.arrived(step, len(rows), stop if stop < 17 else None, facts(rows))
            else:
                parts = step.draft.parts
                (epoch,) = {epoch_of[part.chunk][0] for part in parts}
                of_parts = [epoch_of[part.chunk][1][part.rows] for part in parts]
                batches[epoch].append(np.concatenate(of_parts).tolist())
        return batches, machine.dropped()

    (first,), dropped = epochs(1)
    three, dropped_of_three = epochs(3)
    assert three[0] == first and all(three)
    seen = [sorted(row for rows in batches for row in rows) for batches in three]
    assert all(len(set(rows)) == len(rows) for rows in seen), "no row comes twice in an epoch"
    assert sum(map(len, seen)) + sum(dropped_of_three.values()) == 3 * 17
    if not dropped:
        assert three == [first] * 3


def test_an_epoch_without_a_batch_counts_as_empty():
    """Rows that can fill no batch would be read and dropped for ever."""
    driver = Driver(3, batch_size=4, epochs=None, across=False).run(steps=2000)
    assert driver.batches == {} and not driver.step() and driver.machine.hopeless
    assert driver.machine.dropped() == {"remainder": 3000}


def test_a_closed_partition_begins_no_other_epoch_here_or_in_another_worker():
    driver = Driver(6, 4, True, None, (4,), across=False).run(steps=2)
    driver.machine.close()
    state = driver.machine.cursor()
    assert [len(rows) for rows in driver.run().batches.values()] == [4]
    assert driver.restored(state).run().batches == {}


def test_a_partition_that_waits_rests_at_the_border_until_the_next_epoch_is_begun():
    """1. A batch of the epoch is out.  2. It is done.  3. The next epoch is begun."""
    shape = OneByOne(room=9)
    machine = Partition(shape, 0, 2, across_batches=False, waits=True)
    machine.arrived(machine.next_step(9), 1, None)
    shape.wanted = 1
    assert machine.next_step(9).number == 0 and machine.turn_of(0) == 0
    assert machine.next_step(9) is Rest and not machine.at_border
    with pytest.raises(ValueError, match="epoch 0 has not ended, or is the last one"):
        machine.begin_epoch()
    shape.out = 0
    assert machine.next_step(9) is Rest and machine.at_border and machine.epoch == 0
    machine.begin_epoch()
    assert machine.epoch == 1 and shape.ended is None
    assert machine.next_step(9) == Read(1, 1, 0, 9)
    machine.arrived(Read(1, 1, 0, 9), 0, None)
    assert machine.next_step(9) is None and not machine.at_border, "it was the last one"


# The end by order


def test_a_closed_partition_reads_no_more_and_gives_out_what_it_has():
    driver = Driver(100, batch_size=4, smaller=True, limits=(6,)).run(steps=1)
    driver.machine.close()
    driver.run()
    assert [len(b) for b in driver.batches.values()] == [4, 2]
    assert driver.stream() == expected(6, 1)


@pytest.mark.parametrize("cancel", [False, True])
def test_a_closed_partition_does_not_read_the_planned_rows(cancel):
    machine = Partition(PlainBatches(2, True), 0, None)
    machine.arrived(machine.next_step(3), 3, 3)
    assert size_of(machine.next_step(3).draft) == 2
    read = machine.next_step(3)
    machine.close(cancel)
    with pytest.raises(ValueError, match="chunk 1 was not being read"):
        machine.arrived(read, 3, 6)
    if not cancel:
        assert size_of(machine.next_step(3).draft) == 1
    assert machine.next_step(3) is None


@pytest.mark.parametrize("closed_before", [False, True])
def test_a_cancelled_partition_drops_what_it_has(closed_before):
    driver = Driver(100, batch_size=4, smaller=True, limits=(6,)).run(steps=2)
    if closed_before:
        driver.machine.close()
    driver.machine.close(cancel=True)
    driver.run()
    assert driver.stream() == expected(4, 1)
    assert driver.machine.dropped() == {"cancelled": 2}


def test_cancel_drops_the_last_batch_of_an_input_that_has_ended():
    machine = Partition(PlainBatches(2, True), 0, 1)
    machine.arrived(machine.next_step(9), 3, None)
    machine.next_step(9)
    machine.close()
    machine.close(cancel=True)
    assert machine.next_step(9) is None and machine.dropped() == {"cancelled": 1}


# Rest


class OneByOne:
    """A shaper that gives a row when it is asked to, and is through when that was saved."""

    kind = "one by one"

    def __init__(self, room=2):
        self.room = room
        self.rows, self.wanted, self.out = [], 0, 0
        self.ended = None

    @property
    def hungry(self):
        return len(self.rows) < self.room

    @property
    def done(self):
        return not self.rows and not self.out

    def offer(self, chunk, rows, facts):
        self.rows += [(chunk, row) for row in range(rows)]

    def finish(self, drop=False):
        self.ended = "dropped" if drop else "finished"
        if drop:
            self.rows.clear()

    def begin_epoch(self, epoch):
        self.ended = None

    def next_draft(self):
        if not self.wanted or not self.rows:
            return None
        self.wanted -= 1
        self.out += 1
        return self.rows.pop(0)

    def chunks(self):
        return {chunk for chunk, _ in self.rows}


def test_a_partition_reads_while_its_shape_is_hungry_and_rests_until_it_is_asked():
    shape = OneByOne(room=3)
    machine = Partition(shape, 0, None)
    for position in (0, 2):
        machine.arrived(machine.next_step(2), 2, position + 2)
    assert [machine.next_step(2) for _ in range(3)] == [Rest] * 3
    shape.wanted = 3
    plans = [machine.next_step(2) for _ in range(3)]
    assert [plan.number for plan in plans] == [0, 1, 2]
    assert [plan.draft for plan in plans] == [(0, 0), (0, 1), (1, 0)]
    assert machine.next_step(2) == Read(2, 0, 4, 2)
    assert machine.chunks() == {1}


def test_the_input_has_ended_before_the_end_while_the_shape_is_not_through():
    shape = OneByOne(room=9)
    machine = Partition(shape, 0)
    machine.arrived(machine.next_step(9), 1, None)
    assert shape.ended is None
    assert machine.next_step(9) is Rest and shape.ended == "finished"
    shape.wanted = 1
    assert machine.next_step(9).draft == (0, 0)
    assert machine.next_step(9) is Rest, "a batch is out"
    shape.out = 0
    assert machine.next_step(9) is None and machine.next_step(9) is None


@pytest.mark.parametrize(("cancel", "ended"), [(False, "finished"), (True, "dropped")])
def test_a_partition_that_rests_is_closed_and_ends_when_its_shape_is_through(cancel, ended):
    shape = OneByOne()
    machine = Partition(shape, 0, None)
    machine.arrived(machine.next_step(3), 3, 3)
    shape.wanted = 1
    assert machine.next_step(3).number == 0 and machine.next_step(3) is Rest
    machine.close(cancel)
    assert machine.next_step(3) is Rest and shape.ended == ended
    shape.wanted = 9
    if not cancel:
        assert [machine.next_step(3).draft for _ in range(2)] == [(0, 1), (0, 2)]
    assert machine.next_step(3) is Rest
    shape.out = 0
    assert machine.next_step(3) is None


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


def test_a_cursor_with_a_plan_that_is_held_back_goes_on_with_that_one():
    driver = Driver(20, batch_size=4, limits=(10,)).run(steps=2)
    held = driver.machine.next_step(10)
    assert isinstance(held, Plan) and held.number == 1
    assert driver.machine.first_number == 2
    driver.machine.held = held
    state = driver.machine.cursor()
    assert driver.machine.first_number == 1
    other = driver.restored(state)
    assert other.machine.first_number == 1 and other.machine.next_number == 2
    assert other.run().stream() == expected(20, 1)[4:]


def test_a_read_that_failed_is_the_next_one_again():
    driver = Driver(20, batch_size=4, limits=(10,))
    read = driver.machine.next_step(10)
    driver.machine.failed()
    assert driver.restored(driver.machine.cursor()).run().stream() == expected(20, 1)
    assert driver.machine.next_step(10) == read


def test_a_closed_partition_stays_closed_in_another_worker():
    driver = Driver(100, batch_size=4, smaller=True, epochs=None, limits=(6,)).run(steps=1)
    driver.machine.close()
    other = driver.restored(driver.machine.cursor())
    assert other.run(steps=20).stream() == expected(6, 1)


def test_an_empty_epoch_more_or_less_is_remembered_by_the_cursor():
    driver = Driver(3, epochs=None, drops=lambda e, i: True).run(steps=900)
    other = driver.restored(driver.machine.cursor()).run(steps=101)
    assert not other.step() and other.machine.reading()["epoch"] == 1000


def test_rows_of_an_epoch_are_remembered_by_the_cursor():
    """A worker that dies in every epoch, after its only row, does not make epochs look empty."""
    driver = Driver(4, batch_size=1, epochs=None, limits=(2,), drops=lambda e, i: i != 0)
    for epoch in range(1002):
        driver.run(steps=2 if epoch == 0 else 3)
        assert driver.stream()[-1] == (epoch, 0)
        driver = driver.restored(driver.machine.cursor())


def test_a_used_machine_takes_over_a_restored_state():
    driver = Driver(30, batch_size=4, limits=(7,)).run(steps=5)
    state = driver.machine.cursor()
    rest = driver.restored(state).run().batches
    used = Driver(30, batch_size=4, limits=(7,)).run()
    used.machine.close(cancel=True)
    used.batches, used.chunks = {}, {}
    for read in used.machine.restore(state):
        used.chunks[read.chunk] = used.rows(read)[0]
    assert used.run().batches == rest


def test_a_cursor_stays_small_however_long_the_run():
    driver = Driver(10**6, batch_size=32, epochs=None, limits=(48,)).run(steps=3000)
    assert len(driver.batches) > 1500
    assert len(msgpack.packb(driver.machine.cursor())) < 300
    assert driver.most_chunks == 1


def test_rows_that_are_other_than_neighbours_survive_a_cursor():
    part = Part(3, np.array([5, 1, 9]))
    again = Part.from_plain(msgpack.unpackb(msgpack.packb(part.to_plain())))
    assert again.chunk == 3 and again.rows.tolist() == [5, 1, 9]
    assert Part.from_plain(Part(3, slice(2, 6)).to_plain()).rows == slice(2, 6)
    plan = Plan(7, Draft((part, Part(4, slice(2, 6))), {"bucket": 1}))
    assert size_of(plan.draft) == 7


# What is refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", VERSION + 1),
        ("shape", "bucket"),
        ("epoch", "1"),
        ("epoch_rows", None),
        ("empty_epochs", 0.5),
        ("next_chunk", True),
        ("next_number", None),
        ("first_of_epoch", "0"),
        ("finished", 0),
        ("closed", None),
        ("reads", 3),
        ("held", 1),
        ("shaper", None),
        ("position", ...),
    ],
)
def test_a_state_that_can_not_be_honoured_is_refused_by_its_field_and_changes_nothing(name, value):
    driver = Driver(30, batch_size=4, limits=(7,)).run(steps=5)
    good = driver.machine.cursor()
    machine = driver.new()
    machine.restore(good)
    bad = dict(good)
    if value is not ...:
        bad[name] = value
        with pytest.raises(ValueError, match=name):
            machine.restore(bad)
    del bad[name]
    with pytest.raises(ValueError, match=f"the state of a partition lacks its field '{name}'"):
        machine.restore(bad)
    assert machine.cursor() == good


def test_the_refusal_of_a_changed_shape_names_both_and_changes_nothing():
    state = Driver(30, batch_size=5, limits=(7,)).run(steps=5).machine.cursor()
    driver = Driver(30, batch_size=4, limits=(7,)).run(steps=5)
    before = driver.machine.cursor()
    with pytest.raises(ValueError, match="batch_size=5, the pipeline has batch_size=4"):
        driver.machine.restore(state)
    assert driver.machine.cursor() == before
    with pytest.raises(ValueError, match="of a partition has version 9; this release reads 2"):
        driver.machine.restore({**state, "version": 9})
    with pytest.raises(ValueError, match="of shape 'bucket', the pipeline of 'batch'"):
        driver.machine.restore({**state, "shape": "bucket"})


def test_events_out_of_turn_are_refused_and_change_nothing():
    machine = Partition(PlainBatches(2), 0, 1)
    read = machine.next_step(4)
    with pytest.raises(
        ValueError, match=r"chunk 0 is being read.*: the partition is reading, in epoch 0, plan 0"
    ):
        machine.next_step(4)
    again = Partition(PlainBatches(2), 0, 1)
    again.restore(machine.cursor())
    assert again.next_step(4) == read, "a cursor is that before the read"
    with pytest.raises(ValueError, match="chunk 1 was not being read"):
        machine.arrived(Read(1, 0, 0, 4), 4, None)
    with pytest.raises(ValueError, match="chunk 0 was not being read"):
        machine.arrived(Read(0, 0, 0, 5), 4, None)
    machine.arrived(read, 4, None)
    with pytest.raises(ValueError, match="chunk 0 was not being read"):
        machine.arrived(read, 4, None)
    assert [machine.next_step(4).number for _ in range(2)] == [0, 1]


def test_the_input_goes_on_from_where_it_stood_before_a_read_in_chunks_of_later_numbers():
    first = Partition(OneByOne(room=9), 0, 2)
    first.arrived(first.next_step(4), 4, None)
    before = first.reading()
    assert before == {"epoch": 1, "epoch_rows": 0, "empty_epochs": 0, "position": 0}
    other = Partition(OneByOne(room=9), 0, 2)
    other.resume_reading(before, 7)
    read = other.next_step(4)
    assert read == Read(7, 1, 0, 4)
    assert other.reading() == before, "it is that before the read that is under way"
    other.arrived(read, 2, None)
    assert other.take_number() == 0 and other.next_number == 1
    with pytest.raises(ValueError, match="lacks"):
        other.resume_reading({"epoch": 1}, 7)


def test_it_reads_on_though_nothing_is_wanted_while_there_is_room_and_input():
    machine = Partition(OneByOne(room=3), 0)
    read = machine.next_read(2)
    assert read == Read(0, 0, 0, 2)
    machine.arrived(read, 2, 2)
    machine.arrived(machine.next_read(2), 2, 4)
    assert machine.next_read(2) is None, "there is no room"
    machine = Partition(OneByOne(room=9), 0)
    machine.arrived(machine.next_read(2), 2, None)
    assert machine.next_read(2) is None, "there is no more"


def test_the_next_epoch_is_that_of_the_rows_that_wait() -> None:
    machine = Partition(PlainBatches(2, True), 0, 2)
    seen = []
    while (step := machine.next_step(5)) is not None:
        if isinstance(step, Read):
            machine.arrived(step, 3, None)  # all of an epoch
        else:
            seen.append(machine.next_epoch)
    assert seen == [0, 1, 2], "the second batch has the first row of the second epoch"
