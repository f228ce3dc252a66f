"""Balanced batches: their costs, and that a restored shaper goes on with the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.shaping.bucket import PlainBatches
from headrace_server.shaping.plan import Draft, RowShaper, balanced


@given(st.integers(1, 6), st.integers(1, 5), st.randoms())
def test_each_row_is_in_one_batch_and_no_batch_is_much_dearer(
    batches: int, size: int, chance: Any
) -> None:
    costs = np.array([chance.choice((0.0, 1.5, 2.0, 9.0)) for _ in range(batches * size)])
    found = balanced(costs, batches)
    assert found.shape == (batches, size)
    assert sorted(found.reshape(-1).tolist()) == list(range(batches * size))
    assert (np.diff(found, axis=1) > 0).all() and (np.diff(found[:, 0]) > 0).all()
    sums = costs[found].sum(1)
    # a batch is never ahead by more than one row
    assert sums.max() - sums.min() <= costs.max()


def worst_of_rounds(costs: np.ndarray, ranks: int) -> float:
    """Return the mean over rounds of the dearest batch over the mean batch."""
    rounds = costs[: len(costs) // ranks * ranks].reshape(-1, ranks)
    return float((rounds.max(1) / rounds.mean(1)).mean())


@pytest.mark.parametrize(("power", "most", "plain"), [(1, 1.03, 1.1), (2, 1.06, 1.18)])
def test_ranks_of_w2_have_nearly_equal_work(power: int, most: float, plain: float) -> None:
    """20,000 sequences of 20 to 400 steps, batches of 32, 8 ranks."""
    costs = np.random.default_rng(3).integers(20, 401, 20_000).astype(float) ** power
    found = []
    for window in (0, 16):
        shaper = PlainBatches(32, balance_batches=window)
        shaper.offer(0, len(costs), {"cost": costs})
        shaper.finish()
        taken = [costs[rows].sum() for rows in map(rows_of, drafts(shaper))]
        assert len(taken) == 20_000 // 32
        found.append(worst_of_rounds(np.array(taken), 8))
    assert found[0] > plain and found[1] < most


def rows_of(draft: Draft) -> list[int]:
    numbers = []
    for part in draft.parts:
        rows = part.rows
        numbers += list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
    return numbers


def drafts(shaper: RowShaper) -> Iterator[Draft]:
    while (draft := shaper.next_draft()) is not None:
        yield draft
