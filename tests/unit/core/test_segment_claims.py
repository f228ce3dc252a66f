"""Rows of an earlier server continue with their trainer, and dependent rows come later."""

from __future__ import annotations

from headrace_proto.messages import Handed
from headrace_server.core.dispatch_effects import Answer, Claim, Release, Send, StoreCommit, Want

from .at_segments import At

OLD = 5


def claim(at, session=1, token=OLD, rows=2, segments=None):
    which = b"s" * (12 * rows) if segments is None else segments
    place = Handed(token, 0, 3, rows, which)
    at.d.claim(session, place)
    return place


def test_a_claimed_batch_counts_beside_wanted_ones_at_the_desk_and_at_the_partition():
    at = At(term=1)
    at.join(1, window=1)
    place = claim(at)
    assert at.take() == [Want(0, 1), Claim(0, place)]
    at.d.claimed(OLD, "yes", 0)
    assert at.take() == []
    at.make(0, 1)
    assert [e.batch.number for e in at.take(Send)] == [1]
    at.d.save(1, OLD, "states")
    (save,) = at.take(StoreCommit)
    assert (save.batch.order, save.batch.rows, save.token) == ((0, 0), 2, OLD)
    at.d.stored(0, [(0, "", "")])
    assert at.take(Answer) == [Answer(1, (OLD,), ())]


def test_states_of_a_claimed_batch_can_be_checked_before_the_worker_has_spoken():
    at = At(term=1)
    at.join(1)
    claim(at)
    assert at.d.leased_batch(1, OLD).rows == 2
    at.d.save(1, OLD, "states")
    at.d.claimed(OLD, "no", 0)
    assert at.take(Answer) == [Answer(1, (), (OLD,))] and at.d.leased_batch(1, OLD) is None


def test_a_claim_whose_row_count_is_wrong_is_refused():
    at = At(term=1)
    at.join(1)
    claim(at, segments=b"s" * 23)
    claim(at, rows=0)
    assert at.take() == []
    at.d.save(1, OLD, "states")
    assert at.take() == [Answer(1, (), (OLD,))]


def test_a_claimed_batch_whose_trainer_leaves_is_released_once_and_its_rows_go_out_again():
    at = At(term=1)
    at.join(1)
    claim(at)
    at.d.claimed(OLD, "yes", 0)
    at.take()
    at.d.leave(1)
    released, freed = at.take()
    assert released == Release(0, 0) and freed.batch.order == (0, 0)
    at.d.save(1, OLD)
    assert at.take() == [Answer(1, (), (OLD,))]


def reclaimed(batch, token):
    return Handed(token, batch.partition, batch.number, batch.rows, b"s" * 12 * batch.rows)


def test_a_claim_that_depends_on_states_is_judged_after_they_are_saved_again():
    at = At(term=1)
    at.join(1, window=4)
    at.take()

    def place(token, number):
        return Handed(token, 0, number, 2, b"s" * 24)

    at.d.claim(1, place(OLD, 3), saved=True)
    at.d.claim(1, place(OLD + 1, 4))
    assert [e.place.token for e in at.take(Claim)] == [OLD], "the other one may be made of it"
    at.d.claimed(OLD, "yes", 0)
    at.d.window(1, 5)
    assert at.take(Claim) == []
    at.d.save(1, OLD, "states")
    assert [e.token for e in at.take(StoreCommit)] == [OLD]
    at.d.stored(0, [(0, "", "")])
    assert [e.place.token for e in at.take(Claim)] == [OLD + 1]
    at.d.claimed(OLD + 1, "yes", 1)
    at.d.save(1, OLD + 1, "more")
    assert [e.token for e in at.take(StoreCommit)] == [OLD + 1]


def test_a_save_that_never_comes_holds_nobody_up_for_longer_than_its_trainer():
    at = At(term=1)
    at.join(1, 2, window=4)
    at.d.claim(1, Handed(OLD, 0, 3, 2, b"s" * 24), saved=True)
    at.d.claim(2, Handed(OLD + 1, 0, 4, 2, b"s" * 24))
    at.d.claimed(OLD, "yes", 0)
    at.take()
    at.d.leave(1)
    assert [e.place.token for e in at.take(Claim)] == [OLD + 1]
    at.d.claimed(OLD + 1, "yes", 1)
    at.take()
    at.d.window(2, 9)
    assert len(at.take(Want)) == 1


def test_a_partition_is_asked_again_when_its_last_claim_is_judged_though_others_came_meanwhile():
    at = At(term=1)
    at.join(1, 2)
    at.d.claim(1, Handed(OLD, 0, 3, 2, b"s" * 24), saved=True)
    at.d.claim(1, Handed(OLD + 1, 0, 4, 2, b"s" * 24))
    at.d.claimed(OLD, "done", 0)
    assert [e.place.token for e in at.take(Claim)] == [OLD, OLD + 1]
    at.d.claim(2, Handed(OLD + 2, 0, 5, 2, b"s" * 24))
    at.d.claimed(OLD + 1, "yes", 0)
    at.d.window(2, 3)
    assert at.take(Want) == []
    at.d.claimed(OLD + 2, "no", 0)
    assert at.take(Want) == [Want(0, 3)]


def test_claims_are_judged_in_the_order_of_tokens_once_all_trainers_have_greeted():
    at = At(term=1)
    at.d.wait_for_others(True)
    at.join(1, 2)
    at.d.claim(2, Handed(OLD + 1, 0, 4, 2, b"s" * 24))
    at.d.claim(1, Handed(OLD, 0, 3, 2, b"s" * 24), saved=True)
    assert at.take(Claim) == [], "one that comes may have saved the states from which they are made"
    at.d.wait_for_others(False)
    assert [e.place.token for e in at.take(Claim)] == [OLD]
    at.d.claimed(OLD, "no", 0)
    assert [e.place.token for e in at.take(Claim)] == [OLD + 1]
