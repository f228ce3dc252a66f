"""Rounds and orders of a plain partition by hand; the simulated world shows that no row is lost."""

import pytest

from headrace_server.leasing.words import ANYONE, Batch, Outlook
from headrace_server.shaping.plain import TOO_LATE, Stored
from tests.plain_partition import FOREVER, PlainPartition, rows_in


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


def test_a_rank_keeps_the_batch_of_a_rare_bucket_whose_round_comes_late():
    """Batch 0 waits for another batch of its bucket, and the new life has not made it again."""
    partition = PlainPartition(0, rows=12, size=2)
    partition.deal(1, 2)
    assert partition.machine.reclaim(Batch(0, 0, 1, (0, 3), 2))
    assert not partition.machine.reclaim(Batch(0, 1, 1, (0, 1 << 20), 2))
    partition = PlainPartition(0, rows=12, size=2)
    assert not partition.machine.reclaim(Batch(0, 0, ANYONE, (0, 3), 2)), "turns are numbers"


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


def test_an_order_that_is_repeated_has_the_place_of_the_first():
    """Its answer was lost; meanwhile the next life has carried it out, and made more batches."""
    partition = PlainPartition(0, rows=20, size=2)
    first = partition.propose(("batch_size", [3]))
    partition.apply(first)
    partition.make()
    stored = Stored()
    for record in partition.take_records():
        stored.fold(*record)
    again = PlainPartition(0, stored, rows=20, size=2)
    made = []
    while not made:
        made += again.make()
    assert again.propose(("batch_size", [3])) == first and first.since == 0
    assert again.propose(("batch_size", [4])).since > 0
    assert again.propose(("batch_size", [3])) != first, "another one came in between"


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
    read = partition.machine.input.read
    order = partition.propose(("close", False))
    assert (order.read, order.number) == (read, len(made))
