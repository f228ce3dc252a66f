"""The steps of segments of any geometry equal those of a slow reference."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.making.segment_cutting import Geometry
from tests.examples import some


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    unroll = draw(st.integers(1, 6))
    stride = draw(st.integers(1, unroll))
    return Geometry(unroll, stride, draw(st.integers(0, 8)), draw(st.integers(0, 8)))


def slowly(geometry: Geometry, steps: int, first: int | None) -> list[tuple[int, int]]:
    """The first step of each segment and its number of steps, one after the other."""
    begin = 0
    size = geometry.num_unroll if first is None else first
    segments = [(begin, size)]
    while begin + size < steps:
        begin += first if first is not None and len(segments) == 1 else geometry.stride
        size = geometry.num_unroll
        segments.append((begin, size))
    return segments


@settings(max_examples=some(300))
@given(geometries(), st.integers(1, 40), st.integers(-3, 45), st.none() | st.integers(1, 6))
def test_segments_are_those_of_the_definition(
    geometry: Geometry, steps: int, total: int, drawn: int | None
):
    first = None if drawn is None else 1 + (drawn - 1) % geometry.stride
    firsts = None if first is None else np.array([first])
    wanted = slowly(geometry, steps, first)
    (count,) = geometry.counts(np.array([steps]), firsts)
    assert count == len(wanted)
    segments = np.arange(count)
    each = None if first is None else np.full(count, first)
    begins, sizes = geometry.begins(segments, each), geometry.sizes(segments, each)
    assert list(zip(begins.tolist(), sizes.tolist(), strict=True)) == wanted
    totals = np.full(count, total)
    real = set(range(total))

    def counted(ranges: list[range]) -> list[int]:
        return [len(real & set(one)) for one in ranges]

    before = [range(max(0, begin - geometry.left), begin) for begin, _ in wanted]
    after = [range(b + n, b + n + geometry.right) for b, n in wanted]
    assert geometry.left_lengths(totals, begins).tolist() == counted(before)
    assert geometry.right_lengths(totals, begins, sizes).tolist() == counted(after)
    if first is None:
        begin, size = wanted[-1]
        assert geometry.padded(np.array([steps])).tolist() == [begin + size]


@settings(max_examples=some(100))
@given(geometries(), st.integers(1, 40), st.integers(1, 6))
def test_own_steps_cover_the_example_and_states_go_on_where_they_were(
    geometry: Geometry, steps: int, drawn: int
):
    first = 1 + (drawn - 1) % geometry.stride
    for segments in (slowly(geometry, steps, None), slowly(geometry, steps, first)):
        covered = {step for begin, size in segments for step in range(begin, begin + size)}
        assert covered >= set(range(steps))
        assert all(0 <= begin < steps for begin, _ in segments)
        passed = [b - a for (a, _), (b, _) in pairwise(segments)]
        assert all(0 < gap <= geometry.stride for gap in passed)


@pytest.mark.parametrize("steps", [1, 2**31 - 1])
def test_the_longest_example_is_counted(steps: int):
    many = np.array([steps])
    assert Geometry(1, 1).counts(many).tolist() == [steps]
    assert Geometry(2**31 - 1, 1).counts(many).tolist() == [1]
    assert Geometry(7, 1).counts(many).tolist() == [max(1, steps - 6)]
    assert Geometry(7, 3).counts(many, np.array([3])).max() <= steps


def test_without_stride_and_context_it_is_the_cut_into_pieces():
    plain = Geometry(4, 4)
    assert plain.width == 4 and plain.counts(np.array([1, 4, 5, 8, 9])).tolist() == [1, 1, 2, 2, 3]
    assert plain.begins(np.arange(3)).tolist() == [0, 4, 8]


def test_the_example_in_the_picture():
    cut = Geometry(4, 3, left=2, right=1)
    assert cut.counts(np.array([9])).tolist() == [3] and cut.width == 7
    at = np.arange(3)
    begins, sizes, totals = cut.begins(at), cut.sizes(at), np.full(3, 9)
    assert cut.left_lengths(totals, begins).tolist() == [0, 2, 2]
    assert cut.right_lengths(totals, begins, sizes).tolist() == [1, 1, 0]
