"""Random numbers depend on seed, stream, epoch and counter alone."""

import numpy as np
import pytest

from headrace_server.shaping import chance

COUNTERS = np.array([0, 1, 2, 2**40 + 5, -1], np.int64)


@pytest.mark.parametrize(
    ("seed", "stream", "epoch", "expected"),
    [
        (
            7,
            1,
            0,
            [
                "6928e8747385e021",
                "42c2ca4c910b4d3f",
                "3374b196331b36ef",
                "fa78ccb560611dc3",
                "6812baaf2d8ccce2",
            ],
        ),
        (
            7,
            4,
            1,
            [
                "90ea68e53316a5a9",
                "168b1e63ead07c99",
                "0cef317d467c5514",
                "bcf0a5ef26a2dd2d",
                "e5b8946c7de79781",
            ],
        ),
        (
            -1,
            5,
            1099511627776,
            [
                "41928bbb19216845",
                "589514006ca25b26",
                "bfcd0100a1bac617",
                "03cff2f0cf320103",
                "92e0a556b05b4902",
            ],
        ),
        (
            10000000000000000000000000000000000000000,
            7,
            0,
            [
                "04ab94e25c35a667",
                "55c9e131c9e96c86",
                "59039e97bd1dbf98",
                "3840c79a7546597e",
                "f23204dd51657c56",
            ],
        ),
    ],
)
def test_the_numbers_never_change(seed, stream, epoch, expected):
    assert [f"{x:016x}" for x in chance.bits(seed, stream, epoch, COUNTERS)] == expected


def test_derived_seeds_never_change():
    assert chance.derive(7, chance.WINDOW, 4096) == 9649868045903884752
    assert chance.derive(7, chance.WINDOW, 4097) != 9649868045903884752


def test_a_number_depends_on_its_counter_alone():
    whole = chance.bits(7, chance.ACCEPT, 3, np.arange(1000))
    rows = np.array([999, 3, 3, 500])
    assert np.array_equal(chance.bits(7, chance.ACCEPT, 3, rows), whole[rows])
    assert np.array_equal(chance.bits(7, chance.ACCEPT, 3, rows.astype(np.int16)), whole[rows])


def test_signed_and_unsigned_counters_of_the_same_bits_are_the_same():
    signed = np.array([-1, -(2**63), 5], np.int64)
    assert np.array_equal(
        chance.bits(7, 1, 0, signed), chance.bits(7, 1, 0, signed.view(np.uint64))
    )


def test_counters_are_left_alone_and_must_be_integers():
    counters = np.arange(5, dtype=np.uint64)
    chance.bits(7, 1, 0, counters)
    assert counters.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(TypeError, match="integers, not float64"):
        chance.bits(7, 1, 0, np.zeros(3))
    with pytest.raises(TypeError):
        chance.bits(7.0, 1, 0, counters)


def test_no_and_many_dimensions_keep_their_shape():
    assert chance.bits(7, 1, 0, np.empty((0, 3), np.int64)).shape == (0, 3)
    assert chance.uniform(7, 1, 0, np.arange(6).reshape(2, 3)).shape == (2, 3)


def test_every_part_of_the_key_changes_the_numbers():
    seeds = [0, 1, -1, 2**64, 2**64 + 1, -(2**64), 10**5000, 10**5000 + 1]
    keys = [(seed, stream, epoch) for seed in seeds for stream in (1, 2) for epoch in (0, 1, 2**40)]
    rows = {tuple(chance.bits(*key, np.arange(2)).tolist()) for key in keys}
    assert len(rows) == len(keys)


def test_uniform_fills_zero_to_one_without_one():
    drawn = chance.uniform(7, chance.ACCEPT, 0, np.arange(100_000))
    assert drawn.dtype == np.float64
    assert 0 <= drawn.min() < 1e-4 and 1 - 1e-4 < drawn.max() < 1
    top = np.uint64(2**64 - 1) >> np.uint64(11)
    assert float(top * 2.0**-53) < 1


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


def test_streams_seeds_and_epochs_are_not_correlated():
    counters = np.arange(50_000)
    keys = [(7, 1, 0), (7, 2, 0), (7, 1, 1), (8, 1, 0), (-7, 1, 0)]
    drawn = np.array([chance.uniform(*key, counters) for key in keys])
    correlation = np.corrcoef(drawn) - np.eye(len(keys))
    assert np.abs(correlation).max() < 5 / np.sqrt(counters.size)
