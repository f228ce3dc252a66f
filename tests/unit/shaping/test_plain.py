"""A plain partition gives every row once, to anyone or in rounds of ranks, whatever dies."""

import random
from collections import Counter
from copy import copy
from dataclasses import replace

import pytest

from headrace_server.leasing.protocol import ANYONE, Outlook
from headrace_server.shaping.plain import TOO_LATE, Stored
from tests.examples import some
from tests.plain_partition import FOREVER, PlainPartition, orders_before, rows_in


class Story:
    """A partition through several lives, with trainers that hold batches."""

    def __init__(self, rng, **options):
        self.rng, self.options = rng, options
        self.stored = Stored()
        self.tail = []  # records of this life that are not stored
        self.away = []  # batches of trainers that have not greeted this life
        self.begin(())
        self.trained = Counter()  # rows
        self.committed = {}  # by number: the batch
        self.content = {}  # place, turn and slot of all batches that trainers got

    def begin(self, held):
        """Begin a life; trainers claim what they hold."""
        self.partition = PlainPartition(3, self.stored, **self.options)
        self.waiting = []
        self.held = []
        for batch in held:
            self.claim(batch)

    def claim(self, batch):
        bare = copy(batch)
        bare.body = None
        if self.partition.reclaim(bare):
            self.held.append(bare)

    def make(self, slot=ANYONE, epoch=FOREVER):
        made = self.partition.make(slot, epoch)
        if not isinstance(made, list):
            return made
        for batch in made:
            rows = rows_in(batch)
            assert batch.rows == len(rows) and batch.epoch == rows[0][0]
            if self.options.get("buckets", 1) > 1:
                kinds = {row * row % self.options["buckets"] for _, row in rows}
                assert kinds == {batch.bucket}
            self.waiting.append(batch)
        return made

    def take(self, batch):
        self.waiting.remove(batch)
        self.held.append(batch)
        name = batch.number, orders_before(batch)
        known = self.content.setdefault(name, (batch.place, batch.turn, batch.slot))
        assert known[0] == batch.place, "a number names the same rows in each life"
        if self.partition.world:
            assert known[1:] == (batch.turn, batch.slot), "a round stays as it was"

    def commit(self, batch):
        self.held.remove(batch)
        assert self.partition.commit(batch, 1, None) is None
        assert batch.number not in self.committed
        self.committed[batch.number] = batch
        self.tail += self.partition.take_records()

    def give_back(self, batch):
        self.held.remove(batch)
        if self.partition.returned(batch):
            self.waiting.append(batch)

    def store(self):
        self.tail += self.partition.take_records()
        for record in self.tail:
            self.stored.fold(*record)
        self.tail = []

    def kill(self):
        """Kill the life, with what was not stored, and some trainers; others are late."""
        fate = {"there": [], "late": self.away, "dead": []}
        for batch in self.held:
            self.rng.choice([*fate.values()]).append(batch)
        held = fate["there"]
        lost = [record[1] for record in self.tail if record[0] == "done"]
        for number in lost:  # their trainers have no answer: they commit again, or are dead, too
            batch = self.committed.pop(number, None)
            if batch is not None and self.rng.random() < 0.5:
                held.append(batch)
        self.tail = []
        self.begin(held)

    def act(self):
        """Do one thing at random; return False where nothing is left to do."""
        rng = self.rng
        kind = rng.choices(
            ["make", "take", "commit", "return", "store", "late", "kill"], [9, 9, 9, 1, 4, 1, 1]
        )[0]
        if kind == "make":
            made = self.make()
            return made is not Outlook.ENDED or bool(self.waiting or self.held)
        if kind == "take" and self.waiting:
            self.take(min(self.waiting, key=lambda batch: batch.turn))
        elif kind == "commit" and self.held:
            self.commit(rng.choice(self.held))
        elif kind == "return" and self.held:
            self.give_back(rng.choice(self.held))
        elif kind == "store":
            self.store()
        elif kind == "late" and self.away:
            self.claim(self.away.pop())
        elif kind == "kill":
            self.kill()
        return True

    def deal(self, run, world):
        """Begin a run; nobody of the one before is left."""
        self.waiting = self.partition.deal(run, world)
        self.held, self.away = [], []
        self.content = {n: c for n, c in self.content.items() if n[0] in self.committed}
        self.store()

    def check_rounds(self, before, world):
        """Check the rounds of what was committed but ``before``."""
        rounds = {}
        for number, batch in self.committed.items():
            if number not in before:
                rounds.setdefault(batch.turn, {})[batch.slot] = batch
        for (epoch, _), members in rounds.items():
            assert sorted(members) == [*range(world)]
            assert len({batch.bucket for batch in members.values()}) == 1
            if not self.options["across"]:
                assert {batch.epoch for batch in members.values()} == {epoch}
        for epoch in {epoch for epoch, _ in rounds}:
            of_epoch = sorted(at for e, at in rounds if e == epoch)
            assert of_epoch == [*range(len(of_epoch))]

    def run(self):
        while self.act():
            pass
        self.store()


def drawn(seed):
    """Return a source of chance, and options."""
    rng = random.Random(seed)
    return rng, {
        "rows": rng.randint(0, 40),
        "size": rng.randint(1, 6),
        "buckets": rng.randint(1, 3),
        "epochs": rng.randint(1, 3),
        "across": rng.random() < 0.5,
        "limit": rng.randint(1, 9),
    }


def seeds(count, *found):
    """Try so many stories, and those that have found a planted bug that others do not."""
    return pytest.mark.parametrize("seed", [*range(some(count)), *found])


@seeds(200)
def test_every_row_is_trained_once_whatever_is_killed(seed):
    _, options = drawn(seed)
    story = Story(random.Random(seed), **options)
    story.run()
    trained = Counter(row for batch in story.committed.values() for row in rows_in(batch))
    rows = ((e, i) for e in range(options["epochs"]) for i in range(options["rows"]))
    assert trained == Counter(rows)
    assert sorted(story.committed) == [*range(len(story.committed))]
    assert story.partition.finished
    # a later life has nothing to do but to find that out
    story.begin(())
    while isinstance(made := story.make(), list):
        assert made == []
    assert made is Outlook.ENDED


@seeds(300, 5278, 5385)
def test_rounds_of_ranks_are_whole_and_stay_as_they_were(seed):
    rng, options = drawn(seed)
    worlds = [rng.randint(0, 4) for _ in range(rng.randint(1, 3))]
    rng = random.Random(seed)
    story, before = Story(rng, **options), {}
    for run, world in enumerate(worlds):
        for _ in range(rng.randrange(40)):  # trainers of another run come first
            story.act()
        before = {*story.committed}
        story.deal(run * (seed % 2), world)  # else runs have no names
    story.run()
    if world:
        story.check_rounds(before, world)
    rows = Counter(row for batch in story.committed.values() for row in rows_in(batch))
    assert not rows or max(rows.values()) == 1
    ends = 1 if options["across"] else options["epochs"]
    left = options["rows"] * options["epochs"] - rows.total()
    assert left <= ends * options["buckets"] * (max(1, *worlds) - 1) * options["size"]


@seeds(300, 5011, 5583)
def test_an_order_changes_no_batch_that_trainers_may_have(seed):
    rng, options = drawn(seed)
    for _ in range(rng.randint(1, 3)):
        rng.randint(0, 4)
    world, rng = rng.randint(0, 3), random.Random(seed)
    story = Story(rng, **options)
    if world:
        story.deal(1, world)
    for _ in range(rng.randrange(1, 4)):
        for _ in range(rng.randrange(60)):
            story.act()
        story.store()
        sizes = [rng.randint(1, 6)] * options["buckets"]
        what = ("close", False) if rng.random() < 0.5 else ("batch_size", sizes)
        try:
            order = story.partition.propose(what)
        except ValueError:
            break  # all are made
        story.store()
        if rng.random() < 0.3:
            story.kill()  # the next life carries it out
        else:
            story.partition.apply(order)
    story.run()
    trained = Counter(row for batch in story.committed.values() for row in rows_in(batch))
    assert not trained or max(trained.values()) == 1
    if world:
        story.check_rounds((), world)


def test_an_incomplete_round_counts_as_done_once_all_others_do_and_its_memory_is_free():
    partition = PlainPartition(0, rows=10, size=2)
    made = []
    while isinstance(step := partition.make(), list):
        made += step
    assert [batch.number for batch in made] == [0, 1, 2, 3, 4]
    out = partition.deal(1, 2)
    assert [(batch.slot, batch.turn) for batch in out] == [
        (0, (0, 0)), (1, (0, 0)), (0, (0, 1)), (1, (0, 1))
    ]  # fmt: skip
    assert partition.gone == []
    assert partition.make(0, FOREVER) is Outlook.IDLE
    for batch in out:
        assert partition.gone == []
        assert not partition.commit(batch, 7 + batch.number, None)
    assert partition.gone == [made[4]] and partition.machine.left_out == 2
    assert ("done", 4) in partition.take_records()


def test_a_round_of_an_epoch_that_is_over_is_left_out_when_a_run_begins():
    partition = PlainPartition(0, rows=6, size=2, epochs=2, across=False)
    made = []
    while len(made) < 5:
        made += partition.make()
    out = partition.deal(1, 2)
    assert [(batch.number, batch.turn) for batch in out] == [
        (0, (0, 0)), (1, (0, 0)), (3, (1, 0)), (4, (1, 0))
    ]  # fmt: skip
    assert not partition.commit(out[0], 7, None)
    assert partition.gone == []
    assert not partition.commit(out[1], 8, None)
    assert partition.gone == [made[2]]


def test_what_one_run_has_made_ahead_and_left_out_another_one_gets():
    partition = PlainPartition(0, rows=12, size=2)
    partition.deal(1, 4)
    made = []
    while isinstance(step := partition.make(0, FOREVER), list):
        made += step
    assert len(made) == 4
    again = partition.deal(2, 3)
    while isinstance(step := partition.make(0, FOREVER), list):
        again += step
    assert [batch.number for batch in again] == [0, 1, 2, 3, 4, 5]


def test_a_new_run_begins_with_round_0_of_what_is_left():
    partition = PlainPartition(0, rows=12, size=2)
    first = partition.deal(1, 2)
    while len(first) < 4:
        first += partition.make(0, FOREVER)
    partition.commit(first[1], 1, None)
    assert partition.next_turn(0) == (0, 2) and partition.next_turn(1) == (0, 2)
    out = partition.deal(1, 3)
    assert [(b.number, b.slot, b.turn) for b in out] == [
        (0, 0, (0, 0)), (2, 1, (0, 0)), (3, 2, (0, 0))
    ]  # fmt: skip
    assert partition.next_turn(2) == (0, 1)
    stored = Stored()
    partition.commit(out[0], 1, None)
    for record in partition.take_records():
        stored.fold(*record)
    again = PlainPartition(0, stored, rows=12, size=2)
    assert [again.next_turn(rank) for rank in range(3)] == [(0, 1), (0, 0), (0, 0)]
    out = partition.deal(2, 0)
    assert [(b.number, b.slot, b.turn[1]) for b in out] == [(n, ANYONE, n) for n in (2, 3)]


def test_a_rank_that_commits_an_earlier_round_last_goes_on_after_the_later_one():
    stored, made = Stored(), []
    partition = PlainPartition(0, rows=12, size=2)
    partition.deal(1, 1)
    while len(made) < 3:
        made += partition.make(0, FOREVER)
    for batch in (made[2], made[0]):
        partition.commit(batch, 1, None)
    for record in partition.take_records():
        stored.fold(*record)
    assert PlainPartition(0, stored, rows=12, size=2).next_turn(0) == (0, 3)


def test_a_claimed_batch_that_comes_back_is_made_again():
    stored = Stored()
    held = PlainPartition(0, stored, rows=6, size=2)
    batches = []
    while len(batches) < 2:
        batches += held.make()
    partition = PlainPartition(0, stored, rows=6, size=2)
    for batch in batches:
        batch.body = None
        assert partition.reclaim(batch) and not partition.reclaim(batch)
    assert not partition.returned(batches[1]), "it is not made yet, and comes in its turn"
    made = []
    while len(made) < 1:
        made += partition.make()
    assert [batch.number for batch in made] == [1]
    assert not partition.returned(batches[0])
    assert partition.next_turn(ANYONE) == (0, 0) and not partition.finished
    assert [rows_in(batch) for batch in partition.make()] == [rows_in(batches[0])]
    assert not partition.reclaim(batches[0]), "it waits for another trainer"


def test_a_request_for_an_earlier_epoch_is_over_and_one_at_the_end_idle_until_all_is_committed():
    partition = PlainPartition(0, rows=2, size=2, epochs=2, across=False)
    batches = []
    while len(batches) < 2:
        batches += partition.make()
    assert [batch.turn for batch in batches] == [(0, 0), (1, 0)]
    assert partition.make(ANYONE, 0) is Outlook.OVER
    assert partition.make(ANYONE, 1) is Outlook.IDLE
    for batch in batches:
        partition.commit(batch, 1, None)
    assert partition.make(ANYONE, 1) is Outlook.ENDED


def test_an_order_that_is_stored_and_not_carried_out_is_carried_out_by_the_next_life():
    stored = Stored()
    partition = PlainPartition(0, stored, rows=9, size=2, limit=2)
    made = []
    while len(made) < 2:
        made += partition.make()
    order = partition.propose(("close", False))
    assert order.since == 2
    for record in partition.take_records():
        stored.fold(*record)
    again = PlainPartition(0, stored, rows=9, size=2, limit=3)
    made = []
    while isinstance(step := again.make(), list):
        made += step
    assert [rows_in(batch) for batch in made] == [[(0, 0), (0, 1)], [(0, 2), (0, 3)]]
    assert again.propose(("close", False)) == order, "it was given before"
    with pytest.raises(ValueError, match=TOO_LATE):
        again.propose(("batch_size", [3]))


def test_an_order_waits_for_no_batch_that_no_earlier_life_has_made():
    """So a drained feed reads nothing more, also where all that was made is committed."""
    partition = PlainPartition(0, rows=9, size=2)
    assert partition.propose(("close", False)).read == 0
    stored = Stored()
    partition = PlainPartition(0, stored, rows=9, size=2)
    made = []
    while len(made) < 2:
        made += partition.make()
    for batch in made:
        partition.commit(batch, 1, None)
    read = partition.machine.input.rows
    order = partition.propose(("close", False))
    assert (order.read, order.number) == (read, len(made))


def test_a_batch_beyond_the_end_is_not_reclaimed():
    partition = PlainPartition(0, rows=4, size=2)
    made = []
    while isinstance(step := partition.make(), list):
        made += step
    assert not partition.reclaim(replace(made[-1], number=len(made), body=None))


def test_a_new_deal_gives_batches_in_their_order_also_where_one_is_made_again():
    stored = Stored()
    held = PlainPartition(0, stored, rows=8, size=2)
    before = []
    while len(before) < 2:
        before += held.make()
    partition = PlainPartition(0, stored, rows=8, size=2)
    assert partition.reclaim(before[1])
    made = []
    while len(made) < 3:
        made += partition.make()
    assert [batch.number for batch in made] == [0, 2, 3]
    out = partition.deal(1, 1)
    assert [(batch.number, batch.turn) for batch in out] == [(0, (0, 0))]
    again = partition.make(0, FOREVER)
    assert [(b.number, b.turn) for b in again] == [(1, (0, 1)), (2, (0, 2)), (3, (0, 3))]
