"""Batches come in any order where the trainer takes any."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.any_order import AsTheyCome

from .test_merge import ARRIVAL, LANES, PLAIN, SEED, Trainer, owners_of, run, turns


@pytest.mark.parametrize("told", [PLAIN, ARRIVAL], ids=["plain", "arrival"])
@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_in_any_order_all_comes_once_and_an_owner_that_is_away_delays_its_own_alone(
    told: dict[str, Any], prefetch: int
) -> None:
    for seed in range(30):
        chance = random.Random(SEED + seed)
        servers, counts = [1, 2], [chance.randint(1, 6) for _ in range(6)]
        trainer = Trainer(servers, len(counts), prefetch, told, order="any")
        assert isinstance(trainer.merge, AsTheyCome)
        owners = owners_of(servers, counts, told is ARRIVAL)
        away, *others = zip(owners, trainer.sessions, strict=True)
        away[1].lose()
        there = [(n, p) for p in (1, 3, 5) for n in range(counts[p])]
        for _ in range(1500):
            owner, session = chance.choice(others)
            owner.serve(session)
            trainer.step()
        assert sorted(trainer.took) == sorted(there)
        assert trainer.merge.awaited is away[1] and not trainer.over
        away[1].receive(away[1].welcome, [], 0.0)
        run(chance, [trainer], owners)
        assert sorted(trainer.took) == sorted(turns(counts))


def test_lanes_have_no_other_order() -> None:
    with pytest.raises(ValueError, match="order='any': the rows of feed 'f' stay in lanes"):
        Trainer(2, 4, 0, LANES, order="any")
    with pytest.raises(ValueError, match="stay in lanes"):
        Trainer(1, 4, 0, LANES, order="any")
    with pytest.raises(ValueError, match="order='any': batches of feed 'f' end with their epoch"):
        Trainer(2, 4, 0, {"across_batches": False}, order="any")
