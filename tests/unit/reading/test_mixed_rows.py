"""Ends, waits and bounds of a mix; the drawn combinations compare its rows with the reference."""

from collections import Counter

from headrace_server.pipeline.declaration import ReadingOrder
from headrace_server.reading.chunk import ORDINAL_BITS, BadRecords, RowsAtHand
from headrace_server.reading.partition_rows import PASS, partition_reader
from headrace_server.reading.source import MixedReader
from tests.unit.reading.test_partition_rows import (
    Numbered,
    Streamed,
)


def mix(readers, orders, stop="all"):
    names = [f"s{k}" for k in range(len(readers))]
    reader = MixedReader(readers, names, orders, 0, stop)
    reader.schedule = [[0, [1.0] * len(readers)]]
    return reader


def share(reader, bad=None):
    part = partition_reader(reader, ReadingOrder(), 0, 1, bad)
    part.schedule = reader.schedule
    return part


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


def test_rows_at_hand_have_the_numbers_of_the_mix():
    noted = []
    hand = RowsAtHand(lambda rows, where, epoch: noted.append((rows.tolist(), where)))
    low = 1 << ORDINAL_BITS
    bad = BadRecords(hand=hand)
    reader = mix([Numbered(5), Streamed([5])], [ReadingOrder(), ReadingOrder()])
    part = share(reader, bad=bad)
    chunk, _ = part.read(0, part.start, 20)
    expected = [*range(5), *(low + n for n in range(5))]
    assert sorted(chunk.ordinals.tolist()) == expected
    assert sorted(noted[-1][0]) == expected
    assert any("source 's1'" in where for _, where in noted)
