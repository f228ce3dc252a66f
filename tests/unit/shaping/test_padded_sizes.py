"""Padded sizes follow the declaration, and a budget counts padded elements."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_server.shaping.bucket import Padding


def one(padding: Padding, length: int, bucket: int = 0) -> int:
    return int(padding.padded(np.array([length]), bucket)[0])


def test_a_boundary_is_reached_first_and_a_multiple_after_it():
    padding = Padding(multiple=8, boundaries=(10, 30))
    assert [one(padding, n) for n in (0, 9, 10)] == [16, 16, 16]
    assert [one(padding, n, 1) for n in (12, 29)] == [32, 32]
    assert [one(padding, n, 2) for n in (30, 33, 2**63 - 1)] == [32, 40, 2**62]
    assert one(Padding(length=7), 3, 5) == 7


@pytest.mark.parametrize(
    ("padding", "dims", "largest", "bucket", "want"),
    [
        (Padding(4), [None], [5], 0, [8]),
        (Padding(4), [None], [0], 0, [0]),
        (Padding(4), [None, 3, None], [5, 3, 2], 0, [8, 3, 4]),
        (Padding(1, (10, 20)), [None, None], [5, 7], 1, [20, 7]),
        (Padding(1, (10, 20)), [None], [5], 2, [5]),
        (Padding(4, (10,), {"x": [7]}), [None, None], [5, 6], 0, [7, 8]),
        (Padding(4, (10,), {"x": [None, 9]}), [None, None], [5, 6], 0, [12, 9]),
        (Padding(4, (10,), {"y": [7]}), [None], [5], 0, [12]),
    ],
)
def test_the_shape_of_a_column(padding, dims, largest, bucket, want):
    assert padding.shape("x", dims, largest, bucket) == want
