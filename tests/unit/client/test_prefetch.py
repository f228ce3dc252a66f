"""More batches are prefetched while a trainer waits, where that changes only the time."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.machine.prefetch import AUTO, Prefetch
from headrace_proto.messages import Welcome


def welcome(max_credits: int = 64, **properties: Any) -> Welcome:
    return Welcome(1, "f", [], 1.0, max_credits, properties=properties)


def grown(
    ahead: Prefetch, told: Welcome | None, nbytes: int = 1000, batches: int = 200
) -> list[int]:
    """How many come ahead, each time that this changes, where the trainer always waits."""
    found = [ahead.batches]
    for _ in range(batches):
        assert not ahead.took(nbytes)
        if ahead.waits(told):
            found.append(ahead.batches)
    return found


def test_it_doubles_while_the_trainer_waits_though_as_many_came_since():
    ahead = Prefetch(AUTO)
    assert not ahead.waits(welcome()), "the first batch is waited for by everybody"
    assert grown(ahead, welcome()) == [2, 4, 8, 16]
    ahead = Prefetch(AUTO)
    taken = 0
    for most in (2, 4, 8):
        while not ahead.waits(welcome()):
            ahead.took(1000)
            taken += 1
        assert taken == most
        taken = 0


@pytest.mark.parametrize(
    ("nbytes", "fewer"), [(1 << 20, 16), (4 << 20, 4), (9 << 20, 2), (64 << 20, 2)]
)
def test_a_batch_that_is_larger_than_all_before_bounds_those_that_were_many(nbytes, fewer):
    ahead = Prefetch(AUTO)
    assert grown(ahead, welcome())[-1] == 16
    assert ahead.took(nbytes) is (fewer < 16) and ahead.batches == fewer
    assert grown(ahead, welcome(), batches=120) == [fewer], "others may be as large"
    explicit = Prefetch(16)
    assert not explicit.auto and explicit.batches == 16


def test_after_a_rare_large_batch_it_grows_again_and_among_large_ones_it_stays():
    ahead = Prefetch(AUTO)
    assert grown(ahead, welcome())[-1] == 16
    for _ in range(3):
        assert ahead.took(9 << 20) and ahead.batches == 2
        assert grown(ahead, welcome(), batches=300) == [2, 4, 8, 16]
    assert ahead.took(9 << 20)
    for _ in range(20):
        assert grown(ahead, welcome(), batches=100) == [2]
        assert not ahead.took(9 << 20), "it is as large as one of late"


def test_where_states_are_at_the_server_the_order_would_change():
    assert grown(Prefetch(AUTO), welcome(placement="server")) == [2]
    assert grown(Prefetch(AUTO), welcome(placement="trainer"))[-1] == 16
    assert grown(Prefetch(AUTO), None) == [2], "nothing is known of the feed"
