"""Which trainers join a feed that was taken back, and which have it taken back again."""

from __future__ import annotations

from headrace_server.core.rewinding import BEGINNING, Judgement, PresentTrainer, Rewinding
from headrace_server.core.trainers import LATE_S

S, OTHER = "snapshot", "another"


def test_an_untouched_feed_at_the_snapshot_is_joined():
    feed = Rewinding(1, S, untouched=True)
    assert feed.judge(b"n", b"p", S, [], 1.0) is Judgement.JOIN


def test_a_feed_at_another_place_is_taken_back():
    assert Rewinding().judge(b"n", b"p", S, [], 1.0) is Judgement.TAKE_BACK
    assert Rewinding(1, OTHER, True).judge(b"n", b"p", S, [], 1.0) is Judgement.TAKE_BACK


def test_a_touched_feed_without_others_is_taken_back_again():
    assert Rewinding(1, S).judge(b"n", b"p", S, [], 1.0) is Judgement.TAKE_BACK


def test_a_trainer_of_a_living_group_joins_once_another_member_has_greeted():
    feed = Rewinding(1, S)
    assert feed.judge(b"n", b"p", S, [PresentTrainer(b"q", S, 0.9)], 1.0) is Judgement.WAIT
    assert feed.judge(b"n", b"p", S, [PresentTrainer(b"q", S, 0.9)], 2.0) is Judgement.WAIT
    late = [PresentTrainer(b"q", S, 1.0 + LATE_S)]  # of one that may be dead
    assert feed.judge(b"n", b"p", S, late, 4.0) is Judgement.WAIT
    assert feed.judge(b"n", b"p", S, [PresentTrainer(b"q", S, 4.5)], 5.0) is Judgement.JOIN


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


def test_trainers_of_another_generation_are_distinguished_from_new_ones():
    feed = Rewinding(2, S)
    assert feed.of_another_generation(1)
    assert feed.of_another_generation(0)
    assert not feed.of_another_generation(2)
    assert not feed.of_another_generation(-1)


def test_an_unknown_start_is_distinguished_from_starts_before_all_known_ones():
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


def test_a_return_to_the_beginning_is_refused_once_another_trainer_has_greeted():
    feed = Rewinding(1, S)
    others = [PresentTrainer(b"q", S, 0.9), PresentTrainer(b"r", "", 0.5)]
    assert feed.judge(b"n", b"p", BEGINNING, others, 1.0) is Judgement.WAIT
    late = [PresentTrainer(b"q", S, 1.0 + LATE_S)]
    assert feed.judge(b"n", b"p", BEGINNING, late, 4.0) is Judgement.WAIT
    alive = [PresentTrainer(b"q", S, 4.5)]
    assert feed.judge(b"n", b"p", BEGINNING, alive, 5.0) is Judgement.REFUSE
    assert feed.judge(b"m", b"p", BEGINNING, [], 6.0) is Judgement.TAKE_BACK


def test_trainers_that_start_a_feed_anew_together_are_a_group():
    feed = Rewinding(1, BEGINNING)
    assert (
        feed.judge(b"n", b"p", BEGINNING, [PresentTrainer(b"q", BEGINNING, 0.9)], 1.0)
        is Judgement.WAIT
    )
    assert (
        feed.judge(b"n", b"p", BEGINNING, [PresentTrainer(b"q", BEGINNING, 4.5)], 5.0)
        is Judgement.JOIN
    )


def test_trainers_that_acknowledged_the_end_do_not_use_the_feed_and_still_form_a_group():
    ended = [PresentTrainer(b"q", "", 2.0, uses=False)]
    assert Rewinding().judge(b"n", b"p", BEGINNING, ended, 1.0) is Judgement.TAKE_BACK
    feed = Rewinding(1, BEGINNING)
    feed.judge(b"n", b"p", BEGINNING, ended, 1.0)
    ended = [PresentTrainer(b"q", BEGINNING, 4.5, uses=False)]
    assert feed.judge(b"n", b"p", BEGINNING, ended, 5.0) is Judgement.JOIN
