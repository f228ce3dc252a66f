"""Balanced batches: their costs, and that a restored shaper goes on with the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.shaping.bucket import Buckets, PlainBatches
from headrace_server.shaping.pack import Packing
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


def shown(draft: Draft) -> list[Any]:
    layout = None if draft.layout is None else draft.layout.tolist()
    return [[part.chunk for part in draft.parts], rows_of(draft), draft.bucket, layout]


SHAPERS: dict[str, Callable[[], RowShaper]] = {
    "batch": lambda: PlainBatches(3, True, 4),
    "bucket": lambda: Buckets([2, 3], True, balance_batches=3),
    "pack": lambda: Packing(9, 2, "concat", 64, True, 3),
    "pack best": lambda: Packing(9, 2, "best_fit", 3, False, 3),
}


@pytest.mark.parametrize("kind", SHAPERS)
def test_a_shaper_that_is_restored_at_any_draft_goes_on_with_the_same(kind: str) -> None:
    chance = np.random.default_rng(5)
    chunks = []
    for n in (7, 1, 30, 0, 4, 22):
        length = chance.integers(1, 10, n)
        facts = {"length": length, "bucket": length % 2, "cost": length.astype(float) ** 2}
        chunks.append(facts if kind != "batch" else {"cost": facts["cost"]})

    def run(restored_at: int) -> list[Any]:
        shaper, found = SHAPERS[kind](), list[Any]()
        for number in range(len(chunks) + 1):
            if number == 3:
                shaper.set_batch_sizes([4] * len(shaper.batch_sizes))
            if number < len(chunks):
                shaper.offer(number, len(chunks[number]["cost"]), chunks[number])
            else:
                shaper.finish()
            while (draft := shaper.next_draft()) is not None:
                found.append(shown(draft))
                if len(found) == restored_at:
                    state = shaper.snapshot()
                    shaper = SHAPERS[kind]()
                    shaper.restore(state)
        return found

    whole = run(-1)
    assert len(whole) > 8
    assert all(run(at) == whole for at in range(1, len(whole)))
