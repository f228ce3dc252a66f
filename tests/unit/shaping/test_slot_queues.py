"""Queues of slots give what a list would give."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.shaping.admission import Fifo, OldestFirst

_STEPS = st.lists(st.tuples(st.sampled_from(["put", "get", "first"]), st.integers(0, 5)))


@given(_STEPS)
def test_slots_come_out_in_the_order_in_which_they_went_in(steps: list[tuple[str, int]]):
    queue, known, count = Fifo(), list[int](), 0
    for step, n in steps:
        if step == "put":
            added = list(range(count, count + n))
            count += n
            queue.put(np.array(added, np.int64))
            known += added
            continue
        n = min(n, len(known))
        assert getattr(queue, step)(n).tolist() == known[:n]
        if step == "get":
            del known[:n]
        assert queue.count == len(known)


@given(st.lists(st.integers(-6, 6).filter(bool)))
def test_returned_slots_come_out_by_their_indices(steps: list[int]):
    """Up to six are put in, with indices that ascend, or taken out."""
    queue, known = OldestFirst(), list[int]()
    for at, step in enumerate(steps):
        if step > 0:
            indices = np.arange(step) * 7 + at % 5 * 100 + at
            queue.put(indices, indices + 1)
            known = sorted([*known, *indices.tolist()])
            continue
        n = min(-step, len(known))
        assert set(known[:n]) <= set(queue.first(n)[0].tolist())
        assert queue.get(n).tolist() == [index + 1 for index in known[:n]]
        del known[:n]
        assert queue.count == len(known)
