"""A trainer joins a group where a place is free and its members live."""

from __future__ import annotations

import pytest

from headrace_server.core.dispatch_effects import JoinRefused
from headrace_server.core.trainers import LATE_S

from .greetings import hello
from .test_group_dispatch import filled, joined, sent


def test_a_trainer_that_differs_is_refused_once_the_members_have_shown_that_they_live():
    d = filled()
    joined(d, 1)
    asked = [(3, -1, 0, "members=3 differs from 2"), (2, 0, 1, "rank=0 of 1 differs from no rank")]
    for size, rank, world, text in asked:
        for heard in (0.0, 1.0 + LATE_S):  # the later message may be from before its death, too
            d.seen(1, heard)
            assert not d.admits(hello(b"x%d" % rank, rank, world, "g", size), heard + 1.0)
        d.seen(1, 4.0)
        with pytest.raises(JoinRefused, match=text):
            d.admits(hello(b"x%d" % rank, rank, world, "g", size), 5.0)
        d.seen(1, 0.0)
    joined(d, 2)
    assert not d.admits(hello(b"y", group="g", members=2), 1.0)
    d.seen(1, 4.0), d.seen(2, 4.0)
    with pytest.raises(JoinRefused, match="all of its members=2 are there already"):
        d.admits(hello(b"y", group="g", members=2), 5.0)
    assert d.admits(hello(b"y", group="h", members=2), 5.0)


def test_a_free_place_beside_others_that_have_begun_is_taken_once_these_have_shown_that_they_live():
    d = filled()
    joined(d, 1)
    joined(d, 2)
    sent(d)
    d.leave(2)
    assert d.admits(hello(b"2", group="g", members=2), 1.0)  # it was there before
    assert not d.admits(hello(b"3", group="g", members=2), 1.0)
    d.seen(1, 1.0 + LATE_S)
    assert not d.admits(hello(b"3", group="g", members=2), 4.0)
    d.seen(1, 4.5)
    assert d.admits(hello(b"3", group="g", members=2), 5.0)


def test_the_status_of_a_member_counts_what_it_has_and_would_take():
    d = filled()
    for session, window in ((1, 2), (2, 1)):
        d.join_group(session, hello(b"%d" % session, group="g", members=2), 0.0)
        d.window(session, window)
    d.take_effects()
    assert d.standing_of(1) == {"rank": -1, "window": 1, "leases": 1}
    assert d.standing_of(2) == {"rank": -1, "window": 0, "leases": 1}
