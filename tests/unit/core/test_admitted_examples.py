"""Examples are admitted in order, as capacity lets them; a key is in flight once.

What both orders have in common, shown by the machine of arrival.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.admitted_examples import BEGUN, FIRST_INDEX, PARTITION_BITS, REFUSED
from headrace_server.core.arrival_order import ArrivalOrder
from headrace_server.core.lane_order import LaneOrder
from tests.examples import some

MACHINES = pytest.mark.parametrize("machine_of", [ArrivalOrder, LaneOrder])


def offer(machine, chunk, keys, counts=None):
    counts = [1] * len(keys) if counts is None else counts
    machine.offer(chunk, len(keys), {"key": list(keys), "count": np.array(counts)})


def drafts(machine, n=10**6):
    """Indices of the examples of each batch, all saved at once."""
    machine.want(10**6)
    seen = []
    while len(seen) < n and (batch := machine.next_draft()) is not None:
        seen.append((batch.indices - FIRST_INDEX).tolist())
        machine.saved(batch)
    return seen


# Insertion indices


@MACHINES
@pytest.mark.parametrize("partition", [0, 1, 2, 2**PARTITION_BITS - 1])
def test_insertion_indices_start_at_the_partitions_own_place_and_have_no_gaps(
    machine_of, partition
):
    machine = machine_of(2, partition=partition)
    offer(machine, 0, "ab")
    offer(machine, 1, "acd")
    machine.want(9)
    first = machine.next_draft()
    assert first.indices.dtype == np.int64
    machine.saved(first)
    second = machine.next_draft()
    start = -(2**63) + (partition << 51)
    assert [*first.indices.tolist(), *second.indices.tolist()] == list(range(start, start + 4))
    assert machine.take_refused() == [(1, 0)]


# Capacity


@MACHINES
def test_capacity_lets_examples_in_one_by_one_and_nothing_is_read_meanwhile(machine_of):
    machine = machine_of(2, 3)
    offer(machine, 0, "abcdefg", [2, 1, 1, 1, 1, 1, 1])
    assert machine.in_flight == 3 and not machine.hungry
    machine.want(9)
    batch = machine.next_draft()
    assert machine.in_flight == 3, "b was taken, d came in"
    machine.saved(batch)
    assert drafts(machine) == [[0, 2], [3, 4], [5, 6]]
    assert machine.in_flight == 0 and machine.hungry and machine.chunks() == set()


@MACHINES
def test_an_example_may_wait_until_the_one_before_of_its_key_is_done(machine_of):
    machine = machine_of(1, 2)
    machine.until_done = True
    offer(machine, 0, "abac")
    stripes = (1, 2, 3) if machine_of is LaneOrder else (0,)
    for stripe in stripes:
        machine.want(9, stripe)
    first, second = machine.next_draft(), machine.next_draft()
    machine.saved(second)
    assert machine.next_draft() is None and not machine.hungry, "b is done, and a is not"
    machine.saved(first)
    assert drafts(machine) == [[2], [3]] and machine.take_refused() == []
    assert machine.in_flight == 0 and machine.chunks() == set()


@MACHINES
def test_without_capacity_everything_is_let_in_and_reading_ahead_is_bounded(machine_of):
    machine = machine_of(2)
    offer(machine, 0, range(1023))
    assert machine.hungry and machine.in_flight == 1023
    offer(machine, 1, range(2000, 5000))
    assert not machine.hungry and machine.in_flight == 4023 and machine.slots >= 4023
    assert drafts(machine, 1500)[-1] == [2998, 2999] and machine.hungry
    assert drafts(machine)[-1] == [4020, 4021]


@MACHINES
def test_a_batch_larger_than_what_is_read_ahead_is_still_filled(machine_of):
    machine = machine_of(3000)
    for chunk in range(3):
        assert machine.hungry
        offer(machine, chunk, range(1000 * chunk, 1000 * chunk + 1000))
    assert [len(batch) for batch in drafts(machine)] == [3000]


@MACHINES
def test_tables_grow_under_examples_that_are_out(machine_of):
    machine = machine_of(2)
    offer(machine, 0, "ab", [2, 3])
    machine.want(9)
    batch, before = machine.next_draft(), machine.slots
    offer(machine, 1, range(5 * before))
    assert machine.slots > 5 * before
    assert machine.saved(batch).tolist() == [0, 1]
    again = machine.next_draft()
    assert again.slots.tolist() == batch.slots.tolist() and again.counts.tolist() == [2, 3]
    assert again.segments.tolist() == [1, 1] and again.chunks.tolist() == [0, 0]


@MACHINES
def test_slots_are_used_again_so_that_tables_stay_as_small_as_what_is_in_flight(machine_of):
    machine = machine_of(2, 4)
    for chunk in range(500):
        offer(machine, chunk, (2 * chunk, 2 * chunk + 1), [1, 3])
        drafts(machine)
    assert machine.slots == 4 and machine.in_flight < 4


# Chunks


@MACHINES
def test_empty_chunks_are_nothing(machine_of):
    machine = machine_of(1)
    offer(machine, 0, "")
    assert machine.chunks() == set() and machine.hungry
    offer(machine, 1, "a")
    offer(machine, 2, "")
    assert machine.chunks() == {1} and drafts(machine) == [[0]]
    machine.finish()
    assert machine.done


@MACHINES
def test_a_chunk_is_needed_while_one_of_its_examples_waits_or_has_segments_to_come(machine_of):
    machine = machine_of(1, 1)
    offer(machine, 3, "ab", [1, 2])
    offer(machine, 4, "b")
    assert machine.chunks() == {3, 4}
    assert drafts(machine, 2) == [[0], [1]] and machine.chunks() == {3, 4}
    assert drafts(machine, 1) == [[1]] and machine.chunks() == {4}
    assert drafts(machine) == [[2]] and machine.chunks() == set()


@MACHINES
def test_examples_after_the_end_are_refused_and_change_nothing(machine_of):
    machine = machine_of(1)
    offer(machine, 0, "a")
    machine.finish()
    with pytest.raises(ValueError, match="chunk 1 is offered after the input has ended"):
        offer(machine, 1, "b")
    assert machine.chunks() == {0} and not machine.hungry and not machine.done
    assert drafts(machine) == [[0]] and machine.done


# Keys


@MACHINES
def test_twins_in_one_chunk_are_refused_whole_and_burn_no_index(machine_of):
    machine = machine_of(1)
    offer(machine, 0, "aabab", [2, 9, 1, 9, 9])
    assert machine.take_refused() == [(0, 1), (0, 3), (0, 4)] and machine.take_refused() == []
    assert machine.in_flight == 2
    assert drafts(machine) == [[0], [0], [1]]
    offer(machine, 1, "c")
    assert drafts(machine) == [[2]] and machine.chunks() == set()


@MACHINES
def test_a_chunk_of_keys_in_flight_leaves_nothing_behind(machine_of):
    machine = machine_of(1)
    offer(machine, 0, "ab", [2, 2])
    offer(machine, 1, "ba")
    assert machine.take_refused() == [(1, 0), (1, 1)]
    assert machine.chunks() == {0} and machine.in_flight == 2
    machine.finish()
    assert drafts(machine) == [[0], [0], [1], [1]] and machine.done


@MACHINES
def test_a_key_is_free_when_its_last_segment_is_taken(machine_of):
    machine = machine_of(1)
    machine.want(9)
    offer(machine, 0, "a", [2])
    machine.saved(machine.next_draft())
    offer(machine, 1, "a")
    assert machine.take_refused() == [(1, 0)]
    last = machine.next_draft()
    offer(machine, 2, "a")
    assert machine.take_refused() == [] and machine.in_flight == 1
    assert machine.key_of(last.slots[0]) == "a"
    machine.saved(last)
    assert drafts(machine) == [[1]]


@MACHINES
def test_a_twin_that_waits_for_a_place_is_judged_when_it_comes_in(machine_of):
    machine = machine_of(1, 1)
    offer(machine, 0, "aab", [2, 1, 1])
    assert machine.take_refused() == []
    assert drafts(machine) == [[0], [0], [1], [2]] and machine.take_refused() == []

    machine = machine_of(1, 2)
    offer(machine, 0, "abbc", [2, 1, 1, 1])
    assert drafts(machine) == [[0], [0], [1], [2]] and machine.take_refused() == [(0, 2)]


@MACHINES
def test_the_same_key_in_another_epoch_is_another_key(machine_of):
    machine = machine_of(2)
    offer(machine, 0, [(0, b"a"), (0, b"b"), (1, b"a"), (1, b"b")])
    assert machine.take_refused() == [] and drafts(machine) == [[0, 1], [2, 3]]


@settings(max_examples=some(100), deadline=None, derandomize=True)
@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=4), max_size=8), st.data())
def test_no_two_examples_in_flight_have_one_key(chunks, data):
    machine = ArrivalOrder(1, data.draw(st.none() | st.integers(1, 4)))
    machine.want(10**6)
    seen = []
    for chunk, keys in enumerate(chunks):
        offer(machine, chunk, keys, data.draw(st.lists(st.integers(1, 3), min_size=len(keys))))
        for _ in range(data.draw(st.integers(0, 4))):
            batch = machine.next_draft()
            if batch is not None:
                slot = int(batch.slots[0])
                assert machine.key_of(slot) == chunks[int(batch.chunks[0])][int(batch.rows[0])]
                seen.append(batch)
                machine.saved(batch)
    machine.finish()
    while (batch := machine.next_draft()) is not None:
        seen.append(batch)
        machine.saved(batch)
    refused = set(machine.take_refused())
    began = [(int(b.chunks[0]), int(b.rows[0])) for b in seen if b.segments[0] == 0]
    admitted = {int(b.indices[0]) - FIRST_INDEX for b in seen}
    everything = {(c, r) for c, keys in enumerate(chunks) for r in range(len(keys))}
    assert refused | set(began) == everything and not refused & set(began)
    assert admitted == set(range(len(began))) and began == sorted(began)
    assert machine.done and machine.chunks() == set()


# The end


@MACHINES
def test_a_cancel_counts_no_example_that_an_earlier_process_handled(machine_of):
    machine = machine_of(1, 1)
    counts, marks = np.array([1, 2, 4, 8]), np.array([0, BEGUN, REFUSED, 0], np.int8)
    machine.offer(0, 4, {"key": list("abcd"), "count": counts, "line": 0, "known": marks})
    assert machine.standing()["full"] == 3
    machine.finish(drop=True)
    left = len(drafts(machine))
    assert machine.dropped() == {"cancelled": 9 - left} and machine.chunks() == set()


@MACHINES
def test_examples_that_wait_for_a_place_are_dropped_by_a_cancel_and_else_admitted(machine_of):
    machine = machine_of(1, 2)
    offer(machine, 0, "abcd", [1, 1, 2, 3])
    machine.finish()
    assert not machine.cancelled and not machine.dropped()
    assert drafts(machine, 1) == [[0]]
    machine.finish(drop=True)
    assert machine.cancelled
    given = sum(len(batch) for batch in drafts(machine))
    assert machine.dropped() == {"cancelled": 6 - given}
    machine.finish(drop=True)
    machine.finish()
    assert machine.dropped() == {"cancelled": 6 - given}
    assert machine.done and machine.chunks() == set() and machine.in_flight == 0


@MACHINES
def test_an_input_without_examples_is_done_when_it_ends(machine_of):
    for drop in (False, True):
        machine = machine_of(2)
        assert not machine.done and machine.hungry
        machine.finish(drop)
        assert machine.done and not machine.hungry and machine.dropped() == {}
        assert drafts(machine) == [] and machine.oldest_out() is None
