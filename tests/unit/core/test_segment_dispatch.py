"""A save counts once and is answered when it is stored; trainers get batches by the order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_proto.limits import MAX_PREFETCH
from headrace_proto.messages import Handed, Idle, Passed
from headrace_server.core.admitted_examples import AT_TRAINER, NOWHERE
from headrace_server.core.dispatch_effects import (
    Answer,
    Batch,
    Finish,
    Freed,
    JoinRefused,
    Leave,
    Send,
    StoreCommit,
    StoreLanes,
    Want,
)
from tests.examples import some
from tests.footprint import entries

from .at_segments import TTL, At, lanes
from .segment_world import World

# What is asked for


def test_nothing_is_asked_for_before_a_trainer_wants_it_and_then_as_much_as_its_window():
    at = At()
    at.join(1)
    assert at.take() == []
    at.d.window(1, 2)
    assert at.take() == [Want(0, 2)]
    at.d.window(1, 2)
    assert at.take() == []
    at.make(0, 0)
    (send,) = at.take()
    assert (send.session, send.seq, send.batch.order) == (1, 1, (0, 0))
    at.d.window(1, 3)
    assert at.take() == [Want(0, 1)]


def test_without_prefetch_each_batch_is_asked_for_after_the_states_of_the_one_before():
    at = At(2)
    (token,) = at.sent((0, 0), window=1)
    at.d.save(1, token, "states")
    at.d.window(1, 2)
    batch = at.batches[0, 0]
    assert at.take() == [StoreCommit(batch, "states", token), Freed(batch), Want(1, 1)]


def test_no_more_batches_are_requested_than_a_trainer_may_hold():
    at = At(max_window=3)
    at.join(1, window=2**63)
    assert at.take() == [Want(0, 3)]
    tokens = []
    for number in range(3):
        at.make(0, number)
        tokens += [e.token for e in at.take(Send)]
    assert at.take(Want) == []
    at.d.save(1, tokens[0])
    assert at.take(Want) == [Want(0, 1)]


def test_trainers_are_asked_for_together_and_served_in_the_order_in_which_they_asked():
    at = At()
    at.join(1, 2)
    at.d.window(2, 1)
    at.d.window(1, 1)
    assert at.take() == [Want(0, 2)]
    at.make(0, 0)
    at.make(0, 1)
    assert [(e.session, e.batch.number) for e in at.take(Send)] == [(2, 0), (1, 1)]


def test_returned_batches_are_served_first_and_fewer_are_requested():
    at = At()
    at.sent((0, 0), (0, 1), window=3)
    at.d.leave(1)
    at.make(0, 2)
    at.join(2, window=4)
    assert [e.batch.number for e in at.take(Send)] == [0, 1, 2]
    assert at.take(Want) == [] and at.d.counts["redelivered"] == 2


def test_a_starved_partition_is_stepped_over_and_served_when_it_can_be():
    at = At(2)
    at.join(1, window=1)
    at.d.starved(0)
    assert at.take(Want) == [Want(0, 1), Want(1, 1)]
    at.make(0, 0)
    assert [e.batch.order for e in at.take(Send)] == [(0, 0)]
    at.make(1, 0)
    at.d.window(1, 2)
    assert [e.batch.order for e in at.take(Send)] == [(0, 1)]


def test_batches_wanted_of_an_ended_partition_are_requested_of_another():
    at = At(2)
    at.join(1, window=1)
    at.d.partition_ended(0)
    assert at.take() == [Want(0, 1), Want(1, 1)]


def test_nothing_is_asked_for_or_handed_out_while_paused_and_saves_still_count():
    at = At()
    (token,) = at.sent((0, 0))
    at.d.paused = True
    at.make(0, 1)
    at.d.window(1, 99)
    assert at.take() == []
    at.d.save(1, token)
    assert at.d.leased == 1, "a save that is not answered keeps the server from stopping"
    at.d.stored(0, [(0, "", "")])
    assert at.take(Answer) == [Answer(1, (token,), ())] and at.d.leased == 0


def test_a_batch_out_of_its_order_is_refused_and_changes_nothing():
    at = At()
    at.d.partition_ended(0)
    assert at.d.ended
    with pytest.raises(ValueError, match="made batch 0; next is nothing"):
        at.make(0, 0)
    assert at.d.ended


def test_a_rank_without_a_world_and_a_mix_of_modes_are_refused():
    at = At()
    for rank, world in ((-1, 2), (1, 0), (2, 2)):
        with pytest.raises(JoinRefused, match=f"rank={rank}"):
            at.d.join(1, 0.0, rank, world)
    at.join(1)
    with pytest.raises(JoinRefused, match="all or none give one"):
        at.d.join(2, 0.0, 0, 2, 1)


# Saves


def test_a_save_is_answered_when_it_is_kept_and_not_before():
    at = At()
    (token,) = at.sent((0, 0))
    batch = at.batches[0, 0]
    at.d.save(1, token, "states")
    assert at.take() == [StoreCommit(batch, "states", token), Freed(batch)]
    assert at.d.counts["batches"] == 0
    at.d.stored(0, [(0, "", "")])
    assert at.take() == [Answer(1, (token,), ())]
    assert at.d.counts["batches"] == 1 and at.d.counts["rows"] == 2
    at.d.stored(0, [(0, "", "")])
    at.d.stored(0, [(7, "", "")])
    assert at.take() == []


def test_a_save_that_comes_again_adds_nothing_and_is_answered_once_it_is_kept():
    at = At()
    (token,) = at.sent((0, 0))
    at.d.save(1, token, "states")
    at.take()
    at.d.save(1, token, "states")
    assert at.take() == []
    at.d.stored(0, [(0, "", "")])
    assert at.take(Answer) == [Answer(1, (token,), ())]
    at.d.save(1, token, "other states")
    assert at.take() == [Answer(1, (token,), ())]
    assert at.d.counts["batches"] == 1 and at.d.counts["stale"] == 0


def test_every_session_that_sent_a_save_is_answered():
    at = At()
    (token,) = at.sent((0, 0))
    at.d.save(1, token)
    at.d.leave(1)
    at.join(2)
    at.d.save(2, token)
    at.take()
    at.d.stored(0, [(0, "", "")])
    assert at.take(Answer) == [Answer(1, (token,), ()), Answer(2, (token,), ())]


def test_a_save_that_could_not_be_kept_is_answered_so_also_when_it_comes_again():
    at = At()
    (token,) = at.sent((0, 0))
    at.d.save(1, token)
    at.take()
    at.d.stored(0, [(0, "cancelled", "it was drained")])
    refused = Answer(1, (), (), ((token, "cancelled", "it was drained"),))
    assert at.take() == [refused]
    at.d.save(1, token)
    assert at.take() == [refused]
    assert at.d.counts["batches"] == 0
    at.d.partition_ended(0)
    assert at.d.ended


def test_a_late_save_counts_after_mere_expiry_and_is_stale_after_another_got_the_batch():
    at = At()
    first, second = at.sent((0, 0), (0, 1), window=2)
    at.d.join(2, 5.0)
    assert at.d.tick(TTL) == [1]
    at.d.save(1, first, "late")
    assert at.take(StoreCommit) == [StoreCommit(at.batches[0, 0], "late", first)]
    at.d.leave(1)
    at.d.window(2, 9)
    (again,) = at.take(Send)
    assert again.session == 2 and again.batch.number == 1
    at.d.save(1, second, "too late")
    assert at.take() == [Answer(1, (), (second,))]
    at.d.save(2, again.token, "states")
    assert at.take(StoreCommit) == [StoreCommit(at.batches[0, 1], "states", again.token)]
    assert at.d.counts["stale"] == 1 and at.d.counts["expired"] == 2


def test_nobody_saves_for_another():
    at = At()
    (token,) = at.sent((0, 0))
    at.join(2)
    at.d.save(2, token)
    assert at.take() == [Answer(2, (), (token,))]
    assert at.d.leased_batch(2, token) is None
    assert at.d.leased_batch(1, token) is at.batches[0, 0]


def test_a_plain_commit_is_refused_and_the_lease_stands():
    at = At()
    (token,) = at.sent((0, 0))
    at.d.commit(1, ())
    assert at.take() == []
    at.d.commit(1, (token,))
    (answer,) = at.take()
    assert answer.faults[0][:2] == (token, "state") and "save them" in answer.faults[0][2]
    at.d.save(1, token)
    assert at.take(StoreCommit) == [StoreCommit(at.batches[0, 0], None, token)]


def test_a_refused_save_leaves_the_lease():
    at = At()
    (token,) = at.sent((0, 0))
    at.d.refuse(1, token, "state", "it has another shape")
    assert at.take() == [Answer(1, (), (), ((token, "state", "it has another shape"),))]
    assert at.d.leased == 1
    at.d.save(1, token)
    assert at.take(StoreCommit)


def test_the_end_comes_after_the_last_states_are_kept_and_their_answer():
    at = At()
    (token,) = at.sent((0, 0))
    at.d.save(1, token)
    at.d.partition_ended(0)
    assert at.take(Finish) == [] and not at.d.ended
    at.d.stored(0, [(0, "", "")])
    assert [type(e) for e in at.take()] == [Answer, Finish] and at.d.ended
    at.join(2)
    assert at.take() == [Finish(2)]


def test_a_batch_that_somebody_reads_is_freed_when_it_is_let_go():
    at = At()
    (token,) = at.sent((0, 0))
    batch = at.batches[0, 0]
    at.d.pin(batch, "a frame")
    at.d.save(1, token)
    at.d.stored(0, [(0, "", "")])
    assert at.take(Freed) == []
    at.d.unpin(batch, "a frame")
    assert at.take(Freed) == [Freed(batch)]


def test_a_trainer_that_is_back_as_another_session_saves_what_it_held():
    at = At()
    (token,) = at.sent((0, 0))
    at.d.leave(1)
    at.join(2)
    at.d.adopt(2, (token,), 0.0)
    at.d.save(2, token)
    assert at.take(StoreCommit) == [StoreCommit(at.batches[0, 0], None, token)]


def test_a_flush_follows_the_save_of_its_batch_and_only_the_last_one_has_one():
    at = lanes()
    first, second = at.sent((0, 0), (0, 1))
    assert at.d.last_saved(1, first) is None
    at.d.save(1, first)
    batch = at.d.last_saved(1, first)
    at.d.flush(batch, "states")
    states = StoreLanes(batch, "states")
    assert at.take() == [StoreCommit(batch, None, first), Freed(batch), states]
    at.d.save(1, second)
    assert at.d.last_saved(1, first) is None and at.d.last_saved(1, second) is not None
    at.d.leave(1)
    assert at.d.last_saved(1, second) is None and at.d.last_saved(1, 0) is None


def test_a_flush_of_lost_lanes_is_distinguished_from_an_error_of_the_trainer():
    at = lanes()
    first, second = at.sent((0, 0), (0, 1))
    assert not at.d.lost_lanes(1, first), "it has still to save it"
    assert not at.d.lost_lanes(1, second + 1) and not at.d.lost_lanes(1, 0), "nobody ever had it"
    at.d.save(1, first)
    assert at.d.lost_lanes(1, first) and not at.d.lost_lanes(1, second)
    later = lanes(term=3)
    assert later.d.lost_lanes(1, second), "an earlier server gave it out"
    assert not later.d.lost_lanes(1, (3 << 32) + 1)


def test_the_words_say_what_is_waited_for():
    at = At(2)
    (token,) = at.sent((0, 0), window=2)
    text = "1 batches are leased, the longest to trainer 1 for 5 s; batch 0 of partition 1 is "
    assert at.d.describe(5.0) == text + "being made"
    at.d.starved(1)
    at.act()
    assert at.d.describe(5.0).endswith("batch 1 of partition 0 is being made")
    at.d.starved(0)
    assert at.d.describe(5.0).endswith("for 5 s")
    at.d.save(1, token)
    assert at.d.describe(5.0).startswith("commits of batches that are being stored: 1")


# Lanes


def test_each_trainer_gets_the_batches_of_its_own_lanes_only():
    at = lanes(2)
    at.join(1, 2, 3, window=1)
    assert at.take() == [Want(0, 1, 0), Want(1, 1, 1), Want(0, 1, 2)]
    at.make(0, 0, stripe=2)
    at.make(0, 1, stripe=0)
    at.make(1, 0, stripe=1)
    assert [(e.session, e.batch.order) for e in at.take(Send)] == [
        (3, (0, 0)),
        (1, (1, 0)),
        (2, (0, 1)),
    ]


def test_a_batch_that_got_lost_goes_to_the_trainer_of_its_lanes_again():
    at = lanes()
    at.join(2, window=5)
    (token,) = at.sent((0, 0), window=2)
    at.take()
    assert at.d.renew(1, 5, frozenset(), 1.0)
    assert at.take(Send) == []  # stripe 0 is trainer 2's
    at = lanes()
    (token,) = at.sent((0, 0), window=2)
    at.join(2, window=5)
    at.take()
    at.d.renew(1, 1, frozenset(), 1.0)
    (again,) = at.take(Send)
    assert (again.session, again.seq, again.batch.number) == (1, 2, 0) and again.token > token


@pytest.mark.parametrize("how", ["expired", "lost", "returned", "passed over"])
def test_states_at_a_trainer_begin_anew_in_other_lanes_where_one_of_its_batches_comes_back(how):
    """Sent again, the batch would go on from the states of the one after it."""
    at = lanes(states=AT_TRAINER)
    first, second = at.sent((0, 0), (0, 1), window=2)
    at.d.seen(1, 1.0)
    at.d.window(1, 3)
    at.make(0, 2)
    (third,) = (send.token for send in at.take(Send))
    at.d.save(1, first)
    at.take()
    if how == "expired":
        at.d.seen(1, TTL)
        assert at.d.tick(TTL) == []
    elif how == "lost":
        at.d.renew(1, 3, frozenset({third}), 1.0)
    elif how == "returned":
        at.d.give_back(1, (second,))
    else:
        at.d.save(1, third)
    at.d.window(1, 4)
    told = at.take()
    assert [e for e in told if isinstance(e, (Leave, Want))] == [Leave(0, 0), Want(0, 1, 1)]
    at.d.save(1, second)
    at.d.save(1, third)
    told += at.take()
    stale = {token for e in told if isinstance(e, Answer) for token in e.stale}
    assert stale == {second, third} and not [e for e in told if isinstance(e, StoreCommit)]
    assert at.d.last_saved(1, first) is None and at.d.lost_lanes(1, first), "no flush counts"
    at.make(0, 3, stripe=1)
    (send,) = at.take(Send)
    assert send.batch is at.batches[0, 3]


def test_a_trainer_that_leaves_voids_all_that_was_made_for_it_and_it_is_freed_once():
    at = lanes()
    tokens = at.sent((0, 0), (0, 1), window=2)
    assert len(tokens) == 2
    at.d.give_back(1, (tokens[1],))  # it waits for its trainer now
    at.d.pin(at.batches[0, 0], "mapped")
    at.take()
    at.d.leave(1)
    assert at.take() == [Freed(at.batches[0, 1]), Leave(0, 0)]
    at.d.unpin(at.batches[0, 0], "mapped")
    assert at.take() == [Freed(at.batches[0, 0])]
    at.d.leave(1)
    late = at.make(0, 2)
    assert at.take() == [Freed(late)]
    for token in tokens:
        at.d.save(2, token)
    assert [e.stale for e in at.take(Answer)] == [(token,) for token in tokens]
    at.d.partition_ended(0)
    assert at.d.ended


def test_a_save_before_the_trainer_left_is_stored_before_the_leave_and_settled_after_it():
    at = lanes()
    (token,) = at.sent((0, 0))
    at.d.save(1, token)
    at.d.leave(1)
    assert [type(e) for e in at.take()] == [StoreCommit, Freed, Leave]
    assert at.d.counts["batches"] == 0
    at.d.stored(0, [(0, "", "")])
    assert at.take(Freed) == [] and at.d.counts["batches"] == 1


def test_lanes_that_ran_dry_are_given_anew_in_another_partition_and_asked_again_after_a_leave():
    at = lanes(2)
    at.join(1, 2, window=1)
    at.take()
    at.d.dry(0)
    assert at.take() == [Want(1, 1, 2)]
    at.d.dry(2)
    assert at.take() == []
    at.d.leave(2)
    assert at.take() == [Leave(1, 1), Want(1, 1, 3)]


def test_examples_of_a_trainer_that_left_are_found_though_other_lanes_ran_dry_at_that_moment():
    at = lanes()
    at.join(1, 2, window=1)
    at.d.leave(1)
    at.take()
    at.d.dry(1)
    assert at.take() == [Want(0, 1, 2)]


def test_words_of_lanes_mean_nothing_where_there_are_none():
    at = At()
    at.join(1, window=1)
    at.take()
    at.d.dry(0)
    assert at.take() == []
    at = lanes()
    at.join(1, window=1)
    at.take()
    at.d.starved(0)
    assert at.take() == []


def test_trainers_that_come_and_go_leave_nothing_behind():
    at, left, kept = lanes(3), [], []
    for session in range(1, 200):
        at.join(session, window=2)
        at.d.leave(session)
        left += [effect.stripe for effect in at.take(Leave)]
        kept.append(entries(at.d))
    assert sorted(left) == list(range(199)) and kept == kept[:1] * 199
    for partition in range(3):
        at.d.partition_ended(partition)
    assert at.d.ended


# Any history

COUNTS = st.lists(st.lists(st.integers(1, 4), max_size=12), min_size=1, max_size=3)
steadily = settings(max_examples=some(120), deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("order", "ahead"), [("arrival", False), ("lanes", False), ("lanes", True)], ids=str
)
@steadily
@given(seed=st.integers(0, 2**32), counts=COUNTS, size=st.integers(1, 3), tight=st.booleans())
def test_through_any_history_of_trainers_every_segment_is_stored_once_in_order_and_the_feed_ends(
    order, ahead, seed, counts, size, tight
):
    capacity = size if tight else None
    world = World(seed, counts, order, ahead, size, capacity)
    world.storm(150)
    world.settle()
    world.finish()
    assert [w.next for w in world.workers] == counts


@pytest.mark.parametrize("order", ["arrival", "lanes"])
@settings(steadily, max_examples=some(200))
@given(
    seed=st.integers(0, 2**32),
    counts=COUNTS,
    size=st.integers(1, 3),
    tight=st.booleans(),
    small=st.booleans(),
)
def test_through_any_deaths_every_segment_is_stored_once_in_order_and_the_feed_ends(
    order, seed, counts, size, tight, small
):
    world = World(seed, counts, order, False, size, size if tight else None, small)
    world.storm(200, deaths=True)
    world.settle()
    world.finish()
    for worker in world.workers:
        done = [worker.stored.get(e, (0, 0, 0, 0))[3] for e in range(len(worker.counts))]
        assert done == worker.next
        assert sum(done) + sum(worker.machine.dropped().values()) == sum(worker.counts)
        assert not small or done == worker.counts


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_the_histories_with_deaths_have_batches_that_go_on_under_another_server(order):
    admitted = 0
    for seed in range(30):
        world = World(seed, [[2, 3, 1, 4] * 3, [3] * 9], order)
        world.storm(200, deaths=True)
        world.settle()
        world.finish()
        admitted += world.admitted
    assert admitted > 10


@pytest.mark.parametrize("order", ["arrival", "lanes"])
@steadily
@given(seed=st.integers(0, 2**32), counts=COUNTS, size=st.integers(1, 4), cancel=st.booleans())
def test_a_feed_without_small_batches_or_that_is_cancelled_ends_and_counts_the_rest(
    order, seed, counts, size, cancel
):
    world = World(seed, counts, order, False, size, None, small=cancel)
    world.storm(60)
    if cancel:
        for worker in world.workers:
            worker.cancel()
        world.storm(20)
    world.settle()
    world.finish()
    for worker in world.workers:
        offered = worker.counts[: len(worker.counts) - sum(map(len, worker.left()))]
        dropped = sum(worker.machine.dropped().values())
        assert sum(worker.next) + worker.refused + dropped == sum(offered)


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_one_trainer_without_prefetch_sees_the_same_order_however_slow_the_partitions_are(
    partitions,
):
    counts = [[1 + (7 * p + 3 * i) % 4 for i in range(9 + p)] for p in range(partitions)]
    streams = set()
    for seed in range(20):
        world = World(seed, counts)
        session = world.join(0)
        while not world.d.ended:
            world.ask(session)
            world.storm_of_workers()
            world.receive(session)
            world.save(session)
        streams.add(tuple(world.got))
    assert len(streams) == 1
    (stream,) = streams
    assert [p for p, _ in stream[: 2 * partitions]] == 2 * list(range(partitions))


# An owner that can give nothing


def test_a_trainer_is_reported_idle_once_where_no_batch_comes_before_states_are_saved():
    at = At(2, shared=True)
    (token,) = at.sent((0, 0), window=1)
    at.d.window(1, 2)
    assert at.take(Idle) == []  # one is being made
    at.d.starved(1), at.d.starved(0)
    assert at.take(Idle) == []  # the first has not been asked for any
    at.d.window(1, 3)
    at.take()
    at.d.starved(0), at.d.starved(1)
    assert at.take(Idle) == [Idle(1, 1)]
    at.d.window(1, 4)
    assert at.take(Idle) == []
    at.d.save(1, token, "states")
    at.make(1, 0)
    assert [e.seq for e in at.take(Send)] == [2]  # which ends it
    at.d.partition_ended(0)
    assert at.take() == [Passed(1, 3, 0)]  # the other can make more
    at.d.partition_ended(1)
    assert at.take() == [Passed(1, 4, 1)]
    at.d.window(1, 5)
    assert at.take(Idle) == [Idle(1, 4)]


def test_a_trainer_that_asks_for_nothing_is_not_reported_idle():
    at = At(shared=True)
    at.sent((0, 0), window=1)
    at.d.partition_ended(0)
    assert at.take() == []
    at.d.window(1, 3)
    assert at.take() == [Passed(1, 2, 0), Idle(1, 2)]
    at.d.resend(1, 1)  # the way to it may have ended before it was told
    assert at.take() == [Passed(1, 2, 0), Idle(1, 2)]


def test_while_the_feed_is_paused_no_trainer_is_reported_idle():
    at = At(shared=True)
    at.sent((0, 0), window=1)
    at.d.paused = True
    at.d.partition_ended(0)
    at.d.window(1, 2)
    assert at.take(Idle) == []


def test_a_trainer_whose_lanes_ran_dry_is_notified_before_it_gets_others():
    """1 all that it asked for is void, 2 it asks again, 3 no partition has others for it."""
    at = At(2, "lanes", shared=True)
    at.join(1, window=3)
    (want,) = at.take(Want)
    at.d.dry(want.stripe)
    (first,) = at.take()
    assert first == Passed(1, first.seq, want.partition)
    at.d.window(1, first.seq + 1)
    (other,) = at.take(Want)
    assert at.take(Idle) == [] and other.partition != want.partition
    at.d.dry(other.stripe)
    (second,) = at.take()
    assert second == Passed(1, second.seq, other.partition) and second.seq > first.seq
    at.d.window(1, second.seq + 1)
    assert at.take() == [Idle(1, second.seq)]
    at.d.dry(other.stripe)
    assert at.take() == []


@pytest.mark.parametrize("prefetch", [0, 1, MAX_PREFETCH])
def test_a_window_that_crosses_a_passed_opens_no_lanes_elsewhere(prefetch):
    """The turn may be another owner's: only a trainer that knows can ask for other lanes."""
    at = At(2, "lanes", shared=True)
    at.join(1, window=1 + prefetch)
    (want,) = at.take(Want)
    at.make(0, 0, want.stripe)
    (sent,) = at.take(Send)
    at.d.window(1, sent.seq + prefetch)
    at.d.save(1, sent.token)
    at.d.stored(0, [(0, "", "")])
    at.act()
    at.d.dry(want.stripe)
    at.act()
    at.d.window(1, sent.seq + prefetch + 1)  # said before the word came
    (passed,) = at.take(Passed)
    assert passed.partition == 0 and at.take((Want, Idle)) == []
    at.d.window(1, passed.seq + 1)
    assert [want.partition for want in at.take(Want)] == [1]


def test_each_passed_message_lies_beyond_the_window_sent_when_the_one_before_came():
    at = At(3, "lanes", shared=True)
    at.d.partition_ended(0), at.d.partition_ended(1)
    at.join(1, window=1)
    first, second = at.take()
    at.d.window(1, first.seq + MAX_PREFETCH + 1)
    assert at.take() == []
    at.d.window(1, second.seq + 1)
    assert at.take() == [Want(2, 1, 0)]


def test_a_passed_that_was_lost_with_its_connection_is_sent_again():
    at = At(2, "lanes", shared=True)
    at.join(1, window=2)
    at.d.dry(at.take(Want)[0].stripe)
    (passed,) = at.take()
    at.d.resend(1, 0)
    assert at.take() == [passed]
    at.d.resend(1, passed.seq)
    assert at.take() == [], "it came"


def test_a_trainer_that_joins_lanes_learns_first_which_partitions_have_ended():
    """So it does after the owner's death, and asks whose turn it is."""
    at = At(3, "lanes", shared=True)
    at.d.partition_ended(0)
    at.join(1, window=2)
    (passed,) = at.take()
    assert passed == Passed(1, passed.seq, 0)
    at.d.window(1, passed.seq + 1)
    assert at.take() == [Want(1, 1, 0)]


def test_without_states_the_last_batches_of_lanes_go_out_before_the_passed():
    at = At(2, "lanes", shared=True, states=NOWHERE)
    at.join(1, window=1)
    at.d.window(1, 3)
    want, more = at.take(Want)
    assert (more.more, more.stripe) == (2, want.stripe)
    at.d.window(1, 1)
    for number in range(3):
        at.d.made(Batch(0, number, 1, "bytes", {"stripe": want.stripe}))
    at.d.dry(want.stripe)
    at.d.window(1, 4)
    said = at.take((Send, Passed))
    assert [type(one) for one in said] == [Send, Send, Send, Passed]


def test_a_trainer_goes_on_in_its_lanes_once_its_batch_of_an_earlier_life_is_saved():
    """1 its claim is judged, 2 the batch is in its hands."""
    at = At(2, "lanes", shared=True, term=1)
    at.join(1)
    at.d.claim(1, Handed(7, 0, 3, 1, bytes(12)), saved=False)
    at.d.window(1, 1)
    assert at.take((Want, Idle, Passed)) == []
    at.d.claimed(7, "yes", 0)
    assert at.take((Want, Idle, Passed)) == []
    at.d.save(1, 7)
    assert at.take((Want, Idle, Passed)) == [Want(0, 1, 0)]


def test_a_trainer_goes_on_in_its_lanes_once_its_save_of_an_earlier_life_is_stored():
    at = At(2, "lanes", shared=True, term=1)
    at.join(1)
    at.d.claim(1, Handed(7, 0, 3, 1, bytes(12)), saved=True)
    at.d.save(1, 7)
    at.d.claimed(7, "yes", 0)
    at.d.window(1, 1)
    assert at.take((Want, Idle, Passed)) == []
    at.d.stored(0, [(0, "", "")])
    assert at.take((Want, Idle, Passed)) == [Want(0, 1, 0)]


def test_a_trainer_without_a_claim_gets_lanes_where_none_is_judged():
    """The claim may wait for states that this trainer saves."""
    at = At(2, "lanes", shared=True, term=1)
    at.join(1, 2)
    at.d.claim(1, Handed(7, 0, 3, 1, bytes(12)), saved=True)
    at.d.window(2, 1)
    assert at.take(Want) == [Want(1, 1, 0)]


def test_where_trainers_take_turns_each_is_notified_once_of_an_ended_partition():
    """The trainer gets the message instead of a batch: another owner may have the next one."""
    at = At(2, shared=True)
    at.join(1, 2, window=1)
    assert at.take(Want) == [Want(0, 1), Want(1, 1)]
    at.d.partition_ended(0)
    assert at.take() == [Passed(1, 1, 0), Passed(2, 1, 0)]
    at.make(1, 0)
    assert at.take() == []
    at.d.window(1, 2)
    assert [(e.session, e.seq) for e in at.take(Send)] == [(1, 2)]
    at.d.resend(2, 0)  # it may not have come
    assert at.take(Passed) == [Passed(2, 1, 0)]
