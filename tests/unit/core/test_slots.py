"""A slot stays where it is while its example is on the way, and a key is in flight once."""

import numpy as np
import pytest

from headrace_server.core.slots import Slots
from headrace_server.core.stored_state import INDEX
from tests.unit.changes import begun


class Counting(Slots):
    counters = (*Slots.counters, "done")

    done: np.ndarray


def entered(slots, keys, chunk=0, counts=None, index=0, line=0):
    """Examples with these keys, one after the other."""
    n = len(keys)
    assert all(slots.reserve(key, line + row) for row, key in enumerate(keys))
    counts = np.ones(n, np.int64) if counts is None else np.array(counts)
    columns = slots.columns(chunk, counts, line)
    columns[INDEX] = range(index, index + n)
    return slots.enter(columns, list(keys))


def earlier(keys, lines):
    n = len(keys)
    zeros, ones = np.zeros(n, np.int64), np.ones(n, np.int64)
    return begun(zeros, np.arange(n), 3 * ones, ones, np.arange(n), np.array(lines), list(keys))


def test_a_batch_has_of_each_slot_the_values_of_all_tables():
    slots = Slots(4)
    first = entered(slots, "ab", chunk=7, counts=[2, 1], index=5, line=30)
    slots.segment[first] += [1, 0]
    lanes, starts = np.array([3, 0]), np.array([1])
    batch = slots.segments(first, 9, lanes, starts)
    assert batch.chunks.tolist() == [7, 7] and batch.rows.tolist() == [0, 1]
    assert batch.counts.tolist() == [2, 1] and batch.segments.tolist() == [1, 0]
    assert batch.indices.tolist() == [5, 6] and batch.lines.tolist() == [30, 31]
    assert batch.last.tolist() == [True, True] and len(batch) == 2
    assert (batch.stripe, batch.lanes is lanes, batch.starts is starts) == (9, True, True)


def test_tables_grow_under_examples_that_are_there_and_at_least_double():
    slots = Counting(2)
    first = entered(slots, "ab", counts=[2, 3])
    slots.done[first] = [1, 2]
    third = entered(slots, "c", chunk=1)
    assert slots.size == 4 and slots.live == 3
    many = entered(slots, range(50), chunk=2)
    assert slots.size == 53 and slots.live == 53
    assert slots.count[first].tolist() == [2, 3] and slots.done[first].tolist() == [1, 2]
    assert len({*first.tolist(), *third.tolist(), *many.tolist()}) == 53


def test_a_slot_is_used_again_and_its_counters_begin_anew():
    slots = Counting(1)
    first = entered(slots, "a")
    slots.done[first] = slots.segment[first] = 5
    slots.land(first)
    slots.free(first)
    assert slots.live == 0
    again = entered(slots, "b", chunk=1)
    assert again.tolist() == first.tolist() and slots.size == 1
    assert slots.done[again].tolist() == slots.segment[again].tolist() == [0]
    assert slots.key_of(int(again[0])) == "b" and slots.keys_of(again[:1]) == ["b"]


def test_a_key_is_in_flight_from_when_it_is_reserved_until_it_lands():
    slots = Slots(4)
    assert slots.reserve("a", 0) and not slots.reserve("a", 1)
    first = slots.enter(slots.columns(0, np.array([2]), 0), ["a"])
    assert not slots.reserve("a", 9)
    slots.land(first)
    assert slots.reserve("a", 9) and slots.key_of(int(first[0])) == "a"


def test_a_key_that_another_example_has_meanwhile_stays_that_ones():
    slots = Slots(4)
    first = entered(slots, "ab")
    slots.land(first)
    second = entered(slots, "a", chunk=1)
    slots.reenter(first)
    assert not slots.reserve("b", 9), "b is in flight again"
    slots.land(first)
    assert not slots.reserve("a", 9) and slots.reserve("b", 9)
    slots.land(second)
    assert slots.reserve("a", 9)


@pytest.mark.parametrize("line", [4, 5, 6])
def test_an_example_that_was_begun_does_not_refuse_one_that_came_before_it(line):
    slots = Slots(4)
    resumed = slots.resume(earlier("a", [5]))
    assert slots.segment[resumed].tolist() == [1] and slots.count[resumed].tolist() == [3]
    assert slots.reserve("a", line) == (line < 5)


def test_a_twin_in_one_chunk_is_refused_after_a_resumption_too():
    slots = Slots(1)
    slots.resume(earlier("a", [5]))
    assert slots.reserve("a", 3) and not slots.reserve("a", 4)


def test_examples_are_found_by_insertion_index_while_they_are_there():
    slots = Slots(4)
    first = entered(slots, "abc", index=10)
    assert slots.find(np.array([12, 10, 13])).tolist() == [first[2], first[0], -1]
    slots.land(first[:1])
    slots.free(first[:1])
    assert slots.find(np.array([10, 11])).tolist() == [-1, first[1]]


def test_keys_are_new_where_they_differ_and_none_is_in_flight():
    slots = Slots(4)
    first = entered(slots, "ab")
    assert slots.are_new(["c", "d"]) and not slots.are_new(["c", "c"])
    assert not slots.are_new(["c", "a"])
    slots.land(first)
    assert slots.are_new(["a", "b"])


def test_a_batch_that_was_expected_is_the_one_that_comes():
    slots = Slots(4)
    first = entered(slots, "ab", counts=[3, 3])
    expected = slots.expected(first, np.array([1, 0]))
    slots.segment[first] += [1, 0]
    assert slots.segments(first) is expected
    assert slots.segments(first) is not expected, "it comes once"
    expected = slots.expected(first, 1)
    assert slots.segments(first) is not expected, "other segments came"
