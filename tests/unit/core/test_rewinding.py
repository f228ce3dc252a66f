"""Which trainers join a feed that was taken back, and which have it taken back again."""

from __future__ import annotations

from headrace_server.core.rewinding import BEGINNING, Judgement, PresentTrainer, Rewinding

S, OTHER = "snapshot", "another"


def test_an_untouched_feed_at_the_snapshot_is_joined():
    feed = Rewinding(1, S, untouched=True)
    assert feed.judge(b"n", b"p", S, [], 1.0) is Judgement.JOIN


def test_a_feed_at_another_place_is_taken_back():
    assert Rewinding().judge(b"n", b"p", S, [], 1.0) is Judgement.TAKE_BACK
    assert Rewinding(1, OTHER, True).judge(b"n", b"p", S, [], 1.0) is Judgement.TAKE_BACK


def test_a_touched_feed_without_others_is_taken_back_again():
    assert Rewinding(1, S).judge(b"n", b"p", S, [], 1.0) is Judgement.TAKE_BACK


def test_a_trainer_of_a_living_group_joins_once_another_was_heard_of():
    feed = Rewinding(1, S)
    assert feed.judge(b"n", b"p", S, [PresentTrainer(b"q", S, 0.9)], 1.0) is Judgement.WAIT
    assert feed.judge(b"n", b"p", S, [PresentTrainer(b"q", S, 0.9)], 2.0) is Judgement.WAIT
    assert feed.judge(b"n", b"p", S, [PresentTrainer(b"q", S, 2.5)], 3.0) is Judgement.JOIN


def test_a_group_that_is_given_up_has_the_feed_taken_back():
    feed = Rewinding(1, S)
    assert feed.judge(b"n", b"p", S, [PresentTrainer(b"q", S, 0.9)], 1.0) is Judgement.WAIT
    assert feed.judge(b"n", b"p", S, [], 2.0) is Judgement.TAKE_BACK


def test_the_same_process_and_trainers_without_the_token_are_no_group():
    members = [
        PresentTrainer(b"p", S, 9.0),
        PresentTrainer(b"q", "", 9.0),
        PresentTrainer(b"r", OTHER, 9.0),
    ]
    assert Rewinding(1, S).judge(b"n", b"p", S, members, 1.0) is Judgement.TAKE_BACK


def test_trainers_of_another_generation_are_told_apart_from_new_ones():
    feed = Rewinding(2, S)
    assert feed.of_another_generation(1)
    assert feed.of_another_generation(0)
    assert not feed.of_another_generation(2)
    assert not feed.of_another_generation(-1)


def test_a_start_that_the_state_does_not_know_is_told_from_those_before_all_that_it_knows():
    state = Rewinding(starts=(5, 6, 9))
    assert state.unknown_start([0, 3, 5, 6, 9]) is None
    for forgotten in (7, 8, 10):
        assert state.unknown_start([6, forgotten]) == forgotten
    assert Rewinding().unknown_start([7]) is None, "nothing outlives this server"


def test_a_feed_that_nobody_used_is_at_its_beginning_and_is_joined():
    members = [PresentTrainer(b"q", "", 9.0)]
    assert Rewinding(untouched=True).judge(b"n", b"p", BEGINNING, members, 1.0) is Judgement.JOIN


def test_a_used_feed_is_taken_back_to_its_beginning_where_no_other_trainer_is_there():
    mine = [PresentTrainer(b"p", "", 9.0)]
    assert Rewinding().judge(b"n", b"p", BEGINNING, mine, 1.0) is Judgement.TAKE_BACK
    assert Rewinding(1, S, True).judge(b"n", b"p", BEGINNING, [], 1.0) is Judgement.TAKE_BACK


def test_the_beginning_is_refused_once_another_trainer_was_heard_of_since_it_was_asked_for():
    feed = Rewinding(1, S)
    others = [PresentTrainer(b"q", S, 0.9), PresentTrainer(b"r", "", 0.5)]
    assert feed.judge(b"n", b"p", BEGINNING, others, 1.0) is Judgement.WAIT
    alive = [PresentTrainer(b"q", S, 1.9)]
    assert feed.judge(b"n", b"p", BEGINNING, alive, 2.0) is Judgement.REFUSE
    assert feed.judge(b"m", b"p", BEGINNING, [], 3.0) is Judgement.TAKE_BACK


def test_trainers_that_start_a_feed_anew_together_are_a_group():
    feed = Rewinding(1, BEGINNING)
    assert (
        feed.judge(b"n", b"p", BEGINNING, [PresentTrainer(b"q", BEGINNING, 0.9)], 1.0)
        is Judgement.WAIT
    )
    assert (
        feed.judge(b"n", b"p", BEGINNING, [PresentTrainer(b"q", BEGINNING, 1.5)], 2.0)
        is Judgement.JOIN
    )


def test_trainers_that_have_heard_the_end_use_it_no_more_and_still_are_a_group():
    ended = [PresentTrainer(b"q", "", 2.0, uses=False)]
    assert Rewinding().judge(b"n", b"p", BEGINNING, ended, 1.0) is Judgement.TAKE_BACK
    feed = Rewinding(1, BEGINNING)
    feed.judge(b"n", b"p", BEGINNING, ended, 1.0)
    ended = [PresentTrainer(b"q", BEGINNING, 2.0, uses=False)]
    assert feed.judge(b"n", b"p", BEGINNING, ended, 2.0) is Judgement.JOIN
