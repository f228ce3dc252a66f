"""A trainer gets an answer to each send of a commit, once the commit is stored."""

from __future__ import annotations

from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import Answer, Finish, Freed, Send, StoreCommit

from .anew import TERM, TTL, At


def test_a_trainer_whose_worker_does_not_keep_up_gets_no_more_until_it_does():
    at = At()
    at.d = Dispatcher(range(1), TTL, max_window=2, term=TERM)
    at.d.started(0, 0)
    at.join(1, window=100)
    for number in range(20):
        at.make(number)
    for _ in range(20):
        for send in at.take(Send):
            at.d.commit(1, (send.token,))
    assert at.d.leased == 4, "as many as it may hold, twice"
    at.d.stored(0, [(0, "", "")])
    (send,) = at.take(Send)
    assert send.batch.number == 4
    at.d.commit(1, (send.token,))
    for number in range(1, 20):
        at.d.stored(0, [(number, "", "")])
        for send in at.take(Send):
            at.d.commit(1, (send.token,))
    assert at.d.counts["batches"] == 20 and not at.d.leased


def test_a_commit_is_answered_when_its_worker_has_kept_it_and_not_before():
    at = At()
    at.join(1, window=2)
    batch = at.make(0)
    (send,) = at.take(Send)
    at.d.commit(1, (send.token,))
    assert at.take() == [StoreCommit(batch, None, send.token), Freed(batch)]
    assert at.d.leased == 1 and at.d.counts["batches"] == 0
    at.d.stored(0, [(0, "", "")])
    assert at.take() == [Answer(1, (send.token,), ())]
    assert at.d.leased == 0 and at.d.counts["batches"] == 1
    at.d.commit(1, (send.token,))
    assert at.take() == [Answer(1, (send.token,), ())], "it is answered as it was"


def test_commits_that_are_stored_together_have_one_answer_for_each_trainer_and_one_for_each_fault():
    at = At()
    at.join(1, window=3)
    at.join(2, window=1)
    for number in range(4):
        at.make(number)
    sends = {send.batch.number: send for send in at.take(Send)}
    assert len(sends) == 4
    for send in sends.values():
        at.d.commit(send.session, (send.token,))
    at.take()
    mine = [send for _, send in sorted(sends.items()) if send.session == 1]
    (other,) = (send for send in sends.values() if send.session == 2)
    stored = [(send.batch.number, "", "") for send in (mine[0], other, mine[2])]
    refused = mine[1].batch.number, "data", "it is damaged"
    at.d.stored(0, [*stored[:2], refused, stored[2], (9, "", "")])
    assert sorted(at.take(Answer), key=str) == [
        Answer(1, (), (), ((mine[1].token, "data", "it is damaged"),)),
        Answer(1, (mine[0].token, mine[2].token), ()),
        Answer(2, (other.token,), ()),
    ]
    assert at.d.counts["batches"] == 3 and not at.d.leased


def test_the_end_is_sent_when_the_last_commit_is_stored():
    at = At()
    at.join(1, window=2)
    at.make(0)
    (send,) = at.take(Send)
    at.d.partition_ended(0)
    at.d.commit(1, (send.token,))
    assert at.take(Finish) == [] and not at.d.ended
    at.d.stored(0, [(0, "", "")])
    assert at.take(Finish) == [Finish(1)] and at.d.ended
