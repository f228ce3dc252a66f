"""Plain and packed batches of other sizes; those of buckets have tests of their own."""

import numpy as np

from headrace_server.reading.columns import row_count
from headrace_server.shaping.bucket import PlainBatches
from headrace_server.shaping.pack import Packing

from .drafts import size_of


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


def test_a_size_after_the_end_drops_the_last_packed_rows_that_are_no_whole_batch_any_more():
    shaper = Packing(2, 2)
    shaper.offer(0, 4, {"length": np.full(4, 2)})
    shaper.set_batch_sizes([3])
    shaper.offer(1, 5, {"length": np.full(5, 2)})
    shaper.finish()
    shaper.set_batch_sizes([4])
    for chunk in (0, 1):
        (part,) = shaper.next_draft().parts
        assert part.chunk == chunk and part.rows.tolist() == [0, 1, 2, 3]
    assert shaper.next_draft() is None and shaper.dropped() == {"remainder": 1}
