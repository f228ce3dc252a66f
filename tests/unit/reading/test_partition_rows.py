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

    def __init__(self, length, bad=()):
        self.length, self.bad, self.calls = length, list(bad), []

    def take(self, rows):
        if isinstance(rows, slice):
            self.calls.append(("slice", rows.start, rows.stop))
            return self.good(np.arange(rows.start, rows.stop))
        assert rows.dtype == np.int64
        self.calls.append(("take", len(rows)))
        return self.good(rows)

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


ORDERS = st.builds(
    ReadingOrder,
    seed=st.none() | st.integers(-5, 5),
    window=st.none() | st.integers(1, 40),
    reshuffle=st.booleans(),
)
LIMITS = st.lists(st.integers(1, 50), min_size=1, max_size=3)
NUMBERED = st.builds(Numbered, st.integers(0, 120), st.lists(st.integers(0, 120), max_size=4))
STREAMED = st.builds(
    Streamed,
    st.lists(st.integers(0, 40), max_size=9),
    st.lists(st.integers(0, 40), max_size=3),
    st.integers(1, 60),
    st.booleans(),
)


@st.composite
def sources(draw):
    """A reader and an order that it can be read in."""
    reader, order = draw(NUMBERED | STREAMED), draw(ORDERS)
    if isinstance(reader, Streamed) and order.seed is not None and order.window is None:
        order = ReadingOrder(order.seed, draw(st.integers(1, 40)), 1, order.reshuffle)
    return reader, order


@given(
    source=sources(), count=st.integers(1, 7), epoch=st.integers(0, 3), limits=LIMITS, others=LIMITS
)
@RUN
def test_every_example_comes_once_in_an_order_that_neither_limits_nor_restarts_change(
    source, count, epoch, limits, others
):
    reader, order = source
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


def test_the_exact_shuffle_of_a_stream_is_refused_with_the_remedy():
    with pytest.raises(
        ValueError, match=r"not be read by number: use shuffle\(window=n\), or conv"
    ):
        partition_reader(Streamed([5]), ReadingOrder(seed=1), 0, 1)


@pytest.mark.parametrize(
    ("reader", "position"),
    [
        (Numbered(5), 6),
        (Numbered(5), -1),
        (Numbered(5), [0, b"", 0]),
        (Streamed([5]), [1, b"", 0]),
        (Streamed([5]), [-1, b"", 0]),
        (Streamed([5]), [0, b"", 6]),
    ],
)
def test_a_position_of_another_source_is_refused(reader, position):
    with pytest.raises(ValueError, match="position"):
        partition_reader(reader, ReadingOrder(1, 9), 0, 1).read(0, position, 3)
