"""Random numbers depend on seed, stream, epoch and counter alone."""

import numpy as np
import pytest

from headrace_server.shaping import chance


def test_signed_and_unsigned_counters_of_the_same_bits_are_the_same():
    signed = np.array([-1, -(2**63), 5], np.int64)
    assert np.array_equal(
        chance.bits(7, 1, 0, signed), chance.bits(7, 1, 0, signed.view(np.uint64))
    )


def test_counters_are_left_alone():
    counters = np.arange(5, dtype=np.uint64)
    chance.bits(7, 1, 0, counters)
    assert counters.tolist() == [0, 1, 2, 3, 4]


def test_every_part_of_the_key_changes_the_numbers():
    seeds = [0, 1, -1, 2**64, 2**64 + 1, -(2**64), 10**5000, 10**5000 + 1]
    keys = [(seed, stream, epoch) for seed in seeds for stream in (1, 2) for epoch in (0, 1, 2**40)]
    rows = {tuple(chance.bits(*key, np.arange(2)).tolist()) for key in keys}
    assert len(rows) == len(keys)


def chi_square(counts):
    """Return the distance from the expected value, in standard deviations."""
    expected, freedom = counts.sum() / counts.size, counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("step", [1, 2, 256, 2**32, 0x9E3779B97F4A7C15])
def test_every_byte_and_every_pair_of_neighbours_is_uniform_for_regular_counters(step):
    """200,000 numbers of counters in arithmetic progression: the eight bytes of each, and pairs of
    bytes of neighbouring counters, fill their 256 (65,536) bins evenly."""
    with np.errstate(over="ignore"):
        counters = np.arange(200_000, dtype=np.uint64) * np.uint64(step)
    octets = chance.bits(7, chance.ACCEPT, 0, counters).view(np.uint8).reshape(-1, 8)
    for column in octets.T:
        assert abs(chi_square(np.bincount(column, minlength=256))) < 4.5
        pairs = column[:-1].astype(np.int64) * 256 + column[1:]
        assert abs(chi_square(np.bincount(pairs, minlength=65536))) < 4.5


def test_one_flipped_bit_of_a_counter_flips_half_of_the_number():
    counters = np.arange(2000, dtype=np.uint64)
    for bit in range(64):
        flipped = counters ^ np.uint64(1 << bit)
        changed = chance.bits(7, 1, 0, counters) ^ chance.bits(7, 1, 0, flipped)
        per_output_bit = np.unpackbits(changed.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert np.abs(per_output_bit - 0.5).max() < 0.065  # 5.8 standard deviations
