"""A computed permutation is exact, differs by seed and epoch, and prefers no order."""

from math import isqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping.chance import MAX_LENGTH, Permutation
from tests.examples import some
from tests.unit.shaping.test_chance import chi_square

SEEDS = st.integers(-(2**70), 2**70)


def order(n, seed=7, epoch=0):
    return Permutation(n, seed, epoch).at(np.arange(n))


@given(n=st.integers(0, 6000), seed=SEEDS, epoch=st.integers(0, 2**40))
@settings(max_examples=some(150), deadline=None, derandomize=True)
def test_every_example_has_one_position(n, seed, epoch):
    assert np.array_equal(np.sort(order(n, seed, epoch)), np.arange(n))


@pytest.mark.parametrize("n", [1023, 1024, 1025, 1055, 1056, 1057, 2**20 - 1, 2**20, 2**20 + 1])
def test_every_example_has_one_position_around_squares_and_the_end_of_the_table(n):
    assert np.array_equal(np.sort(order(n)), np.arange(n))


@given(n=st.integers(1025, MAX_LENGTH), seed=SEEDS, data=st.data())
@settings(max_examples=some(100), deadline=None, derandomize=True)
def test_different_positions_give_different_examples_in_range_for_many_elements(n, seed, data):
    edges = {0, 1, n - 1, n - 2, isqrt(n), n // 2}
    drawn = data.draw(st.sets(st.integers(0, n - 1), max_size=50))
    positions = np.array(sorted(edges | drawn), np.int64)
    examples = Permutation(n, seed, 0).at(positions)
    assert examples.dtype == np.int64
    assert examples.min() >= 0 and examples.max() < n
    assert len(np.unique(examples)) == len(positions)


@pytest.mark.parametrize("n", [900, 50_000])
def test_a_position_gives_the_same_example_alone_and_among_others(n):
    permutation, whole = Permutation(n, 7, 0), order(n)
    positions = np.array([[n - 1, 0, 5], [5, 5, 17]])
    assert np.array_equal(permutation.at(positions), whole[positions])
    assert np.array_equal(permutation.at(positions.astype(np.uint32)), whole[positions])
    assert positions.tolist() == [[n - 1, 0, 5], [5, 5, 17]]
    assert permutation.at(np.empty(0, np.int64)).shape == (0,)


def test_the_orders_never_change():
    assert order(10).tolist() == [3, 8, 4, 2, 1, 0, 9, 7, 6, 5]
    assert order(2000)[:5].tolist() == [1899, 1044, 1505, 1507, 994]
    large = Permutation(2**62, -3, 2).at(np.array([0, 2**62 - 1]))
    assert large.tolist() == [3700814608680894798, 1437588130557242461]


@pytest.mark.parametrize("n", [1100, 10**6, 10**12])
def test_neither_examples_nor_distances_of_neighbours_have_a_favourite(n):
    """Positions that share a digit of the network are where too few rounds would show: those
    next to each other, and those one row of its square apart.  6,000 seeds each."""
    row = -(-n // isqrt(n))
    positions = np.array([0, 1, row, row + 1, 2 * row, n - 1])
    drawn = np.array([Permutation(n, seed, 0).at(positions) for seed in range(6000)])
    sixteenths = drawn * 16 // n
    for i in range(len(positions)):
        assert abs(chi_square(np.bincount(sixteenths[:, i], minlength=16))) < 4.5
        for j in range(i):
            apart = (drawn[:, i] - drawn[:, j]) % n * 16 // n
            assert abs(chi_square(np.bincount(apart, minlength=16))) < 4.5
            both = sixteenths[:, i] * 16 + sixteenths[:, j]
            assert abs(chi_square(np.bincount(both, minlength=256))) < 4.5
