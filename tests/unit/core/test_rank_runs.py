"""Ranks that train together have one run, and later ranks another."""

from __future__ import annotations

import pytest

from headrace_server.core.dispatch_effects import JoinRefused
from headrace_server.core.end_of_feed import RETURN_S
from headrace_server.core.rank_runs import Runs
from headrace_server.core.trainers import LATE_S, Trainer

from .greetings import hello


class Feed:
    """Trainers of two ranks at one owner of a feed."""

    def __init__(self, term: int = 0) -> None:
        self.runs = Runs(term)
        self.present: dict[int, Trainer] = {}

    def judge(
        self, nonce: bytes, rank: int, named: int = 0, now: float = 0.0, world: int = 2
    ) -> int | None:
        return self.runs.judge(hello(nonce, rank, world, run=named), self.present.values(), now)

    def join(
        self, nonce: bytes, rank: int, named: int = 0, now: float = 0.0, world: int = 2
    ) -> int:
        run = self.judge(nonce, rank, named, now, world)
        assert run is not None
        self.runs.joined(hello(nonce, rank, world), run)
        self.present[rank] = Trainer(rank, now, rank)
        return run

    def hear(self, rank: int, now: float) -> None:
        self.present[rank].seen = now

    def leave(self, *ranks: int) -> None:
        for rank in ranks:
            del self.present[rank]


def test_the_ranks_of_a_job_are_of_one_run_and_do_not_wait_for_each_other():
    feed = Feed()
    assert feed.join(b"a0", 0) == feed.join(b"a1", 1) == 1


def test_a_job_that_starts_again_is_another_run():
    feed = Feed()
    feed.join(b"a0", 0), feed.join(b"a1", 1)
    feed.leave(0, 1)
    assert feed.join(b"b1", 1, now=5.0) == feed.join(b"b0", 0, now=5.0) == 2


def test_a_rank_that_comes_back_is_of_the_run_of_those_that_live():
    """1. Rank 0 dies and comes back; rank 1 has sent nothing since.
    2. A message of rank 1 comes, which may be from before its death.  3. Another one comes.
    """
    feed = Feed()
    feed.join(b"a0", 0), feed.join(b"a1", 1)
    feed.leave(0)
    assert feed.judge(b"b0", 0, now=5.0) is None
    feed.hear(1, 5.0 + LATE_S)
    assert feed.judge(b"b0", 0, now=8.0) is None
    feed.hear(1, 8.5)
    assert feed.join(b"b0", 0, now=9.0) == 1


def test_a_rank_that_comes_back_begins_another_run_once_the_others_are_found_dead():
    """All ranks die together; the death of rank 1 is noticed after rank 0 has come back."""
    feed = Feed()
    feed.join(b"a0", 0), feed.join(b"a1", 1)
    feed.leave(0)
    assert feed.judge(b"b0", 0, now=5.0) is None
    assert feed.judge(b"b1", 1, now=5.0) is None  # its place is taken, by a dead one
    feed.leave(1)
    assert feed.join(b"b1", 1, now=6.0) == feed.join(b"b0", 0, now=6.0) == 2


def test_a_place_that_a_living_trainer_has_is_not_waited_for():
    feed = Feed()
    feed.join(b"a0", 0)
    assert feed.judge(b"b0", 0, now=5.0) is None
    feed.hear(0, 5.0 + LATE_S)
    assert feed.judge(b"b0", 0, now=8.0) is None  # it may be dead, and its message late
    feed.hear(0, 8.5)
    assert feed.judge(b"b0", 0, now=9.0) == 1  # and is refused when it joins


def test_another_number_of_ranks_waits_for_the_death_of_those_that_are_there():
    feed = Feed()
    feed.join(b"a0", 0)
    assert feed.judge(b"b2", 2, world=3) is None
    feed.leave(0)
    assert feed.join(b"b2", 2, world=3) == feed.join(b"b0", 0, world=3) == 2


def test_an_owner_believes_a_trainer_that_names_its_run():
    """The first owner has answered both; this one still has a dead trainer of the run before."""
    feed = Feed()
    feed.join(b"a0", 0, 7), feed.join(b"a1", 1, 7)
    feed.leave(0)
    assert feed.judge(b"b0", 0, 8, 5.0) is None
    feed.hear(1, 5.5)  # its message from before its death
    assert feed.judge(b"b0", 0, 8, 6.0) is None
    feed.leave(1)
    assert feed.join(b"b0", 0, 8, 7.0) == feed.join(b"b1", 1, 8, 7.0) == 8


@pytest.mark.parametrize("named", [6, 1 << 63])
def test_a_run_that_is_over_or_can_not_be_is_refused(named: int):
    feed = Feed()
    feed.join(b"a0", 0, 7)
    with pytest.raises(JoinRefused, match="rank=1: this trainer is of a run that is over"):
        feed.judge(b"z1", 1, named)
    assert feed.join(b"a1", 1, 7) == 7


def test_trainers_of_an_earlier_owner_are_waited_for():
    """1. A rank without a run comes first, 2. one of the earlier run comes back."""
    feed = Feed(term=3)
    feed.runs.goes_on(7)
    assert feed.judge(b"b0", 0, now=5.0) is None
    feed.join(b"a1", 1, 7, 6.0)
    assert feed.join(b"b0", 0, now=7.0) == 7


def test_a_job_that_starts_after_its_server_is_another_run_than_any_before():
    """It is larger than a number that the earlier life announced without storing it."""
    feed = Feed(term=3)
    feed.runs.goes_on(7)
    assert feed.judge(b"b0", 0, now=5.0) is None
    assert feed.judge(b"b0", 0, now=5.0 + RETURN_S) == (3 << 32) + 1
    feed.join(b"b0", 0, now=5.0 + RETURN_S)
    assert feed.join(b"b1", 1, now=9.0) == (3 << 32) + 1
