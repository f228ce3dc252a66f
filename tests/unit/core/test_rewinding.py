"""Who joins a feed that was taken back, and who has it taken back again."""

from __future__ import annotations

from headrace_server.core.rewinding import Judgement, Member, Rewinding

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
    assert feed.judge(b"n", b"p", S, [Member(b"q", S, 0.9)], 1.0) is Judgement.WAIT
    assert feed.judge(b"n", b"p", S, [Member(b"q", S, 0.9)], 2.0) is Judgement.WAIT
    assert feed.judge(b"n", b"p", S, [Member(b"q", S, 2.5)], 3.0) is Judgement.JOIN


def test_a_group_that_is_given_up_has_the_feed_taken_back():
    feed = Rewinding(1, S)
    assert feed.judge(b"n", b"p", S, [Member(b"q", S, 0.9)], 1.0) is Judgement.WAIT
    assert feed.judge(b"n", b"p", S, [], 2.0) is Judgement.TAKE_BACK


def test_the_same_process_and_trainers_without_the_token_are_no_group():
    members = [Member(b"p", S, 9.0), Member(b"q", "", 9.0), Member(b"r", OTHER, 9.0)]
    assert Rewinding(1, S).judge(b"n", b"p", S, members, 1.0) is Judgement.TAKE_BACK


def test_trainers_of_another_generation_are_told_apart_from_new_ones():
    feed = Rewinding(2, S)
    assert feed.of_another_generation(1)
    assert feed.of_another_generation(0)
    assert not feed.of_another_generation(2)
    assert not feed.of_another_generation(-1)
