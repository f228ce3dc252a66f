"""An example is cut at the same steps by columns as one after another."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping.spans import Cut
from tests.examples import some


def segments(available: int, unroll: int, stride: int, opening: int) -> list[tuple[int, int]]:
    """The segments of one example by definition; ``opening`` 0: no phase."""
    found, first = list[tuple[int, int]](), 0
    while True:
        own, step = (opening, opening) if opening and not found else (unroll, stride)
        if available - first <= own:
            return [*found, (first, available)]
        found.append((first, first + step))
        first += step


@settings(max_examples=some(300), deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.data())
def test_segments_their_numbers_and_their_count_follow_from_their_first_steps(
    steps: list[int], data: st.DataObject
) -> None:
    unroll = data.draw(st.integers(1, 9))
    stride = data.draw(st.integers(1, unroll))
    drawn = data.draw(st.booleans())
    openings = [data.draw(st.integers(1, stride)) if drawn else 0 for _ in steps]
    cut = Cut(unroll, stride)
    for available, opening in zip(steps, openings, strict=True):
        found = segments(available, unroll, stride, opening)
        first, after = np.array(found).T
        whole = np.full_like(first, available)
        of_each = np.full_like(first, opening) if drawn else None
        assert cut.after(first, whole, of_each).tolist() == after.tolist()
        assert cut.before(first).tolist() == [*range(len(found))]
        assert cut.left(first, whole, of_each).tolist() == [*range(len(found), 0, -1)]
