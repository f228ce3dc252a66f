"""Balanced batches make the work of ranks nearly equal."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from headrace_server.shaping.bucket import PlainBatches
from headrace_server.shaping.plan import Draft, RowShaper


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
