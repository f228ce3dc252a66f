"""The length of a loop and the progress of a feed, from the announcements of servers."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.feed_progress import FeedProgress, batches_of_loop, progress_of
from headrace.requests import progress
from headrace_proto.messages import Answered

SHARES = [{"length": 15}, {"length": 6}]


def counts(batches: int = 0, epoch: int = 0, still: bool = True) -> dict[str, Any]:
    return {"batches": batches, "rows": 2 * batches, "epoch": epoch, "open": still}


def test_the_length_is_the_sum_of_all_owners() -> None:
    assert batches_of_loop(SHARES) == 21


@pytest.mark.parametrize(
    ("announced", "reason"),
    [
        ([{"length": 2}, {}], "its server does not announce one"),
        ([{"length": 2}, {"length": "a stage drops"}], "a stage drops"),
        ([{"length": 2, "resized": True}], "its batch size was changed"),
        ([{"length": 2**62}, {"length": 2**62}], "more than len"),
    ],
)
def test_a_length_that_is_not_known_has_a_reason(
    announced: list[dict[str, Any]], reason: str
) -> None:
    assert reason in str(batches_of_loop(announced))


@pytest.mark.parametrize(
    ("more", "world", "fraction"),
    [
        ({}, 0, 6 / 21),
        ({}, 2, 6 / 42),
        ({"epochs": 2}, 0, 6 / 21),
        ({"epochs": 2, "across_batches": False}, 0, 6 / 42),
        ({"epochs": None, "across_batches": False}, 0, None),
        ({"length": "none"}, 0, None),
        ({"length": -4}, 0, 1.0),
        ({"length": -6}, 0, 0.0),
    ],
)
def test_the_fraction_is_of_all_batches_that_trainers_get(
    more: dict[str, Any], world: int, fraction: float | None
) -> None:
    announced = [{**SHARES[0], **more}, SHARES[1]]
    assert progress_of(counts(6), announced, world).fraction == fraction


def test_an_ended_feed_is_done_even_where_its_length_is_unknown() -> None:
    ended = progress_of(counts(6, 3, still=False), [{"length": "none", "epochs": 3}], 0)
    assert ended == FeedProgress(rows=12, batches=6, epoch=2, epochs=3, fraction=1.0)
    assert str(ended) == "epoch 3 of 3: 12 rows in 6 batches, 100%"
    endless = progress_of(counts(6, 7), [{"length": "none", "epochs": None}], 0)
    assert str(endless) == "epoch 8: 12 rows in 6 batches"


def answer(batches: int, epoch: int, still: bool) -> Answered:
    return Answered(3, 1, counts(batches, epoch, still))


def test_owners_that_have_ended_count_and_wait_for_no_epoch() -> None:
    request = progress()
    joined = request.joined([answer(2, 1, False), answer(3, 5, True), answer(4, 4, True)])
    assert joined.value == counts(9, 4, True)
    assert request.joined([answer(2, 1, False), answer(3, 5, False)]).value == counts(5, 5, False)
    failed = Answered(3, 1, None, "server", "no")
    assert request.joined([answer(2, 1, True), failed]) is failed
