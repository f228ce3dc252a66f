"""Buckets batch rows exactly as one row after another would, chunk by chunk."""

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping.bucket import Buckets
from headrace_server.shaping.plan import packed_integers, unpacked_integers

from .drafts import described, size_of

steady = settings(derandomize=True, deadline=None, database=None)


def cost_of(lengths, more, ragged):
    """The elements of a batch with these rows and ``more`` of one: padded, or as they are."""
    real = [max(length, 1) for length in lengths]
    return sum(real) + more if ragged else max(real, default=0) * (len(real) + more)


def by_hand(ids, lengths, sizes, budget, smaller, ragged=False):
    """Batch one row at a time; return batches as (bucket, row numbers), and the number of dropped
    rows.
    """
    opened, batches = by_hand_open(ids, lengths, sizes, budget, ragged)
    dropped = 0
    for bucket, mine in enumerate(opened):
        packed = budget is not None and cost_of([lengths[r] for r in mine], 1, ragged) > budget
        if mine and (smaller or packed):
            batches.append((bucket, mine))
        else:
            dropped += len(mine)
    return batches, dropped


def by_hand_open(ids, lengths, sizes, budget, ragged=False):
    """The rows of each bucket that are in no full batch, and the full batches."""
    opened = [[] for _ in sizes]
    batches = []
    for row, bucket in enumerate(ids):
        mine = opened[bucket]
        grown = [lengths[r] for r in [*mine, row]] if mine else []
        if budget is not None and cost_of(grown, 0, ragged) > budget:
            batches.append((bucket, list(mine)))
            mine.clear()
        mine.append(row)
        if len(mine) == sizes[bucket]:
            batches.append((bucket, list(mine)))
            mine.clear()
    return opened, batches


def drafts(shape):
    while (draft := shape.next_draft()) is not None:
        yield draft


def rows_of(draft, starts):
    """Row numbers over all chunks."""
    rows = []
    for part in draft.parts:
        own = part.rows
        own = range(own.start, own.stop) if isinstance(own, slice) else own.tolist()
        rows += [starts[part.chunk] + row for row in own]
    return rows


def test_a_row_longer_than_the_budget_is_a_batch_of_its_own():
    shape = Buckets([None], max_padded_elements=10)
    facts = {"bucket": np.zeros(5, int), "length": np.array([4, 99, 3, 3, 3])}
    shape.offer(0, 5, facts)
    assert [(size_of(d), meta["padded"]) for d, meta in described(shape)] == [(1, 4), (1, 99)]
    shape.finish()  # three of length 3: no fourth row of any length would fit, so they are full
    assert [(size_of(d), meta["padded"]) for d, meta in described(shape)] == [(3, 9)]
    assert not shape.dropped()


def test_lengths_at_the_extremes_neither_overflow_nor_go_below_zero():
    shape = Buckets([None], True, max_padded_elements=2**40)
    lengths = np.array([2**63 - 1, -(2**63), -1, 2**63 - 1])
    shape.offer(0, 4, {"bucket": np.zeros(4, int), "length": lengths})
    shape.finish()
    assert [size_of(draft) for draft in drafts(shape)] == [1, 2, 1]
    assert shape.padding == {0: [2**53, 2**53]}, "the most that is counted"
    shape = Buckets([2])
    shape.offer(0, 2, {"bucket": np.zeros(2, int), "length": np.array([-5, 2**52])})
    assert [meta for _, meta in described(shape)] == [{"bucket": 0, "padded": 2**53, "real": 2**52}]


def test_an_unsigned_length_beyond_int64_is_the_longest_there_is():
    shape = Buckets([1])
    shape.offer(0, 1, {"bucket": np.zeros(1, int), "length": np.array([2**64 - 1], np.uint64)})
    assert [meta["real"] for _, meta in described(shape)] == [2**53], "the most that is counted"


@pytest.mark.parametrize("most", [1, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**62])
def test_integers_are_packed_in_so_few_bytes_as_hold_them(most: int):
    values = np.array([0, most, 1], np.int64)
    packed = packed_integers(values)
    assert len(packed) == 1 + 3 * (2 if most < 2**16 else 4 if most < 2**32 else 8)
    assert unpacked_integers(packed).tolist() == values.tolist()
    assert unpacked_integers(packed_integers(values[:0])).tolist() == []


@steady
@given(st.data())
def test_other_sizes_reach_the_rows_that_are_in_no_full_batch(data):
    """Rows come out as one by one, also after drafts and restores."""
    count = data.draw(st.integers(1, 3))
    rows = data.draw(st.integers(0, 60))
    ids = data.draw(st.lists(st.integers(0, count - 1), min_size=rows, max_size=rows))
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=rows, max_size=rows))
    budget = data.draw(st.none() | st.integers(1, 30))
    smaller = data.draw(st.booleans())
    per_bucket = st.lists(st.integers(1, 6), min_size=count, max_size=count)
    sizes, others = data.draw(per_bucket), data.draw(per_bucket)
    at = data.draw(st.integers(0, rows))

    ragged = data.draw(st.booleans())
    opened, want = by_hand_open(ids[:at], lengths, sizes, budget, ragged)
    for bucket, mine in enumerate(opened):
        while len(mine) >= others[bucket]:
            want.append((bucket, mine[: others[bucket]]))
            del mine[: others[bucket]]
    left = sorted(row for mine in opened for row in mine)
    rest = [*left, *range(at, rows)]
    # Rows that are left come first again: the queues of the buckets know no other order.
    later, dropped = by_hand(
        [ids[row] for row in rest], [lengths[row] for row in rest], others, budget, smaller, ragged
    )
    want += [(bucket, [rest[row] for row in batch]) for bucket, batch in later]
    shape = Buckets(sizes, smaller, budget, ragged=ragged)
    facts = {"bucket": np.array(ids[:at], np.int64), "length": np.array(lengths[:at], np.int64)}
    shape.offer(0, at, facts)
    early = data.draw(st.integers(0, 3))
    got = [draft for _ in range(early) if (draft := shape.next_draft()) is not None]
    shape.set_batch_sizes(others)
    twin = Buckets(sizes, smaller, budget, ragged=ragged)
    twin.restore(msgpack.unpackb(msgpack.packb(shape.snapshot())))
    assert twin.batch_sizes == tuple(others) and twin.resized == (others != sizes)
    twin.offer(
        1,
        rows - at,
        {n: np.array(v[at:], np.int64) for n, v in (("bucket", ids), ("length", lengths))},
    )
    twin.finish()
    got += list(drafts(twin))
    assert [(d.bucket, rows_of(d, {0: 0, 1: at})) for d in got] == want
    assert sum(twin.dropped().values()) == dropped


def test_batches_in_a_drawn_order_have_another_size_after_all_that_were_formed_before():
    """Two of them fill no block of four, which the next ones would join."""
    for seed in range(8):
        shape = Buckets([2, 2], shuffle_batches=4, seed=seed)
        shape.offer(0, 12, {"bucket": np.arange(12) % 2})
        shape.set_batch_sizes([1, 1])
        assert shape.ready() == 6
        shape.offer(1, 6, {"bucket": np.arange(6) % 2})
        shape.finish()
        assert [size_of(draft) for draft in drafts(shape)] == [2] * 6 + [1] * 6


def test_the_sum_of_enormous_lengths_of_ragged_rows_does_not_wrap_around():
    most = 2**62
    shape = Buckets([None], True, most, ragged=True)
    lengths = np.array([most, most, 5, 2**63 - 1, most - 5, 5, 1], np.int64)
    shape.offer(0, 7, {"bucket": np.zeros(7, np.int64), "length": lengths})
    shape.finish()
    assert [rows_of(draft, [0]) for draft in drafts(shape)] == [[0], [1], [2], [3], [4, 5], [6]]
