"""A trainer that relies on lost commits is sent away, and none of its commits count."""

from __future__ import annotations

import pytest

from headrace_server.core.acknowledged_commits import Acknowledged
from headrace_server.core.dispatch_effects import Answer, Claim, Rewound, Send, StoreCommit

from .anew import OLD, At


def test_a_trainer_whose_acknowledged_commit_is_not_known_is_sent_away_and_commits_nothing():
    """Two trainers come with a claim and a commit each; one saves its batch again at once."""
    at = At(made=2)
    at.join(1, 2)
    told = [Acknowledged(OLD + 1, 0), Acknowledged(OLD + 2, 0)]
    for session, commit in enumerate(told, 1):
        at.d.recall(session, commit)
        at.claim(session, session + 10, session + 1)
        at.d.commit(session, (OLD + session + 10,))
    assert [e.place for e in at.take(Claim)].count(told[0]) == 1
    at.d.claimed(OLD + 1, "done", 0)
    at.d.claimed(OLD + 2, "no", 0)
    for session in (1, 2):
        at.d.claimed(OLD + session + 10, "yes", session + 1)
        at.make(session + 1)
    effects = at.take(Rewound, StoreCommit)
    assert [type(e) for e in effects] == [Rewound, StoreCommit]
    assert effects[0].session == 2 and effects[1].token == OLD + 11
    at.d.claimed(OLD + 2, "no", 0)
    assert at.take() == []


def test_two_trainers_that_rely_on_one_commit_are_both_answered():
    at = At(made=2)
    at.join(1, 2, window=4)
    for session in (1, 2):
        at.d.recall(session, Acknowledged(OLD + 1, 0))
    at.d.claimed(OLD + 1, "done", 0)
    at.make(2)
    at.make(3)
    assert sorted(e.session for e in at.take(Send)) == [1, 2]
    at.d.claimed(OLD + 1, "done", 0)
    assert at.take() == []


def test_a_trainer_that_has_left_is_neither_believed_nor_sent_away():
    at = At(made=2)
    at.join(1, window=4)
    at.d.recall(1, Acknowledged(OLD + 1, 0))
    at.d.commit(1, (OLD + 7,))
    at.d.leave(1)
    at.d.claimed(OLD + 1, "no", 0)
    assert at.take(Answer, Rewound) == []


@pytest.mark.parametrize("known", [True, False])
def test_a_trainer_is_given_nothing_before_its_acknowledged_commits_are_found(known):
    at = At(made=2)
    at.join(1, window=4)
    at.d.recall(1, Acknowledged(OLD + 1, 0))
    at.d.recall(1, Acknowledged(OLD + 2, 0))
    at.make(2)
    at.d.commit(1, (OLD + 7,))
    at.d.claimed(OLD + 1, "done", 0)
    assert at.take(Send, Answer, Rewound) == []
    at.d.claimed(OLD + 2, "done" if known else "no", 0)
    told = at.take(Send, Answer, Rewound)
    assert {type(e) for e in told} == ({Send, Answer} if known else {Rewound})
