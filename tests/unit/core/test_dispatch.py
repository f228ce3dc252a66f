"""Every batch is settled exactly once, in order, with any behaviour of trainers."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace_proto.messages import Following, Idle
from headrace_server.core.dispatch_effects import (
    Answer,
    Batch,
    Finish,
    Freed,
    JoinRefused,
    PassOver,
    Send,
)
from headrace_server.core.trainers import MAX_WORLD
from tests.examples import some

from .prompt import Prompt

TTL = 10.0


def kinds(effects, kind):
    return [e for e in effects if isinstance(e, kind)]


def sent(d):
    return [(e.session, e.batch.order) for e in kinds(d.take_effects(), Send)]


def filled(numbers=4, partitions=1, **options):
    d = Prompt(range(partitions), TTL, **options)
    for number in range(numbers):
        for partition in range(partitions):
            d.made(Batch(partition, number, 1))
    return d


def seen_from_outside(d):
    return (d.describe(0.0), d.leased, d.ended, dict(d.counts), dict(d.dropped), d.take_effects())


# The order of the stream


@given(data=st.data(), numbers=st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_one_trainer_gets_the_order_of_number_and_partition_however_batches_arrive(data, numbers):
    d = Prompt(range(len(numbers)), TTL)
    d.join(1, 0.0)
    d.window(1, 2)
    arrivals = [p for p, n in enumerate(numbers) for _ in range(n + 1)]  # the last one is the end
    made = [0] * len(numbers)
    got, seq = [], 0
    for partition in data.draw(st.permutations(arrivals)):
        if made[partition] < numbers[partition]:
            d.made(Batch(partition, made[partition], 1))
            made[partition] += 1
        else:
            d.partition_ended(partition)
        while sends := kinds(d.take_effects(), Send):
            for e in sends:
                got.append(e.batch.order)
                seq = e.seq
                d.commit(1, (e.token,))
            d.window(1, seq + 2)
    assert got == sorted((n, p) for p, count in enumerate(numbers) for n in range(count))
    assert d.ended


@pytest.mark.parametrize(
    ("partition", "number", "text"),
    [
        (0, 0, "partition 0 made batch 0; next is 1"),
        (0, 2, "partition 0 made batch 2; next is 1"),
        (1, 0, "partition 1 made batch 0; next is nothing"),
        (2, 0, "partition 2 is none of those here"),
        (-1, 0, "partition -1 is none of those here"),
    ],
)
def test_a_batch_out_of_its_order_is_refused_and_changes_nothing(partition, number, text):
    d = Prompt(range(2), TTL)
    d.join(1, 0.0)
    d.window(1, 9)
    d.made(Batch(0, 0, 1))
    d.partition_ended(1)
    d.take_effects()
    before = seen_from_outside(d)
    with pytest.raises(ValueError, match=text):
        d.made(Batch(partition, number, 1))
    assert seen_from_outside(d) == before
    with pytest.raises(ValueError, match="partition 7 is none of"):
        d.partition_ended(7)


def test_trainers_that_wait_are_served_in_the_order_in_which_they_asked():
    d = Prompt(range(1), TTL)
    for session in (1, 2, 3):
        d.join(session, 0.0)
    for session in (3, 1, 2):
        d.window(session, 1)
    for number in range(3):
        d.made(Batch(0, number, 1))
    assert sent(d) == [(3, (0, 0)), (1, (1, 0)), (2, (2, 0))]


def test_returned_batches_go_out_before_new_ones_and_in_their_order():
    d = filled(5)
    d.join(1, 0.0)
    d.window(1, 3)
    d.take_effects()
    d.join(2, 0.0)
    d.leave(1)
    d.window(2, 5)
    assert sent(d) == [(2, (n, 0)) for n in range(5)]
    assert d.counts["redelivered"] == 3


# Windows


def test_a_trainer_never_holds_more_than_the_server_allows():
    d = filled(9, max_window=3)
    d.join(1, 0.0)
    d.window(1, 2**63)
    tokens = [e.token for e in kinds(d.take_effects(), Send)]
    assert len(tokens) == 3
    d.commit(1, tuple(tokens[:2]))
    assert sent(d) == [(1, (3, 0)), (1, (4, 0))]
    d.give_back(1, (tokens[2],))
    assert sent(d) == [(1, (2, 0))]


def test_a_window_never_shrinks_and_a_stranger_has_none():
    d = filled(3)
    d.join(1, 0.0)
    d.window(1, 2)
    d.window(1, 0)
    d.window(9, 5)
    assert sent(d) == [(1, (0, 0)), (1, (1, 0))]


# Leases


def test_a_late_commit_counts_after_mere_expiry_and_is_stale_after_another_got_the_batch():
    d = filled(2)
    d.join(1, 0.0)
    d.window(1, 2)
    first, second = (e.token for e in kinds(d.take_effects(), Send))
    assert d.tick(TTL) == [1]
    assert d.counts["expired"] == 2
    d.commit(1, (first,))
    assert kinds(d.take_effects(), Answer) == [Answer(1, (first,), ())]
    d.join(2, TTL)
    d.window(2, 2)
    (again,) = kinds(d.take_effects(), Send)  # the committed one does not go out again
    assert again.batch.order == (1, 0) and again.token > second
    d.commit(1, (second, first))
    assert kinds(d.take_effects(), Answer) == [Answer(1, (first,), (second,))]
    d.commit(2, (again.token,))
    assert d.counts["batches"] == 2 and d.counts["stale"] == 1


def test_a_heartbeat_takes_back_what_got_lost_on_the_way_and_keeps_the_rest_alive():
    d = filled(3)
    d.join(1, 0.0)
    d.window(1, 3)
    a, _, _ = (e.token for e in kinds(d.take_effects(), Send))
    assert d.renew(1, 2, frozenset({a}), 9.0)  # 2 is lost; 3 is still under way
    d.join(2, 9.0)
    d.window(2, 3)
    assert sent(d) == [(2, (1, 0))]
    assert d.tick(18.9) == [] and d.counts["expired"] == 0
    assert not d.renew(5, 0, frozenset(), 9.0)


def test_a_reconnected_session_is_sent_what_it_missed_under_the_same_tokens():
    d = filled(3)
    d.join(1, 0.0)
    d.window(1, 3)
    first = kinds(d.take_effects(), Send)
    d.seen(1, 9.5)
    d.resend(1, 1)
    assert kinds(d.take_effects(), Send) == first[1:]
    assert d.tick(19.0) == [] and d.counts["expired"] == 0  # it is alive, so its leases are
    d.resend(8, 0)
    assert d.take_effects() == []


def test_resent_batches_come_in_order_before_those_that_were_about_to_be_sent():
    d = filled(2)
    d.join(1, 0.0)
    d.window(1, 1)
    d.take_effects()  # lost on the way
    d.window(1, 2)
    d.resend(1, 0)
    assert [e.seq for e in kinds(d.take_effects(), Send)] == [1, 2]


def test_a_batch_saved_before_its_resend_leaves_its_number_to_no_other():
    """A trainer takes a delivery whose number it knows for one that was sent twice."""
    d = filled(3)
    d.join(1, 0.0)
    d.window(1, 2)
    tokens = [e.token for e in kinds(d.take_effects(), Send)]
    d.resend(1, 0)  # both were on their way
    d.commit(1, tuple(tokens))
    d.window(1, 3)
    assert [(e.seq, e.batch.number) for e in kinds(d.take_effects(), Send)] == [(3, 2)]


def test_lost_and_expired_batches_leave_no_gap_in_a_resumed_session():
    d = filled(4)
    d.join(1, 0.0)
    d.window(1, 2)
    d.take_effects()  # both are lost on the way
    d.seen(1, 1.0)
    assert d.tick(TTL) == []
    d.resend(1, 0)
    assert [(e.seq, e.batch.number) for e in kinds(d.take_effects(), Send)] == [(1, 0), (2, 1)]


def test_a_trainer_that_is_back_as_another_session_keeps_what_it_holds():
    d = filled(2)
    d.join(1, 0.0)
    d.window(1, 2)
    tokens = tuple(e.token for e in kinds(d.take_effects(), Send))
    d.leave(1)
    d.join(2, 0.0)
    d.adopt(2, (tokens[0], 12345), 0.0)
    d.window(2, 9)
    assert sent(d) == [(2, (1, 0))]
    d.commit(2, tokens)
    assert kinds(d.take_effects(), Answer) == [Answer(2, tokens[:1], tokens[1:])]
    with pytest.raises(ValueError, match="session 3 holds nothing before it has joined"):
        d.adopt(3, tokens, 0.0)


def test_tokens_of_another_life_of_the_server_are_stale():
    old, new = filled(1, term=1), filled(1, term=2)
    for d in (old, new):
        d.join(1, 0.0)
        d.window(1, 1)
    (token,) = (e.token for e in kinds(old.take_effects(), Send))
    new.take_effects()
    new.commit(1, (token,))
    assert new.take_effects() == [Answer(1, (), (token,))] and new.leased == 1


# Memory


def test_a_batch_is_freed_once_when_it_is_settled_and_nobody_reads_it():
    d = filled(1)
    d.join(1, 0.0)
    d.window(1, 1)
    (send,) = kinds(d.take_effects(), Send)
    d.pin(send.batch, "trainer")
    d.pin(send.batch, "frame")
    d.unpin(send.batch, "frame")
    d.unpin(send.batch, "nobody")
    assert d.take_effects() == []
    d.commit(1, (send.token,))
    assert kinds(d.take_effects(), Freed) == []
    d.unpin(send.batch, "trainer")
    d.unpin(send.batch, "trainer")
    assert kinds(d.take_effects(), Freed) == [Freed(send.batch)]
    with pytest.raises(ValueError, match="is free: its bytes may be another's"):
        d.pin(send.batch, "late")
    assert d.take_effects() == [] and not send.batch.pins


def test_a_batch_whose_lease_has_ended_before_it_was_sent_is_not_sent():
    """1 a trainer sends Hello again, 2 the server plans a resend, 3 a commit is in the queue:
    the bytes may be free when the message would leave."""
    d = filled(2)
    d.join(1, 0.0)
    d.window(1, 2)
    first, second = (e.token for e in kinds(d.take_effects(), Send))
    d.resend(1, 0)
    d.commit(1, (first,))
    effects = d.take_effects()
    assert [e.token for e in kinds(effects, Send)] == [second]
    assert len(kinds(effects, Freed)) == 1


# The end


def test_every_trainer_gets_the_end_once_and_only_when_all_batches_are_settled():
    d = filled(2)
    d.join(1, 0.0), d.join(2, 0.0)
    d.window(1, 1), d.window(2, 1)
    a, b = kinds(d.take_effects(), Send)
    d.partition_ended(0)
    d.partition_ended(0)
    d.commit(a.session, (a.token,))
    assert not d.ended and kinds(d.take_effects(), Finish) == []
    d.commit(b.session, (b.token,))
    assert d.ended and kinds(d.take_effects(), Finish) == [Finish(1), Finish(2)]
    d.tick(1.0)
    d.window(1, 5)
    assert d.take_effects() == []
    d.join(3, 1.0)
    assert d.take_effects() == [Finish(3)]
    d.resend(1, 1)  # it may have been lost with the connection
    assert d.take_effects() == [Finish(1)]


def test_a_feed_without_batches_ends_at_once():
    d = Prompt(range(2), TTL)
    d.join(1, 0.0)
    d.partition_ended(1)
    assert not d.ended
    d.partition_ended(0)
    assert d.ended and d.take_effects() == [Finish(1)]


def test_a_paused_feed_hands_out_nothing_and_commits_still_count():
    d = filled(2)
    d.partition_ended(0)
    d.join(1, 0.0)
    d.window(1, 1)
    (send,) = kinds(d.take_effects(), Send)
    d.paused = True
    d.window(1, 2)
    d.commit(1, (send.token,))
    effects = d.take_effects()
    assert kinds(effects, Send) == [] and kinds(effects, Answer) == [Answer(1, (send.token,), ())]
    assert "the server is stopping" in d.describe(0.0)
    d.paused = False
    d.tick(0.0)
    (send,) = kinds(d.take_effects(), Send)
    d.paused = True
    d.commit(1, (send.token,))
    assert kinds(d.take_effects(), Finish) == [Finish(1)]


def test_the_description_of_a_feed_that_waits_for_earlier_trainers_does_not_say_that_it_stops():
    d = filled(1)
    d.wait_for_others(True)
    d.paused = True
    assert "from before the restart" in d.describe(0.0) and "stopping" not in d.describe(0.0)


# Joining


@pytest.mark.parametrize(
    ("present", "asked", "text"),
    [
        ((-1, 0), (0, 2), "shared by trainers without rank: all or none"),
        ((0, 2), (-1, 0), "coordinated mode with world_size=2: connect with rank="),
        ((0, 2), (0, 2), "rank=0 is taken"),
        ((0, 2), (1, 3), "world_size=3 differs from 2"),
        ((0, 2), (2, 2), "rank=2 does not lie in 0 … world_size-1 = 1"),
        ((0, 2), (-1, 2), "rank=-1 does not lie in"),
        ((0, 2), (0, 0), "rank=0 does not lie in"),
        ((0, 2), (0, MAX_WORLD + 1), "world_size=65537 is more than 65536"),
    ],
)
def test_a_trainer_that_does_not_fit_is_refused_and_nothing_changes(present, asked, text):
    d = filled(3)
    d.join(1, 0.0, *present)
    d.take_effects()
    before = seen_from_outside(d)
    with pytest.raises(JoinRefused, match=text):
        d.join(2, 0.0, *asked)
    assert seen_from_outside(d) == before and not d.seen(2, 0.0)


def test_a_session_joins_once():
    d = filled(3)
    d.join(1, 0.0)
    d.window(1, 1)
    with pytest.raises(ValueError, match="session 1 is there already"):
        d.join(1, 0.0)
    assert sent(d) == [(1, (0, 0))]


def test_the_mode_is_free_again_when_all_have_left():
    d = filled(4)
    d.join(1, 0.0)
    d.window(1, 2)
    d.leave(1)
    d.leave(1)
    d.join(2, 0.0, 0, 2)
    d.join(3, 0.0, 1, 2)
    d.take_effects()
    d.window(2, 1)
    d.window(3, 2)
    assert sent(d) == [(2, (0, 0)), (3, (1, 0)), (3, (3, 0))]
    d.leave(2), d.leave(3)
    d.join(4, 0.0)
    d.window(4, 9)
    assert sent(d) == [(4, (n, 0)) for n in range(4)]


def test_the_words_say_what_is_waited_for():
    d = Prompt(range(2), TTL)
    assert d.describe(0.0) == "batch 0 of partition 0 is being made"
    d.made(Batch(0, 0, 1))
    assert d.describe(0.0) == "nothing is left but the commits of this trainer"
    d.join(7, 1.0)
    d.window(7, 1)
    d.take_effects()
    assert d.describe(62.0) == (
        "1 batches are leased, the longest to trainer 7 for 61 s; "
        "batch 0 of partition 1 is being made"
    )
    d.leave(7)
    d.join(8, 0.0, 3, 1000)
    assert d.describe(0.0).endswith("999 ranks have not joined: 0, 1, 2, 4, 5, 6, 7, 8, …")


# Any history


class SharedHistories(RuleBasedStateMachine):
    """Trainers that act at random, against a plain account of the batches that each holds."""

    PARTITIONS = 2
    MOST = 6  # batches of a partition

    def __init__(self):
        super().__init__()
        self.d = Prompt(range(self.PARTITIONS), TTL, max_window=3)
        self.now = 0.0
        self.batches = {}
        self.made = [0] * self.PARTITIONS
        self.ended = [False] * self.PARTITIONS
        self.sessions = itertools.count(1)
        self.present = set()
        self.window = {}
        self.seq = {}  # the last that the session was sent …
        self.got = {}  # … and the last that it received
        self.wire = {}  # sent, not received
        self.seen = {}
        self.holder = {}  # token → session, of leases that stand
        self.deadline = {}
        self.token_seq = {}
        self.batch_of = {}
        self.last = {}  # batch → its last token
        self.settled = {}  # batch → its token
        self.hands = {}  # session → tokens that the trainer believes it holds
        self.lost_hands = []  # of trainers that were given up
        self.finished = {}
        self.freed = set()
        self.pinned = set()
        self.taken = []  # batches in the order of their first delivery

    # What happens

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def make(self, partition):
        number = self.made[partition]
        if self.ended[partition] or number == self.MOST:
            with pytest.raises(ValueError, match="next is"):
                self.d.made(Batch(partition, number if self.ended[partition] else number + 1, 1))
            assert self.d.take_effects() == []
            return
        batch = self.batches[number, partition] = Batch(partition, number, number + 1)
        self.made[partition] += 1
        self.d.made(batch)
        self.absorb()

    @rule(partition=st.integers(0, PARTITIONS - 1), sure=st.integers(0, 3))
    def end(self, partition, sure):
        if sure == 0:
            self.ended[partition] = True
            self.d.partition_ended(partition)
            self.absorb()

    @precondition(lambda self: len(self.present) < 3)
    @rule(back=st.booleans())
    def join(self, back):
        session = next(self.sessions)
        self.d.join(session, self.now)
        self.present.add(session)
        self.window[session] = self.seq[session] = self.got[session] = 0
        self.wire[session], self.hands[session] = [], set()
        self.seen[session] = self.now
        self.absorb()
        if back and self.lost_hands:
            held = self.lost_hands.pop()
            self.d.adopt(session, tuple(sorted(held)), self.now)
            for token in held:
                if self.is_free(token):
                    self.holder[token] = session
                    self.deadline[token] = self.now + TTL
                    self.token_seq[token] = 0
            self.hands[session] = held
            self.absorb()

    @precondition(lambda self: self.present)
    @rule(data=st.data(), more=st.integers(-1, 5))
    def ask(self, data, more):
        session = self.someone(data)
        upto = max(0, self.got[session] + more)
        self.window[session] = max(self.window[session], upto)
        self.d.window(session, upto)
        self.absorb()

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def receive(self, data):
        session = self.someone(data)
        for send in self.wire[session]:
            self.got[session] = send.seq
            self.hands[session].add(send.token)
        self.wire[session].clear()

    @precondition(lambda self: self.present and self.batch_of)
    @rule(data=st.data(), own=st.booleans())
    def commit(self, data, own):
        session = self.someone(data)
        candidates = sorted(self.hands[session] if own else self.batch_of)
        tokens = tuple(
            data.draw(st.lists(st.sampled_from(candidates), max_size=3)) if candidates else ()
        )
        committed, stale = [], []
        for token in tokens:
            batch = self.batch_of[token]
            if self.settled.get(batch.order) == token:
                committed.append(token)
            elif self.is_free(token) or self.holder.get(token) == session:
                committed.append(token)
                self.settled[batch.order] = token
                self.holder.pop(token, None)
                self.wire[session] = [s for s in self.wire[session] if s.token != token]
            else:
                stale.append(token)
        self.hands[session] -= set(tokens)
        self.d.commit(session, tokens)
        expected = [Answer(session, tuple(committed), tuple(stale))] if tokens else []
        assert kinds(self.absorb(), Answer) == expected

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def give_back(self, data):
        session = self.someone(data)
        tokens = (
            data.draw(st.sets(st.sampled_from(sorted(self.hands[session]))))
            if self.hands[session]
            else set()
        )
        self.hands[session] -= tokens
        for token in tokens:
            if self.holder.get(token) == session:
                del self.holder[token]
        self.d.give_back(session, tuple(tokens))
        self.absorb()

    @precondition(lambda self: self.present)
    @rule(data=st.data(), forgets=st.booleans())
    def renew(self, data, forgets):
        session = self.someone(data)
        self.seen[session] = self.now
        if forgets and self.hands[session]:
            self.hands[session].pop()
        for token, holder in list(self.holder.items()):
            if holder == session:
                self.deadline[token] = self.now + TTL
                if self.token_seq[token] <= self.got[session] and token not in self.hands[session]:
                    del self.holder[token]
        assert self.d.renew(session, self.got[session], frozenset(self.hands[session]), self.now)
        self.absorb()

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def reconnect(self, data):
        session = self.someone(data)
        self.seen[session] = self.now
        self.d.seen(session, self.now)
        self.wire[session].clear()
        missed = {}
        for token, holder in self.holder.items():
            if holder == session:
                self.deadline[token] = self.now + TTL
                if self.token_seq[token] > self.got[session]:
                    missed[token] = self.token_seq[token]
        self.seq[session] = max(missed.values(), default=self.got[session])
        self.finished.pop(session, None)
        self.d.resend(session, self.got[session])
        self.absorb(resent=missed)

    @precondition(lambda self: self.present)
    @rule(data=st.data(), dies=st.booleans())
    def leave(self, data, dies):
        session = self.someone(data)
        self.go(session)
        if not dies:
            self.lost_hands.append(self.hands[session])
        self.d.leave(session)
        self.absorb()

    @rule(seconds=st.floats(0, 1.5 * TTL), give_up=st.booleans())
    def tick(self, seconds, give_up):
        self.now += seconds
        for token in [t for t, deadline in self.deadline.items() if deadline <= self.now]:
            self.holder.pop(token, None)
        silent = self.d.tick(self.now)
        self.absorb()
        assert set(silent) == {s for s in self.present if self.seen[s] + TTL <= self.now}
        for session in silent if give_up else ():
            self.go(session)
            self.lost_hands.append(self.hands[session])
            self.d.leave(session)
            self.absorb()

    @rule(paused=st.booleans())
    def pause(self, paused):
        self.d.paused = paused
        self.d.tick(self.now)
        for token in [t for t, deadline in self.deadline.items() if deadline <= self.now]:
            self.holder.pop(token, None)
        self.absorb()

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data):
        order, holder = data.draw(st.sampled_from(sorted(self.pinned)))
        self.pinned.discard((order, holder))
        self.d.unpin(self.batches[order], holder)
        self.absorb()

    # The account

    def someone(self, data):
        return data.draw(st.sampled_from(sorted(self.present)))

    def go(self, session):
        self.present.discard(session)
        for token in [t for t, holder in self.holder.items() if holder == session]:
            del self.holder[token]

    def is_free(self, token):
        batch = self.batch_of.get(token)
        return (
            batch is not None
            and self.last[batch.order] == token
            and token not in self.holder
            and batch.order not in self.settled
        )

    def absorb(self, resent=()):
        effects = self.d.take_effects()
        for e in effects:
            if isinstance(e, Send):
                self.on_send(e, resent)
            elif isinstance(e, Freed):
                order = e.batch.order
                assert order in self.settled and order not in self.freed
                assert not any(pinned == order for pinned, _ in self.pinned)
                self.freed.add(order)
            elif isinstance(e, Finish):
                assert e.session in self.present and e.session not in self.finished
                assert all(self.ended) and set(self.settled) == set(self.batches)
                self.finished[e.session] = True
        return effects

    def on_send(self, e, resent):
        session, order = e.session, e.batch.order
        assert session in self.present and order not in self.settled
        if e.token in resent:
            assert resent[e.token] == e.seq and self.batch_of[e.token] is e.batch
        else:
            assert not self.d.paused
            assert e.token > max(self.batch_of, default=0)
            assert e.seq == self.seq[session] + 1 <= self.window[session]
            assert self.last.get(order) not in self.holder, "two trainers hold it"
            if order not in self.last:
                self.taken.append(order)
            self.seq[session] = e.seq
            self.batch_of[e.token] = e.batch
            self.last[order] = e.token
            self.holder[e.token] = session
            self.deadline[e.token] = self.seen[session] + TTL
            self.token_seq[e.token] = e.seq
        self.wire[session].append(e)
        if order[0] % 2:
            self.pinned.add((order, e.token))
            self.d.pin(e.batch, e.token)

    @invariant()
    def the_dispatcher_knows_what_is_so(self):
        assert self.taken == sorted(self.taken)
        assert self.d.leased == len(self.holder)
        assert self.d.counts["batches"] == len(self.settled)
        assert self.d.counts["rows"] == sum(n + 1 for n, _ in self.settled)
        for session in self.present:
            mine = [token for token, holder in self.holder.items() if holder == session]
            adopted = [token for token in mine if self.token_seq[token] == 0]
            assert len(mine) <= 3 or adopted
        assert self.d.ended == (all(self.ended) and len(self.settled) == len(self.batches))
        if self.d.ended:
            assert set(self.finished) >= self.present

    @invariant()
    def nobody_waits_for_what_is_there(self):
        """No trainer waits for a batch that is there, unless the stream's next batch is missing."""
        if self.d.paused:
            return
        leased = list(self.holder.values())
        asking = [s for s in self.present if self.seq[s] < self.window[s] and leased.count(s) < 3]
        if asking:
            out = {self.batch_of[t].order for t in self.holder}
            idle = sorted(o for o in self.batches if o not in out and o not in self.settled)
            assert all(order not in self.taken for order in idle)
            if idle:
                number, partition = idle[0]
                before = [
                    p
                    for p in range(self.PARTITIONS)
                    if not self.ended[p] and (self.made[p], p) < (number, partition)
                ]
                assert before, f"{idle[0]} is there, {asking} ask, and nothing is before it"

    def teardown(self):
        """All others are given up; one good trainer brings the feed to its end."""
        d = self.d
        d.paused = False
        self.now += 2 * TTL
        d.tick(self.now)
        self.holder.clear()
        for session in sorted(self.present):
            self.go(session)
            d.leave(session)
        for partition in range(self.PARTITIONS):
            self.ended[partition] = True
            d.partition_ended(partition)
        session = next(self.sessions)
        d.join(session, self.now)
        self.present = {session}
        self.seq[session], self.wire[session], self.seen[session] = 0, [], self.now
        self.window[session] = 1000
        d.window(session, 1000)
        while True:
            sends = kinds(self.absorb(), Send)
            if not sends:
                break
            for e in sends:
                del self.holder[e.token]
                self.settled[e.batch.order] = e.token
                d.commit(session, (e.token,))
        assert set(self.settled) == set(self.batches) and d.ended
        assert self.taken == sorted(self.batches)
        for order, holder in sorted(self.pinned):
            self.pinned.discard((order, holder))
            d.unpin(self.batches[order], holder)
        self.absorb()
        assert self.freed == set(self.batches) and session in self.finished


TestSharedHistories = SharedHistories.TestCase
TestSharedHistories.settings = settings(
    max_examples=some(200), stateful_step_count=50, deadline=None
)


# Coordinated mode


class Run:
    """A coordinated run: trainers that step, die and come back, all drawn from one seed.

    Bucketed batches of two partitions arrive in any order.  A step of a rank is: take the oldest
    delivery, commit it.
    """

    def __init__(self, seed, numbers=12, buckets=2):
        self.random = random.Random(seed)
        self.d = Prompt(range(2), TTL)
        self.todo = [(p, n) for p in range(2) for n in range(numbers)]
        self.buckets = {o: self.random.randrange(buckets) for o in self.todo}
        self.made = [0, 0]
        self.sessions = itertools.count(1)
        self.rank_of = {}  # of those present
        self.hands = {}  # session → deliveries in order
        self.got = {}  # session → number of its last delivery
        self.done = []  # per era: world, and what each rank committed: (partition, number)
        self.freed = Counter()
        self.finished = Counter()
        self.rounds = {}  # by rank: round and partition of its last batch

    def make(self):
        partition = self.random.randrange(2)
        number = self.made[partition]
        if (partition, number) in self.buckets:
            meta = {"bucket": self.buckets[partition, number]}
            self.made[partition] += 1
            self.d.made(Batch(partition, number, 1, meta=meta))
        else:
            self.d.partition_ended(partition)

    def start(self, world):
        self.world = world
        self.done.append((world, {rank: [] for rank in range(world)}))

    def join(self, rank):
        session = next(self.sessions)
        self.d.join(session, 0.0, rank, self.world, len(self.done))
        self.rank_of[session], self.hands[session], self.got[session] = rank, [], 0
        return session

    def die(self, session):
        del self.rank_of[session], self.hands[session]
        self.d.leave(session)

    def step(self, session):
        hand = self.hands[session]
        if hand and self.random.random() < 0.7:
            send = hand.pop(0)
            self.done[-1][1][self.rank_of[session]].append(
                (send.batch.partition, send.batch.number)
            )
            self.d.commit(session, (send.token,))
        if self.random.random() < 0.8:
            self.d.window(session, self.got[session] - len(hand) + self.random.randrange(4))

    def absorb(self):
        for e in self.d.take_effects():
            if isinstance(e, Send):
                assert e.batch.rank == self.rank_of[e.session]
                self.hands[e.session].append(e)
                place = e.batch.round, e.batch.partition
                self.rounds.setdefault(e.batch.rank, []).append(place)
                self.got[e.session] = e.seq
            elif isinstance(e, Freed):
                self.freed[e.batch.partition, e.batch.number] += 1
            elif isinstance(e, Finish):
                self.finished[e.session] += 1

    def some_steps(self, n, deaths):
        for _ in range(n):
            if self.random.random() < 0.5:
                self.make()
            absent = set(range(self.world)) - set(self.rank_of.values())
            if absent and self.random.random() < 0.5:
                self.join(self.random.choice(sorted(absent)))
            elif self.rank_of:
                session = self.random.choice(sorted(self.rank_of))
                if len(self.rank_of) > 1 and self.random.random() < deaths:
                    self.die(session)
                else:
                    self.step(session)
            self.absorb()

    def all_die(self):
        for session in sorted(self.rank_of):
            self.die(session)
        self.absorb()

    def to_the_end(self):
        for _ in range(1000):
            self.some_steps(10, 0.0)
            if self.d.ended:
                break
        assert self.d.ended, self.d.describe(0.0)
        for rank in sorted(set(range(self.world)) - set(self.rank_of.values())):
            self.join(rank)
        self.absorb()

    def check_rounds(self):
        for world, ranks in self.done:
            rounds = max(map(len, ranks.values()))
            for i in range(rounds):
                there = [done[i] for done in ranks.values() if len(done) > i]
                assert len({(order[0], self.buckets[order]) for order in there}) == 1, (
                    world,
                    ranks,
                )

    def check_nothing_lost(self):
        committed = [order for _, ranks in self.done for done in ranks.values() for order in done]
        dropped = self.d.dropped.get("incomplete_round", 0)
        assert len(committed) == len(set(committed))
        assert len(committed) + dropped == len(self.buckets)
        assert self.freed == Counter(self.buckets.keys())
        assert set(self.finished.values()) == {1}
        assert set(self.rank_of) <= set(self.finished)


@settings(max_examples=some(150), deadline=None)
@given(seed=st.integers(0, 10**6), world=st.integers(1, 4), deaths=st.sampled_from([0.0, 0.1]))
def test_each_rank_gets_one_batch_of_one_kind_in_each_round_and_all_finish_together(
    seed, world, deaths
):
    run = Run(seed)
    run.start(world)
    run.some_steps(100, deaths)
    run.to_the_end()
    run.check_rounds()
    run.check_nothing_lost()
    lengths = {len(done) for done in run.done[0][1].values()}
    assert len(lengths) == 1
    kinds = Counter((partition, bucket) for (partition, _), bucket in run.buckets.items())
    assert run.d.dropped.get("incomplete_round", 0) == sum(n % world for n in kinds.values())
    if not deaths:  # what comes back comes out of its turn
        for places in run.rounds.values():
            assert places == sorted(places) and len(places) == len(set(places))


@settings(max_examples=some(150), deadline=None)
@given(seed=st.integers(0, 10**6), worlds=st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_a_run_that_is_resumed_with_any_world_size_loses_incomplete_last_rounds_only(seed, worlds):
    run = Run(seed)
    for world in worlds:
        run.all_die()
        run.start(world)
        run.some_steps(40, 0.05)
    run.to_the_end()
    run.check_rounds()
    run.check_nothing_lost()
    lengths = {len(done) for done in run.done[-1][1].values()}
    assert len(lengths) == 1, "ranks did not finish together"


def coordinated(world, batches, bucket=lambda n: 0):
    d = Prompt(range(1), TTL)
    for n in range(batches):
        d.made(Batch(0, n, 1, meta={"bucket": bucket(n)}))
    for rank in range(world):
        d.join(rank + 1, 0.0, rank, world)
    return d


def test_rounds_come_in_the_same_order_to_a_rank_that_lags_behind():
    """The first batch starts a round that is complete only after the second round is."""
    d = coordinated(2, 4, bucket=[0, 1, 1, 0].__getitem__)
    d.window(2, 2)
    assert sent(d) == [(2, (2, 0)), (2, (3, 0))]
    d.window(1, 2)
    assert sent(d) == [(1, (1, 0)), (1, (0, 0))]


def test_a_rank_that_comes_back_takes_up_its_own_batches():
    d = coordinated(2, 6)
    d.window(1, 2), d.window(2, 3)
    d.take_effects()
    d.leave(1)
    d.join(9, 0.0, 0, 2)
    d.window(9, 3)
    assert sent(d) == [(9, (0, 0)), (9, (2, 0)), (9, (4, 0))]


def test_a_round_that_was_dealt_anew_is_nobody_elses():
    """1 both ranks die with a round in hand, 2 one trainer starts alone, 3 an old one is back."""
    d = coordinated(2, 2)
    d.window(1, 1), d.window(2, 1)
    old = [e.token for e in kinds(d.take_effects(), Send)]
    d.leave(1), d.leave(2)
    d.join(3, 0.0, 0, 1)
    d.window(3, 1)
    (new,) = kinds(d.take_effects(), Send)
    d.leave(3)
    d.join(4, 0.0, 0, 2)
    d.adopt(4, tuple(old), 0.0)
    d.commit(4, tuple(old))
    (answer,) = kinds(d.take_effects(), Answer)
    assert answer == Answer(4, (old[1],), (old[0],))  # batch 1 was never dealt again
    d.commit(4, (new.token,))
    d.partition_ended(0)
    effects = d.take_effects()
    assert kinds(effects, Answer) == [Answer(4, (new.token,), ())]
    assert kinds(effects, Finish) == [Finish(4)] and d.counts["batches"] == 2


def test_a_commit_that_comes_late_for_a_batch_in_an_open_round_takes_it_out_of_the_round():
    d = coordinated(2, 2)
    d.window(1, 1), d.window(2, 1)
    old = [e.token for e in kinds(d.take_effects(), Send)]
    d.leave(1), d.leave(2)
    d.join(3, 0.0, 0, 3)
    d.window(3, 1)
    d.commit(3, (old[0],))
    d.made(Batch(0, 2, 1, meta={"bucket": 0}))
    assert kinds(d.take_effects(), Send) == []
    d.made(Batch(0, 3, 1, meta={"bucket": 0}))
    assert sent(d) == [(3, (1, 0))]
    d.join(4, 0.0, 1, 3), d.join(5, 0.0, 2, 3)
    d.window(4, 1), d.window(5, 1)
    assert sent(d) == [(4, (2, 0)), (5, (3, 0))]


def test_a_dropped_batch_is_freed_once_and_its_late_commit_is_stale():
    d = coordinated(2, 3)
    d.window(1, 2), d.window(2, 2)
    tokens = [e.token for e in kinds(d.take_effects(), Send)]
    d.leave(1), d.leave(2)
    d.join(3, 0.0, 0, 4)  # three batches do not make a round of four
    d.window(3, 1)
    d.partition_ended(0)
    effects = d.take_effects()
    assert len(kinds(effects, Freed)) == 3 and kinds(effects, Finish) == [Finish(3)]
    assert kinds(effects, PassOver) == [PassOver(0, n) for n in range(3)], "for later lives, too"
    assert d.dropped == {"incomplete_round": 3} and d.ended
    d.commit(3, tuple(tokens))
    assert d.take_effects() == [Answer(3, (), tuple(tokens))] and d.counts["batches"] == 0


def test_a_batch_that_was_pinned_when_its_round_was_dropped_is_freed_when_it_is_let_go():
    d = coordinated(1, 1)
    d.window(1, 1)
    (send,) = kinds(d.take_effects(), Send)
    d.pin(send.batch, "map")
    d.leave(1)
    d.join(2, 0.0, 0, 2)
    d.window(2, 1)
    d.partition_ended(0)
    assert kinds(d.take_effects(), Freed) == []
    d.unpin(send.batch, "map")
    assert d.take_effects() == [Freed(send.batch)]


def test_dealt_batches_return_to_the_order_of_the_stream_when_the_mode_changes():
    d = coordinated(2, 4, bucket=[0, 1, 1, 0].__getitem__)
    d.window(1, 2)
    assert sent(d) == [(1, (1, 0)), (1, (0, 0))]
    d.leave(1), d.leave(2)
    d.join(3, 0.0)
    d.window(3, 4)
    assert sent(d) == [(3, (n, 0)) for n in range(4)]


def test_a_batch_that_came_back_twice_is_dealt_once():
    d = filled(2)
    d.join(1, 0.0)
    d.window(1, 1)
    (send,) = kinds(d.take_effects(), Send)
    d.leave(1)
    d.join(2, 0.0)
    d.adopt(2, (send.token,), 0.0)
    d.leave(2)
    d.join(3, 0.0, 0, 2), d.join(4, 0.0, 1, 2)
    d.window(3, 1), d.window(4, 1)
    assert sent(d) == [(3, (0, 0)), (4, (1, 0))]


def test_a_batch_that_was_dealt_to_a_rank_is_no_longer_its_last_holders():
    d = filled(2)
    d.join(1, 0.0)
    d.window(1, 2)
    old = [e.token for e in kinds(d.take_effects(), Send)]
    d.leave(1)
    d.join(3, 0.0, 0, 2), d.join(4, 0.0, 1, 2)
    d.window(4, 1)
    assert sent(d) == [(4, (1, 0))]
    d.commit(4, (old[0],))
    assert d.take_effects() == [Answer(4, (), (old[0],))]
    d.window(3, 1)
    assert sent(d) == [(3, (0, 0))]


def test_a_rank_gets_all_that_was_dealt_to_it_while_another_waits_for_new_batches():
    d = coordinated(2, 4)
    d.window(1, 3)
    assert sent(d) == [(1, (0, 0)), (1, (2, 0))]
    d.window(2, 2)
    assert sent(d) == [(2, (1, 0)), (2, (3, 0))]


def test_ranks_whose_leases_end_together_are_served_together():
    d = coordinated(2, 2)
    d.window(1, 3), d.window(2, 3)
    d.take_effects()
    d.seen(1, TTL), d.seen(2, TTL)
    assert d.tick(TTL) == []
    assert sent(d) == [(1, (0, 0)), (2, (1, 0))]


def test_a_batch_in_a_strangers_hand_comes_back_to_its_rank():
    d = coordinated(2, 2)
    d.window(2, 3), d.window(1, 1)
    token = kinds(d.take_effects(), Send)[-1].token
    d.leave(1)
    d.adopt(2, (token,), 0.0)
    d.join(3, 0.0, 0, 2)
    d.window(3, 1)
    assert sent(d) == []
    d.give_back(2, (token,))
    assert sent(d) == [(3, (0, 0))]


def test_a_round_is_not_dropped_while_what_came_back_may_complete_it():
    d = filled(2)
    d.join(1, 0.0)
    d.window(1, 2)
    tokens = [e.token for e in kinds(d.take_effects(), Send)]
    d.leave(1)
    d.join(2, 0.0, 1, 2), d.join(3, 0.0, 0, 2)
    d.adopt(2, (tokens[1],), 0.0)
    d.window(3, 1)
    d.leave(3)
    d.give_back(2, (tokens[1],))
    d.partition_ended(0)
    d.join(4, 0.0, 0, 2)
    d.window(4, 1), d.window(2, 1)
    assert sent(d) == [(4, (0, 0)), (2, (1, 0))] and d.dropped == {}


# Nothing is left


def test_no_batch_is_left_when_all_are_committed_or_in_hands():
    d = filled(3)
    d.join(1, 0.0)
    d.join(2, 0.0)
    d.window(1, 2)
    assert not d.exhausted(1, 2)
    d.window(2, 1)
    assert not d.exhausted(1, 2)  # another may be made
    d.partition_ended(0)
    d.take_effects()
    assert d.exhausted(1, 2) and d.exhausted(2, 1)
    assert not d.exhausted(1, 1)  # its second is on the way
    assert not d.exhausted(9, 0)
    d.leave(2)
    assert not d.exhausted(1, 2)  # what it had comes back
    d.window(1, 3)
    d.take_effects()
    assert d.exhausted(1, 3)


def test_a_rank_has_no_batch_left_when_its_rounds_are_handed_out():
    d = filled(5)
    d.partition_ended(0)
    d.join(1, 0.0, 0, 2)
    d.join(2, 0.0, 1, 2)
    d.window(1, 9)
    d.take_effects()
    assert d.exhausted(1, 2) and not d.exhausted(2, 0)
    d.window(2, 9)
    d.take_effects()
    assert d.exhausted(2, 2)


def test_uncommitted_batches_stay_with_a_trainer_while_its_heartbeats_list_them():
    """Ten terms of a lease pass over three batches of a trainer that commits explicitly."""
    d = filled(3)
    d.join(1, 0.0)
    d.window(1, 3)
    tokens = tuple(e.token for e in kinds(d.take_effects(), Send))
    for heartbeat in range(1, 40):
        now = heartbeat * TTL / 4
        assert d.renew(1, 3, frozenset(tokens), now) and d.tick(now) == []
    d.commit(1, tokens[1:2])
    assert d.counts["expired"] == 0 and kinds(d.take_effects(), Answer)[0].committed == tokens[1:2]


# An owner that can give nothing


def test_a_trainer_is_reported_idle_once_while_all_is_leased_until_a_batch_comes_back():
    d = Prompt(range(1), TTL, shared=True)
    d.join(1, 0.0), d.join(2, 0.0)
    d.window(1, 1), d.window(2, 9)
    d.made(Batch(0, 0, 1)), d.made(Batch(0, 1, 1))
    assert not [e for e in d.take_effects() if isinstance(e, Idle)]
    d.partition_ended(0)
    assert [e for e in d.take_effects() if isinstance(e, Idle)] == [Idle(2, 1)]
    d.window(2, 10)
    assert d.take_effects() == []
    d.leave(1)
    effects = d.take_effects()
    assert [e.seq for e in effects if isinstance(e, Send)] == [2]
    assert [e for e in effects if isinstance(e, Idle)] == [Idle(2, 2)]


def test_a_trainer_without_room_gets_the_next_batch_number_once():
    d = Prompt(range(0, 6, 3), TTL, shared=True)
    d.join(1, 0.0), d.join(2, 0.0)
    d.window(1, 1), d.window(2, 9)
    d.made(Batch(0, 0, 1)), d.made(Batch(3, 0, 1))
    assert kinds(d.take_effects(), Following) == []
    d.starved(0)
    assert kinds(d.take_effects(), Following) == [Following(2, 1, 0)]
    d.starved(0), d.window(2, 10)
    assert d.take_effects() == []
    d.window(1, 2)
    assert d.take_effects() == [Following(1, 1, 0)]
    d.made(Batch(0, 1, 1)), d.window(1, 9)
    assert [type(e) for e in d.take_effects()] == [Send]
    d.starved(3)
    assert kinds(d.take_effects(), Following) == [Following(1, 1, 3), Following(2, 1, 3)]


@pytest.mark.parametrize("world", [0, 2])
def test_the_next_batch_number_is_sent_only_where_there_are_several_owners(world):
    d = filled(1)
    d.join(1, 0.0, 0 if world else -1, world)
    d.window(1, 9), d.starved(0)
    assert kinds(d.take_effects(), Following) == []


def test_a_rank_that_joins_is_told_once_of_which_round_its_next_batch_is():
    d = Prompt(range(0, 4, 2), TTL, shared=True)
    d.join(1, 0.0, 0, 1)
    assert kinds(d.take_effects(), Following) == [Following(1, 0, 0)]
    d.window(1, 2), d.made(Batch(0, 0, 1)), d.made(Batch(2, 0, 1))
    tokens = tuple(e.token for e in kinds(d.take_effects(), Send))
    d.starved(0), d.window(1, 9), d.commit(1, tokens[:1])
    assert kinds(d.take_effects(), Following) == []
    for session, places in ((2, [(0, 2)]), (3, [(1, 0)])):  # the round that came back, the next one
        d.leave(session - 1)
        d.join(session, 0.0, 0, 1)
        assert kinds(d.take_effects(), Following) == [Following(session, *p) for p in places]
        d.window(session, 1)
        d.commit(session, tuple(e.token for e in kinds(d.take_effects(), Send)))


def test_a_rank_that_returns_with_batches_is_told_of_none_after_them_for_it_may_give_them_back():
    """1. It was silent for too long, with a batch that it has not taken.  2. That goes back.
    It would take a later batch of another owner first.
    """
    d = Prompt([0], TTL, shared=True)
    d.join(1, 0.0, 0, 1), d.window(1, 1), d.made(Batch(0, 0, 1))
    (token,) = (e.token for e in kinds(d.take_effects(), Send))
    d.leave(1), d.take_effects()
    d.join(2, 0.0, 0, 1), d.adopt(2, (token,), 0.0)
    assert kinds(d.take_effects(), Following) == []
    d.resend(2, 0)  # its greeting was repeated
    assert kinds(d.take_effects(), Following) == []
    d.give_back(2, (token,)), d.window(2, 1)
    assert sent(d) == [(2, (0, 0))]


def test_trainers_that_ask_for_much_take_turns():
    d = Prompt(range(1), TTL)
    d.join(1, 0.0), d.join(2, 0.0)
    d.window(1, 50), d.window(2, 50)
    for number in range(4):
        d.made(Batch(0, number, 1))
    assert [session for session, _ in sent(d)] == [1, 2, 1, 2]
