"""A partition's rows of a mix: drawn from its shares of the sources, whatever is read at once."""

from __future__ import annotations

from collections import Counter

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.pipeline.declaration import ReadingOrder
from headrace_server.reading.chunk import ORDINAL_BITS, BadRecords, RowsAtHand
from headrace_server.reading.partition_rows import PASS, partition_reader
from headrace_server.reading.source import MixedReader
from tests.unit.reading.test_partition_rows import (
    LIMITS,
    RUN,
    Numbered,
    Streamed,
    rows,
    sources,
    walk,
)


def mix(readers, orders, schedule=None, seed=0, stop="all"):
    names = [f"s{k}" for k in range(len(readers))]
    reader = MixedReader(readers, names, orders, seed, stop)
    reader.schedule = schedule or [[0, [1.0] * len(readers)]]
    return reader


def share(reader, k=0, count=1, bad=None):
    part = partition_reader(reader, ReadingOrder(), k, count, bad)
    part.schedule = reader.schedule
    return part


@st.composite
def mixes(draw, stops=("all", "first")):
    """Sources with a number of passes each, and weights that may change."""
    some = draw(st.lists(sources(), min_size=1, max_size=4))
    orders = [
        ReadingOrder(order.seed, order.window, draw(st.integers(1, 3)), order.reshuffle)
        for _, order in some
    ]
    weights = st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=len(some), max_size=len(some))
    schedule = [[0, draw(weights)], [draw(st.integers(1, 60)), draw(weights)]]
    readers = [reader for reader, _ in some]
    return mix(readers, orders, schedule, draw(st.integers(0, 9)), draw(st.sampled_from(stops)))


def _plain(position):
    return msgpack.unpackb(msgpack.packb(position))


def wanted(reader):
    """How often each example of a mix comes that goes on to the end of all sources."""
    found = Counter()
    for own, order, first in zip(reader.readers, reader.orders, reader.starts, strict=False):
        if isinstance(own, Numbered):
            ordinals = [n for n in range(own.length) if n not in own.bad]
        else:
            ordinals = own.ordinals()
        for ordinal in ordinals:
            found[ordinal + (first << ORDINAL_BITS)] = order.epochs
    return found


@given(reader=mixes(("all",)), count=st.integers(1, 5), limits=LIMITS)
@RUN
def test_a_mix_to_the_end_of_all_has_every_example_of_every_pass_once(reader, count, limits):
    parts = [row for k in range(count) for row in rows(share(reader, k, count), 0, limits)]
    assert Counter(parts) == wanted(reader)


@given(reader=mixes(), count=st.integers(1, 3), limits=LIMITS, others=LIMITS)
@RUN
def test_rows_depend_neither_on_the_limits_of_reads_nor_on_what_was_read(
    reader, count, limits, others
):
    for k in range(count):
        steps = walk(share(reader, k, count), 1, limits)
        assert [row for _, chunk in steps for row in chunk] == rows(
            share(reader, k, count), 1, others
        )
        for i in range(0, len(steps), max(1, len(steps) // 6)):
            position, limit = steps[i][0], limits[i % len(limits)]
            chunk, after = share(reader, k, count).read(1, position, limit)
            assert chunk.ordinals.tolist() == steps[i][1]
            assert _plain(after) == (steps[i + 1][0] if i + 1 < len(steps) else None)


@given(reader=mixes())
@RUN
def test_the_facts_of_rows_name_their_source_and_pass(reader):
    part = share(reader)
    chunk, _ = part.read(0, part.start, 400)
    streams = chunk.ordinals >> ORDINAL_BITS
    of = np.searchsorted(reader.starts, streams, side="right") - 1
    assert chunk.facts["source"].tolist() == of.tolist()
    seen = Counter()
    for row, turn in zip(chunk.ordinals.tolist(), chunk.facts[PASS].tolist(), strict=True):
        assert turn == seen[row]
        seen[row] += 1


@given(reader=mixes(), limits=LIMITS)
@RUN
def test_each_source_comes_in_the_order_that_it_has_alone(reader, limits):
    got = rows(share(reader), 0, limits)
    for own, order, first, stop in zip(
        reader.readers, reader.orders, reader.starts, reader.starts[1:], strict=False
    ):
        low = first << ORDINAL_BITS
        mine = [row - low for row in got if low <= row < stop << ORDINAL_BITS]
        alone = partition_reader(own, order, 0, 1)
        passes = [row for turn in range(order.epochs) for row in rows(alone, turn)]
        assert mine == passes[: len(mine)]


def test_a_mix_that_stops_at_the_first_end_stops_where_that_source_is_drawn_again():
    reader = mix([Numbered(10), Numbered(1000)], [ReadingOrder(), ReadingOrder()], stop="first")
    endless = mix([Numbered(1000), Numbered(1000)], [ReadingOrder(), ReadingOrder()])
    got, all_of_it = rows(share(reader), 0, [7]), rows(share(endless), 0, [7])
    assert got == all_of_it[: len(got)]
    assert all_of_it[len(got)] == 10  # example 10 of the first, which ``reader`` lacks


def test_a_mix_that_never_stops_goes_through_its_sources_again_in_other_orders():
    orders = [ReadingOrder(seed=1), ReadingOrder()]
    part = share(mix([Numbered(8), Numbered(0)], orders, stop="never"))
    position, passes = part.start, []
    for _ in range(5):
        chunk, position = part.read(0, position, 8)
        passes.append(chunk.ordinals.tolist())
    assert all(sorted(one) == list(range(8)) for one in passes)
    assert len({tuple(one) for one in passes}) == 5


def test_a_mix_of_empty_sources_ends_at_once():
    part = share(mix([Numbered(0), Numbered(3, bad=range(3))], [ReadingOrder()] * 2, stop="never"))
    chunk, after = part.read(0, part.start, 5)
    assert (len(chunk), after) == (0, None)
    assert set(chunk.facts) == {"source", PASS}


def test_a_mix_waits_for_the_source_whose_turn_it_is():
    class Slow(Streamed):
        there = 2

        def ready(self, stream, position, limit):
            return min(limit, self.there - int(position or b"0"))

    slow = Slow([50])
    part = share(mix([slow, Numbered(50)], [ReadingOrder(), ReadingOrder()]))
    n = part.ready(0, part.start, 40)
    chunk, position = part.read(0, part.start, n)
    assert 2 <= len(chunk) == n < 40
    assert Counter(chunk.facts["source"].tolist())[0] == 2
    assert part.ready(0, position, 40) == 0
    slow.there = 50
    assert part.ready(0, position, 40) == 40


def test_rows_that_are_left_out_or_at_hand_have_the_numbers_of_the_mix():
    noted = []
    hand = RowsAtHand(lambda rows, where, epoch, fixed: noted.append((rows.tolist(), where)))
    low = 1 << ORDINAL_BITS
    hand.left_out = {low + 3: (0, "it killed")}
    bad = BadRecords(skip=True, hand=hand)
    reader = mix([Numbered(5), Streamed([5])], [ReadingOrder(), ReadingOrder()])
    part = share(reader, bad=bad)
    chunk, _ = part.read(0, part.start, 20)
    expected = [*range(5), *(low + n for n in range(5) if n != 3)]
    assert sorted(chunk.ordinals.tolist()) == expected
    assert bad.counts == {"killed_worker": 1}
    assert sorted(noted[-1][0]) == expected
    assert any("source 's1'" in where for _, where in noted)


def test_a_source_of_too_many_streams_is_refused():
    class Many(Streamed):
        streams = 1 << 23

    with pytest.raises(ValueError, match="8388608 streams"):
        share(mix([Many([])], [ReadingOrder()]))
