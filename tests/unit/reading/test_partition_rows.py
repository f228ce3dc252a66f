"""Each example once per epoch over all partitions, in an order that nothing but the declaration
and the epoch decides: not the limits, not the process, not where reading was taken up again."""

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import ReadingOrder
from headrace_server.reading.chunk import ORDINAL_BITS, Chunk, Origin
from headrace_server.reading.partition_rows import partition_reader
from headrace_server.reading.source import IndexedSource, StreamSource
from tests.examples import some

FIELDS = {"x": Field("int64")}
RUN = settings(max_examples=some(60), deadline=None, derandomize=True)


def chunk_of(file, numbers):
    numbers = np.asarray(numbers, np.int64)
    return Chunk({"x": numbers * 10}, numbers, Origin.single(file, numbers))


class Numbered(IndexedSource):
    """Examples 0 … length-1, less the ``bad`` ones.  Remembers how it was asked."""

    fields = FIELDS

    def __init__(self, length, bad=(), starts=()):
        self.length, self.bad, self.calls = length, list(bad), []
        self.starts = [start for start in sorted({0, *starts}) if start < length]

    def take(self, rows):
        if isinstance(rows, slice):
            self.calls.append(("slice", rows.start, rows.stop))
            return self.good(np.arange(rows.start, rows.stop))
        assert rows.dtype == np.int64
        self.calls.append(("take", len(rows)))
        return self.good(rows)

    def blocks(self, block_bytes):
        return np.array(self.starts, np.int64)

    def good(self, numbers):
        return chunk_of("examples", numbers[~np.isin(numbers, self.bad)])

    def close(self):
        pass


class Streamed(StreamSource):
    """Streams of the given lengths, less the ``bad`` ordinals.  Gives at most ``most`` records at
    a time; says that a stream ends with its last record (``eager``) or with an empty chunk."""

    fields = FIELDS

    def __init__(self, lengths, bad=(), most=7, eager=True):
        self.lengths, self.bad, self.most, self.eager = lengths, list(bad), most, eager
        self.records_read = 0

    @property
    def streams(self):
        return len(self.lengths)

    def read(self, stream, position, limit):
        start = int(position or b"0")
        stop = min(start + min(limit, self.most), self.lengths[stream])
        self.records_read += stop - start
        numbers = np.arange(start, stop)
        chunk = chunk_of(f"file-{stream}", numbers[~np.isin(numbers, self.bad)])
        ended = stop == self.lengths[stream] and (self.eager or start == stop)
        return chunk, None if ended else b"%d" % stop

    def close(self):
        pass

    def ordinals(self):
        return sorted(
            (stream << ORDINAL_BITS) + n
            for stream, length in enumerate(self.lengths)
            for n in range(length)
            if n not in self.bad
        )


def walk(part, epoch=0, limits=(5,)):
    """All chunks of an epoch as lists of ordinals, each with the position before it."""
    position, steps = part.start, []
    while position is not None:
        # As another process would get it.
        position = msgpack.unpackb(msgpack.packb(position))
        limit = limits[len(steps) % len(limits)]
        chunk, after = part.read(epoch, position, limit)
        assert len(chunk) <= limit
        assert (chunk.columns["x"] == 10 * (chunk.ordinals % 2**ORDINAL_BITS)).all()
        assert (chunk.origin.record == chunk.ordinals % 2**ORDINAL_BITS).all()
        steps.append((position, chunk.ordinals.tolist()))
        position = after
        assert len(steps) < 10_000
    return steps


def rows(part, epoch=0, limits=(5,)):
    return [row for _, chunk in walk(part, epoch, limits) for row in chunk]


SHUFFLED = {"epochs": st.just(1), "across_batches": st.just(True), "reshuffle": st.booleans()}
ORDERS = st.builds(
    ReadingOrder,
    seed=st.none() | st.integers(-5, 5),
    window=st.none() | st.integers(1, 40),
    blocks=st.none(),
    block_bytes=st.none(),
    **SHUFFLED,
)
OF_BLOCKS = st.builds(
    ReadingOrder,
    seed=st.integers(-5, 5),
    window=st.none(),
    blocks=st.integers(1, 9),
    block_bytes=st.just(1),
    **SHUFFLED,
)
LIMITS = st.lists(st.integers(1, 50), min_size=1, max_size=3)
NUMBERED = st.builds(
    Numbered,
    st.integers(0, 120),
    st.lists(st.integers(0, 120), max_size=4),
    st.lists(st.integers(1, 120), max_size=15),
)
STREAMED = st.builds(
    Streamed,
    st.lists(st.integers(0, 40), max_size=9),
    st.lists(st.integers(0, 40), max_size=3),
    st.integers(1, 60),
    st.booleans(),
)


@st.composite
def sources(draw, of_blocks):
    """A reader and an order that it can be read in."""
    if of_blocks:
        return draw(NUMBERED), draw(OF_BLOCKS)
    reader, order = draw(NUMBERED | STREAMED), draw(ORDERS)
    if isinstance(reader, Streamed) and order.seed is not None and order.window is None:
        order = ReadingOrder(order.seed, draw(st.integers(1, 40)), reshuffle=order.reshuffle)
    return reader, order


@pytest.mark.parametrize("of_blocks", [False, True])
@given(
    data=st.data(), count=st.integers(1, 7), epoch=st.integers(0, 3), limits=LIMITS, others=LIMITS
)
@RUN
def test_every_example_comes_once_in_an_order_that_neither_limits_nor_restarts_change(
    of_blocks, data, count, epoch, limits, others
):
    reader, order = data.draw(sources(of_blocks))
    got = []
    for k in range(count):
        steps = walk(partition_reader(reader, order, k, count), epoch, limits)
        own = [row for _, chunk in steps for row in chunk]
        assert rows(partition_reader(reader, order, k, count), epoch, others) == own
        got += own
        for i in range(0, len(steps), max(1, len(steps) // 6)):
            position, limit = steps[i][0], limits[i % len(limits)]
            chunk, after = partition_reader(reader, order, k, count).read(epoch, position, limit)
            assert chunk.ordinals.tolist() == steps[i][1]
            assert after == (steps[i + 1][0] if i + 1 < len(steps) else None)
    if isinstance(reader, Streamed):
        assert sorted(got) == reader.ordinals()
    else:
        assert sorted(got) == [n for n in range(reader.length) if n not in reader.bad]


def blocks_of(reader, order, count, epoch=0):
    """The block of each row that each partition gives, in its order."""
    return [
        np.searchsorted(
            reader.starts, rows(partition_reader(reader, order, k, count), epoch), "right"
        )
        - 1
        for k in range(count)
    ]


def test_rows_of_k_blocks_at_a_time_are_mixed():
    """No row comes before its block has entered, and k blocks are open from the first row on."""
    reader = Numbered(600, starts=range(0, 600, 20))
    order = ReadingOrder(seed=3, blocks=5, block_bytes=1)
    for own in blocks_of(reader, order, 2):
        assert len(set(own.tolist())) == 15
        first = {block: own.tolist().index(block) for block in set(own.tolist())}
        last = {
            block: len(own) - 1 - own[::-1].tolist().index(block) for block in set(own.tolist())
        }
        open_at = [sum(first[b] <= i <= last[b] for b in first) for i in range(len(own))]
        assert max(open_at) <= 2 * 5 - 1  # a block leaves, and one enters, within a round
        assert len(set(own[:40].tolist())) == 5 == len(set(own[-40:].tolist()))
        assert np.mean(own[1:] == own[:-1]) < 0.5


def test_each_epoch_has_other_neighbours_but_a_partition_its_own_blocks():
    reader = Numbered(400, starts=range(0, 400, 10))
    order = ReadingOrder(seed=3, blocks=4, block_bytes=1)
    one, other = blocks_of(reader, order, 3), blocks_of(reader, order, 3, epoch=1)
    for a, b in zip(one, other, strict=True):
        assert set(a.tolist()) == set(b.tolist())
        assert a.tolist() != b.tolist()
    assert not set(one[0].tolist()) & set(one[1].tolist())
    assert max(one[0]) - min(one[0]) > 20  # they come from everywhere
    kept = ReadingOrder(seed=3, blocks=4, block_bytes=1, reshuffle=False)
    assert [a.tolist() for a in blocks_of(reader, kept, 3, epoch=1)] == [a.tolist() for a in one]
