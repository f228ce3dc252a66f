"""Every batch_size rows in the order of their arrival make a batch; dropped rows are counted."""

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.reading.columns import row_count
from headrace_server.shaping.bucket import PlainBatches

from .drafts import size_of

sizes = st.lists(st.integers(0, 12), max_size=12)


def rows_of(draft):
    return [(part.chunk, row) for part in draft.parts for row in range(100)[part.rows]]


def drafts_of(shaper):
    drafts = []
    while (draft := shaper.next_draft()) is not None:
        assert size_of(draft) == len(rows_of(draft)) and all(
            row_count(part.rows) for part in draft.parts
        )
        drafts.append(rows_of(draft))
    return drafts


CHANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(1, 7)), max_size=4)


@given(chunks=sizes, size=st.integers(1, 7), smaller=st.booleans(), changes=CHANGES)
def test_another_size_reaches_the_rows_that_are_in_no_whole_batch(chunks, size, smaller, changes):
    """Neither the drafts by then nor a restart at that place show in the batches."""
    want, loose, now = [], [], size
    for step, rows in enumerate(chunks):
        loose += [(step, row) for row in range(rows)]
        for _, _, other in [change for change in changes if change[0] == step]:
            while len(loose) >= now:
                want.append(loose[:now])
                del loose[:now]
            now = other
    while len(loose) >= now or (smaller and loose):
        want.append(loose[:now])
        del loose[:now]

    shaper, got = PlainBatches(size, smaller), []
    for step, rows in enumerate(chunks):
        shaper.offer(step, rows, {})
        for _, taken, other in [change for change in changes if change[0] == step]:
            got += [draft for _ in range(taken) if (draft := shaper.next_draft()) is not None]
            since = len(got) + shaper.ready()
            shaper.set_batch_sizes([other])
            assert len(got) + shaper.ready() >= since
            state = msgpack.unpackb(msgpack.packb(shaper.snapshot()))
            shaper = PlainBatches(size, smaller)
            shaper.restore(state)
    shaper.finish()
    while (draft := shaper.next_draft()) is not None:
        got.append(draft)
    assert [rows_of(draft) for draft in got] == want
    assert sum(shaper.dropped().values()) == len(loose)


def test_a_size_that_never_changes_is_in_no_snapshot_and_no_batch():
    shaper = PlainBatches(4)
    shaper.offer(0, 9, {})
    assert shaper.next_draft() and "sizes" not in shaper.snapshot()
    shaper.set_batch_sizes([2])
    assert shaper.resized and shaper.snapshot()["sizes"] == [2]
    shaper.set_batch_sizes([4])
    assert not shaper.resized and "sizes" not in shaper.snapshot(), "as it was declared"
    assert shaper.next_draft() and shaper.next_draft() is None
    shaper.offer(1, 5, {})
    shaper.set_batch_sizes([2])
    shaper.set_batch_sizes([4])
    assert shaper.resized, "for there is a batch of another size"
    assert [size_of(draft) for draft in (shaper.next_draft(), shaper.next_draft())] == [4, 2]
    assert not shaper.resized


def test_a_size_after_the_end_drops_what_is_no_whole_batch_any_more():
    shaper = PlainBatches(4)
    shaper.offer(0, 5, {})
    shaper.finish()
    shaper.set_batch_sizes([3])
    assert [len(draft) for draft in drafts_of(shaper)] == [4], "it was whole before"
    assert shaper.dropped() == {"remainder": 1}
