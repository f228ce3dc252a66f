"""Every stage before every shape, trained, and compared with the reference."""

from __future__ import annotations

import random

import pytest

from tests.combinations.declarations import SHAPES, STAGES, Draw, Source
from tests.combinations.trained import draws, failures

_PARTS = 4


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_stage_goes_before_every_shape(part: int) -> None:
    chance = random.Random(part)
    for some in draws(chance, part, _PARTS):
        found = failures(some, chance.choice((1, 2)))
        assert not found, f"{len(found)} of {len(some)} fail:\n\n" + "\n\n".join(found[:5])


def test_a_feed_that_is_resumed_gives_what_the_original_would_have_given() -> None:
    """The reference knows of no snapshot: each partition goes on as if there had been none."""
    chance = random.Random(7)
    for some in draws(chance, 3, 16, interrupted=True):
        assert not failures(some, 2)


def test_copies_of_a_copy_have_keys_of_their_own() -> None:
    """The copies that two stages make of one example draw apart: make_keys_unique tells them so."""
    stages = [STAGES[name] for name in ("weighted_resample", "resample_at_rate", "with_origin")]
    draw = Draw("two resamplings", Source(25), (*stages, SHAPES["segments windows"]), 1)
    assert not failures([draw], 1)
