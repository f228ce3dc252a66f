"""Trainers are let in where they fit, and are served as far as their windows reach."""

from collections import Counter

import pytest

from headrace_server.core.dispatch_effects import JoinRefused
from headrace_server.core.trainers import MAX_WORLD, Trainers


class At:
    """Trainers of a feed, and how many batches each holds."""

    def __init__(self, *sessions: int, max_window: int = 4) -> None:
        self.held: Counter[int] = Counter()
        self.all = Trainers(max_window, self.held.__getitem__)
        for session in sessions:
            self.all.join(session, 0.0, -1)

    def window(self, session: int, upto: int) -> None:
        self.all.present[session].window = upto
        self.all.ask(session)

    @property
    def asking(self) -> list[int]:
        return list(self.all.asking)


@pytest.mark.parametrize(
    ("present", "world", "asked", "text"),
    [
        ([-1], 0, (0, 2), "shared by trainers without rank: all or none"),
        ([0], 2, (-1, 0), "coordinated mode with world_size=2: connect with rank="),
        ([0], 2, (0, 2), "rank=0 is taken"),
        ([0], 2, (1, 3), "world_size=3 differs from 2"),
        ([], 0, (2, 2), "rank=2 does not lie in 0 … world_size-1 = 1"),
        ([], 0, (0, MAX_WORLD + 1), f"world_size={MAX_WORLD + 1} is more than {MAX_WORLD}"),
    ],
)
def test_a_trainer_that_does_not_fit_the_others_is_refused(present, world, asked, text):
    trainers = At().all
    for session, rank in enumerate(present, 1):
        trainers.join(session, 0.0, rank)
    with pytest.raises(JoinRefused, match=text):
        trainers.check(9, *asked, world)
    assert list(trainers.present) == list(range(1, len(present) + 1))


def test_the_first_trainer_sets_the_world_size_anew():
    trainers = At().all
    for asked in ((-1, 0), (0, 2), (1, 3), (MAX_WORLD - 1, MAX_WORLD)):
        trainers.check(1, *asked, 2)


def test_a_rank_can_be_taken_again_when_its_trainer_has_left():
    trainers = At().all
    trainers.join(1, 0.0, 0)
    assert trainers.leave(1) == 0 and trainers.leave(1) is None
    trainers.join(2, 0.0, 1)
    trainers.check(3, 0, 2, 2)
    assert trainers.absent(2) == "1 ranks have not joined: 0"


def test_those_that_ask_are_in_the_order_in_which_they_began_to():
    at = At(1, 2, 3)
    at.window(2, 1)
    at.window(1, 1)
    at.window(2, 5)
    assert at.asking == [2, 1]
    at.all.leave(2)
    at.all.ask(2)
    assert at.asking == [1]


def test_a_trainer_takes_as_far_as_its_window_reaches_and_never_more_than_it_may_hold():
    at = At(1, max_window=4)
    trainer = at.all.present[1]
    assert not at.all.credits(trainer)
    at.window(1, 9)
    trainer.seq = 7
    assert at.all.credits(trainer) == 2
    at.held[1] = 3
    assert at.all.credits(trainer) == 1
    at.held[1] = 4
    assert at.all.credits(trainer) == 0
    at.held[1], trainer.seq = 0, 9
    assert not at.all.credits(trainer)


def test_a_rank_that_asks_is_due_and_a_trainer_without_one_is_not():
    at = At(1)
    at.window(1, 1)
    assert not at.all.due
    ranked = At()
    ranked.all.join(5, 0.0, 3)
    ranked.all.ask(5)
    assert not ranked.all.due
    ranked.window(5, 1)
    assert list(ranked.all.due) == [3] and ranked.asking == [5]


def test_a_trainer_is_silent_when_the_whole_time_has_passed():
    at = At(1, 2)
    at.all.present[2].seen = 1.0
    assert at.all.silent(9.9, 10.0) == [] and at.all.silent(10.0, 10.0) == [1]
    assert at.all.silent(11.0, 10.0) == [1, 2]


def test_the_first_ranks_that_are_absent_are_named():
    trainers = At().all
    trainers.join(1, 0.0, 3)
    assert trainers.absent(2**16).endswith("65535 ranks have not joined: 0, 1, 2, 4, 5, 6, 7, 8, …")
    assert trainers.absent(9).endswith("8 ranks have not joined: 0, 1, 2, 4, 5, 6, 7, 8")
    assert At(1).all.absent(0) == ""
