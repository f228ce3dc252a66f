"""A group is one trainer of the dispatcher: all members get all its batches, in one order."""

from __future__ import annotations

from collections import Counter, deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_proto.messages import Following, Handed
from headrace_server.core.admitted_examples import AT_SERVER, AT_TRAINER
from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import (
    Answer,
    Batch,
    Claim,
    Deal,
    Finish,
    FlushLost,
    Freed,
    Leave,
    Send,
    StoreCommit,
    StoreLanes,
)
from headrace_server.core.group_dispatch import GroupDispatcher
from headrace_server.core.trainers import LATE_S
from tests.examples import some

from .greetings import hello

TTL = 10.0


class Trainer:
    """A trainer like its session machine: its deliveries, its takes, its unanswered commits."""

    def __init__(self, nonce: bytes, size: int) -> None:
        self.nonce, self.size = nonce, size  # size 0: it is in no group
        self.session = 0
        self.wire: deque[Send] = deque()
        self.ready: deque[int] = deque()
        self.hand: int | None = None
        self.unanswered: dict[int, None] = {}
        self.last_seq, self.ended = 0, False
        self.places: dict[int, tuple[int, int]] = {}  # by token
        self.took: list[tuple[int, int]] = []

    @property
    def held(self) -> list[int]:
        return [*self.ready, *([] if self.hand is None else [self.hand])]


class World:
    """One owner, a group and a single trainer, and all that can befall them."""

    def __init__(self, seed: int, size: int, counts: list[int], single: bool) -> None:
        self.random = Random(seed)
        self.counts, self.size = counts, size
        self.stored: dict[int, tuple[int, int]] = {}  # commits, by token
        self.commits: dict[int, set[bytes]] = {}  # members that have committed, by token
        self.of_group: set[int] = set()
        self.sessions = self.term = 0
        self.freed: set[tuple[int, int]] = set()
        self.stale = 0
        self.start()
        self.trainers = [Trainer(b"m%d" % i, size) for i in range(size)]
        self.trainers += [Trainer(b"single", 0)] * single
        for trainer in self.trainers:
            self.join(trainer)

    def start(self) -> None:
        self.term += 1
        self.d = GroupDispatcher(Dispatcher(range(len(self.counts)), TTL, 4, self.term))
        done = set(self.stored.values())
        left = {p: [n for n in range(c) if (n, p) not in done] for p, c in enumerate(self.counts)}
        self.to_make = [(n, p) for p, numbers in left.items() for n in [*numbers, -1]]
        self.saves: deque[StoreCommit] = deque()
        self.claims: deque[Claim] = deque()
        for p, numbers in left.items():
            self.d.started(p, numbers[0] if numbers else self.counts[p])

    def join(self, trainer: Trainer) -> None:
        self.sessions += 1
        session = trainer.session = self.sessions
        held = trainer.held
        trainer.wire.clear()
        if trainer.size:
            greeting = hello(trainer.nonce, group="g", members=trainer.size)
            assert self.d.admits(greeting, 0.0)
            self.d.join_group(session, greeting, 0.0)
        else:
            self.d.join(session, 0.0)
        self.d.adopt(session, (*held, *trainer.unanswered), 0.0)
        self.claim(trainer)
        returned = tuple(trainer.ready)
        trainer.ready.clear()
        trainer.last_seq, trainer.ended = 0, False
        self.d.commit(session, tuple(trainer.unanswered))
        self.d.give_back(session, returned, 0)
        self.act()

    def claim(self, trainer: Trainer) -> None:
        """Return the claims of a greeting: batches in hand, and commits without an answer."""
        places = [*([] if trainer.hand is None else [trainer.hand]), *trainer.unanswered]
        for token in sorted(places):
            number, partition = trainer.places[token]
            place = Handed(token, partition, number, 1)
            self.d.claim(trainer.session, place, token not in trainer.held)

    def new(self, i: int) -> None:
        """A trainer dies, and another process takes its place."""
        old = self.trainers[i]
        self.d.leave(old.session)
        self.act()
        self.trainers[i] = Trainer(b"%d" % self.random.getrandbits(64), old.size)
        for other in self.trainers:
            if other.session:
                self.d.seen(other.session, 1.0 + LATE_S)  # else it would have to wait
        self.join(self.trainers[i])

    def restart(self) -> None:
        """The owner dies; the trainers greet the next one."""
        self.start()
        self.d.paused = True
        self.d.wait_for_others(True)
        trainers = list(self.trainers)
        self.random.shuffle(trainers)
        for trainer in trainers:
            self.join(trainer)
        self.d.wait_for_others(False)
        self.d.paused = False
        self.act()

    def act(self) -> None:
        by_session = {trainer.session: trainer for trainer in self.trainers}
        while effects := self.d.take_effects():
            for effect in effects:
                trainer = by_session.get(getattr(effect, "session", -1))
                if isinstance(effect, StoreCommit):
                    self.saves.append(effect)
                elif isinstance(effect, Claim):
                    self.claims.append(effect)
                elif isinstance(effect, Freed):
                    self.freed.add(effect.batch.order)
                elif isinstance(effect, Send):
                    assert effect.batch.order not in self.freed
                    if trainer is not None:
                        if trainer.size:
                            self.of_group.add(effect.token)
                        trainer.wire.append(effect)
                elif isinstance(effect, Answer) and trainer is not None:
                    self.stale += len(effect.stale)
                    counts = {*self.stored, *(save.token for save in self.saves)}
                    assert counts.isdisjoint(effect.stale), "a commit that counts is not refused"
                    for token in (*effect.committed, *effect.stale):
                        trainer.unanswered.pop(token, None)
                elif isinstance(effect, Finish) and trainer is not None:
                    trainer.ended = True

    # Steps

    def make(self) -> bool:
        if not self.to_make:
            return False
        first: dict[int, int] = {}
        for at, (_, partition) in enumerate(self.to_make):
            first.setdefault(partition, at)
        number, partition = self.to_make.pop(self.random.choice(list(first.values())))
        if number < 0:
            self.d.partition_ended(partition)
        else:
            self.freed.discard((number, partition))
            self.d.made(Batch(partition, number, 1))
        return True

    def store(self) -> bool:
        if not self.saves:
            return False
        save = self.saves.popleft()
        order, token = save.batch.order, save.token
        if token in self.of_group:
            assert len(self.commits[token]) >= self.size, "all members have committed"
        assert token in self.stored or order not in self.stored.values(), "once"
        self.stored[token] = order
        self.d.stored(order[1], [(order[0], "", "")])
        return True

    def judge(self) -> bool:
        if not self.claims:
            return False
        place = self.claims.popleft().place
        done = set(self.stored.values())
        verdict = "no" if (place.number, place.partition) in done else "yes"
        verdict = "done" if place.token in self.stored else verdict
        self.d.claimed(place.token, verdict, place.number)
        return True

    def step(self, trainer: Trainer) -> bool:
        """Have a trainer read messages, take a batch, or commit the one that it holds."""
        if trainer.wire:
            send = trainer.wire.popleft()
            if send.seq > trainer.last_seq:
                known = trainer.nonce in self.commits.get(send.token, ())
                assert send.token not in trainer.held and not known, "it has that batch"
                trainer.last_seq = send.seq
                trainer.ready.append(send.token)
                trainer.places[send.token] = send.batch.order
            return True
        if trainer.hand is not None:
            token, trainer.hand = trainer.hand, None
            trainer.unanswered[token] = None
            self.commits.setdefault(token, set()).add(trainer.nonce)
            self.d.commit(trainer.session, (token,))
            return True
        if trainer.ready:
            trainer.hand = trainer.ready.popleft()
            trainer.took.append(trainer.places[trainer.hand])
            return True
        before = [t.wire.copy() for t in self.trainers]
        self.d.window(trainer.session, trainer.last_seq + 1 + self.random.randrange(3))
        self.act()
        return before != [t.wire for t in self.trainers]

    def fault(self) -> None:
        trainer = self.random.choice(self.trainers)
        kind = self.random.randrange(6)
        if kind == 0:
            self.restart()
        elif kind == 1:
            self.new(self.trainers.index(trainer))
        elif kind == 2:  # a connection is lost, and the session goes on
            trainer.wire.clear()
            self.claim(trainer)
            self.d.resend(trainer.session, trainer.last_seq)
        elif kind == 3 and len(trainer.wire) > 1:  # one message is lost
            trainer.wire.popleft()
            while trainer.wire:
                self.step(trainer)
            self.renew(trainer)
        elif kind == 4:  # it was given up, and comes back as another session
            self.d.leave(trainer.session)
            self.act()
            self.join(trainer)
        elif trainer.ready:
            self.d.give_back(trainer.session, (trainer.ready.pop(),), trainer.last_seq)
        self.act()

    def renew(self, trainer: Trainer) -> None:
        self.d.renew(trainer.session, trainer.last_seq, frozenset(trainer.held), 0.0)

    def any_step(self) -> bool:
        steps = [self.make, self.store, self.judge]
        steps += [lambda t=t: self.step(t) for t in self.trainers]
        self.random.shuffle(steps)
        done = any(step() for step in steps)
        self.act()
        return done

    def to_the_end(self) -> None:
        idle = 0
        while idle < 20:
            idle = 0 if self.any_step() else idle + 1
        assert self.d.ended, self.d.describe(0.0)
        assert Counter(self.stored.values()) == Counter(
            (n, p) for p, count in enumerate(self.counts) for n in range(count)
        )
        assert all(t.ended and not t.unanswered and not t.held for t in self.trainers)
        assert not self.d.group_of("g").batches


_COUNTS = st.lists(st.integers(0, 6), min_size=1, max_size=3)


@given(st.integers(0, 2**32), st.integers(1, 3), _COUNTS, st.booleans())
def test_all_members_take_the_same_batches_in_the_same_order(
    seed: int, size: int, counts: list[int], single: bool
):
    world = World(seed, size, counts, single)
    world.to_the_end()
    streams = [t.took for t in world.trainers if t.size]
    assert all(stream == streams[0] for stream in streams) and not world.stale
    others = [order for t in world.trainers if not t.size for order in t.took]
    assert len(streams[0]) + len(others) == sum(counts)


@settings(max_examples=some(300), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), _COUNTS, st.booleans())
def test_every_batch_is_committed_once_by_all_members_through_deaths_of_members_and_owner(
    seed: int, size: int, counts: list[int], single: bool
):
    world = World(seed, size, counts, single)
    for _ in range(40):
        for _ in range(world.random.randrange(6)):
            world.any_step()
        world.fault()
    world.to_the_end()


def filled(numbers: int = 4) -> GroupDispatcher:
    d = GroupDispatcher(Dispatcher([0], TTL, 4))
    for number in range(numbers):
        d.made(Batch(0, number, 1))
    return d


def joined(d: GroupDispatcher, session: int, now: float = 0.0, size: int = 2) -> None:
    d.join_group(session, hello(b"%d" % session, group="g", members=size), now)
    d.window(session, 5)


def sent(d: GroupDispatcher) -> list[tuple[int, int, int]]:
    effects = d.take_effects()
    return [(e.session, e.seq, e.batch.number) for e in effects if isinstance(e, Send)]


def test_nothing_comes_before_all_members_are_there_and_the_text_counts_them():
    d = filled()
    joined(d, 7)
    assert sent(d) == [] and d.describe(0.0) == "1 of 2 members of group 'g' are there"
    joined(d, 9)
    assert len(sent(d)) == 8 and "members of" not in d.describe(0.0)
    assert "group 'g'" in d.describe(0.0) and d.named(7) == "trainer 7 of group 'g'"
    assert d.holder(0, 1) == (7, 0.0)


def test_the_slowest_member_bounds_what_the_group_takes():
    d = filled()
    d.join_group(1, hello(b"1", group="g", members=2), 0.0)
    d.join_group(2, hello(b"2", group="g", members=2), 0.0)
    d.window(1, 3)
    assert sent(d) == []
    d.window(2, 1)
    assert sent(d) == [(1, 1, 0), (2, 1, 0)]
    assert not d.exhausted(1, 1)


def test_a_member_that_comes_back_gets_what_it_has_not_committed_and_the_others_wait():
    d = filled()
    joined(d, 1)
    joined(d, 2)
    tokens = [e.token for e in d.take_effects() if isinstance(e, Send) and e.session == 1]
    d.commit(1, tuple(tokens[:3]))
    d.commit(2, tuple(tokens[:1]))
    d.stored(0, [(0, "", "")])
    answers = [e for e in d.take_effects() if isinstance(e, Answer)]
    assert [e.session for e in answers] == [1, 2]
    d.leave(2)
    d.made(Batch(0, 4, 1))
    d.window(1, 9)
    assert sent(d) == []
    joined(d, 3)
    assert sent(d) == [(1, 5, 4), (3, 1, 1), (3, 2, 2), (3, 3, 3), (3, 4, 4)]


def test_a_batch_that_is_returned_twice_is_sent_again_once():
    d = filled(1)
    joined(d, 1)
    joined(d, 2)
    (token,) = {e.token for e in d.take_effects() if isinstance(e, Send)}
    d.give_back(1, (token,), 1)
    assert sent(d) == [(1, 2, 0)]
    d.give_back(1, (token,), 1)
    assert sent(d) == []
    d.give_back(1, (token,), 2)
    assert sent(d) == [(1, 3, 0)]


def test_a_trainer_beside_a_group_that_is_back_as_another_session_keeps_what_it_holds():
    d = filled(2)
    d.join(1, 0.0)
    d.window(1, 1)
    (send,) = [e for e in d.take_effects() if isinstance(e, Send)]
    d.leave(1)
    d.join(2, 0.0)
    d.adopt(2, (send.token,), 0.0)
    d.window(2, 9)
    assert sent(d) == [(2, 1, 1)]
    d.commit(2, (send.token,))
    d.stored(0, [(0, "", "")])
    assert Answer(2, (send.token,), ()) in d.take_effects()


def test_when_all_are_gone_their_batches_go_to_others():
    d = filled(2)
    joined(d, 1)
    joined(d, 2)
    (first, *_) = [e.token for e in d.take_effects() if isinstance(e, Send)]
    d.commit(1, (first,))
    assert d.tick(TTL) == [1, 2]
    assert Answer(1, (), (first,)) in d.take_effects()
    for session in (1, 2):
        d.leave(session)
    d.join(3, 0.0)
    d.window(3, 2)
    assert sent(d) == [(3, 1, 0), (3, 2, 1)]


def test_a_member_that_lacks_claimed_batches_gets_them_in_their_order():
    """Member 2 has both in hand from before a restart; the second is made again first."""
    d = GroupDispatcher(Dispatcher([0, 1], TTL, 4, 1))
    d.started(0, 0)
    d.started(1, 0)
    joined(d, 1)
    joined(d, 2)
    d.claim(2, Handed(5, 0, 0, 1))
    d.claim(2, Handed(6, 1, 0, 1))
    for token, partition in ((6, 1), (5, 0)):
        assert sent(d) == []
        d.made(Batch(partition, 0, 1))
        d.claimed(token, "yes", 0)
    sends = [e for e in d.take_effects() if isinstance(e, Send)]
    assert [(e.session, e.batch.partition) for e in sends] == [(1, 0), (1, 1)]


def test_a_member_that_comes_back_is_told_its_own_next_round_once_no_earlier_one_may_come():
    d = GroupDispatcher(Dispatcher([0, 2], TTL, 4, 1, shared=True))
    d.started(0, 0), d.started(2, 0)

    def joins(*sessions: int) -> None:
        for session in sessions:
            d.join_group(session, hello(b"%d" % session, 0, 1, "g", 2), 0.0, 1)
            d.window(session, 2)

    def told() -> list[Following]:
        return [e for e in d.take_effects() if isinstance(e, Following)]

    joins(1, 2)
    assert told()[-2:] == [Following(1, 0, 0), Following(2, 0, 0)]
    for partition in (0, 2):
        d.made(Batch(partition, 0, 1))
    tokens = [e.token for e in d.take_effects() if isinstance(e, Send) and e.session == 1]
    d.commit(1, tuple(tokens))
    d.commit(2, tuple(tokens[:1]))
    d.leave(2)
    assert told() == []
    joins(3)
    assert set(told()) == {Following(1, 1, 0), Following(3, 0, 2)}
    d.leave(3)
    joins(4)
    d.claim(4, Handed(3, 0, 7, 1))
    assert told() == []
    d.made(Batch(0, 1, 1))
    d.claimed(3, "done", 7)
    assert set(told()) == {Following(1, 1, 0), Following(4, 0, 2)}
    d.commit(4, tuple(tokens[1:]))  # others may never want a batch that shows what is next here
    assert set(told()) == {Following(1, 1, 0), Following(4, 1, 0)}
    d.commit(1, (3,))
    assert told() == []


def test_a_claimed_batch_that_all_members_have_committed_is_stored_once_it_is_judged():
    """It was made again, and no member sends its commit a second time."""
    d = GroupDispatcher(Dispatcher([0], TTL, 4, 1))
    d.started(0, 0)
    for session in (1, 2):
        joined(d, session)
        d.claim(session, Handed(5, 0, 0, 1), True)
        d.commit(session, (5,))
    assert [type(e) for e in d.take_effects()] == [Claim]
    d.made(Batch(0, 0, 1))
    d.claimed(5, "yes", 0)
    assert [e.token for e in d.take_effects() if isinstance(e, StoreCommit)] == [5]
    d.stored(0, [(0, "", "")])
    answers = [e for e in d.take_effects() if isinstance(e, Answer)]
    assert answers == [Answer(1, (5,), ()), Answer(2, (5,), ())]


def test_a_member_that_is_alone_hears_the_end_though_a_batch_fills_no_round():
    """All others have heard the end from an earlier life of the owner, and come no more."""
    d = GroupDispatcher(Dispatcher([0], TTL, 4))
    d.join_group(1, hello(b"1", 0, 2, "g", 2), 0.0, 1)
    d.window(1, 1)
    d.made(Batch(0, 0, 1))
    assert not [e for e in d.take_effects() if isinstance(e, Finish)]
    d.partition_ended(0)
    assert [e for e in d.take_effects() if isinstance(e, Finish)] == [Finish(1)]
    assert d.dropped == {"incomplete_round": 1}


def segments(states: str = AT_SERVER) -> GroupDispatcher:
    """Two members of a group that is rank 0 of 1; they have the first member of its rounds."""
    d = GroupDispatcher(Dispatcher([0], TTL, 4, order="lanes", states=states))
    for session in (1, 2):
        d.join_group(session, hello(b"%d" % session, 0, 1, "g", 2), 0.0, 1)
        d.window(session, 1)
    (deal,) = [e for e in d.take_effects() if isinstance(e, Deal)]
    d.made(Batch(0, 0, 2, meta={"rank": 0, "round": 0, "stripe": deal.stripe}))
    return d


def test_states_are_stored_once_all_members_have_saved_theirs():
    d = segments()
    token = next(e.token for e in d.take_effects() if isinstance(e, Send))
    d.commit(1, (token,))
    (refused,) = d.take_effects()
    assert isinstance(refused, Answer) and "save them" in refused.faults[0][2]
    d.save(1, token, "states")
    assert d.take_effects() == [] and d.leased_batch(2, token) is d.leased_batch(1, token)
    d.save(2, token, "the same states")
    store, freed = d.take_effects()
    assert isinstance(store, StoreCommit) and freed == Freed(store.batch)
    assert store.payload == "the same states"
    d.stored(0, [(0, "", "")])
    assert [e for e in d.take_effects() if isinstance(e, Answer)] == [
        Answer(1, (token,), ()),
        Answer(2, (token,), ()),
    ]


def test_states_of_lanes_are_stored_after_the_batch_that_all_members_have_saved():
    d = segments(AT_TRAINER)
    token = next(e.token for e in d.take_effects() if isinstance(e, Send))
    assert d.last_saved(1, token) is None and not d.lost_lanes(1, token)
    d.save(1, token)
    batch = d.last_saved(1, token)
    assert batch is not None and d.last_saved(2, token) is None
    d.flush(batch, "of 1")
    assert d.take_effects() == []
    d.save(2, token)
    d.flush(batch, "of 2")
    assert d.take_effects() == [
        StoreCommit(batch, None, token),
        Freed(batch),
        StoreLanes(batch, "of 1"),
        StoreLanes(batch, "of 2"),
    ]


def test_both_batches_are_stale_where_all_members_save_the_later_one_first():
    """The earlier batch can not be saved any more, so all go back while the later one is saved."""
    d = segments(AT_TRAINER)
    for session in (1, 2):
        d.window(session, 2)
    (early, *_) = [e for e in d.take_effects() if isinstance(e, Send)]
    d.made(Batch(0, 1, 2, meta={**early.batch.meta, "round": 1}))
    (late, *_) = [e for e in d.take_effects() if isinstance(e, Send)]
    d.save(1, late.token)
    d.flush(late.batch, "of 1")
    d.save(2, late.token)
    told = [e for e in d.take_effects() if isinstance(e, (Answer, FlushLost, StoreCommit))]
    stale = [Answer(session, (), (late.token,)) for session in (1, 2)]
    assert told == [*stale, FlushLost("of 1")]
    d.save(1, early.token)
    assert d.take_effects() == [Answer(1, (), (early.token,))]


@pytest.mark.parametrize("later", ["saved", "in hand"])
def test_a_member_does_not_get_a_batch_again_whose_lanes_it_has_trained_further(later: str):
    """1. A save is refused, so the trainer has the batch no more; its states are of a later batch.
    2. All batches of the group go back, for their lanes begin again from stored states.
    """
    d = segments(AT_TRAINER)
    for session in (1, 2):
        d.window(session, 2)
    (early, *_) = [e for e in d.take_effects() if isinstance(e, Send)]
    d.made(Batch(0, 1, 2, meta={**early.batch.meta, "round": 1}))
    (late, *_) = [e for e in d.take_effects() if isinstance(e, Send)]
    d.save(2, early.token)
    d.refuse(1, early.token, "state", "the states of this feed stay with the trainer")
    if later == "saved":
        d.save(1, late.token)
    d.take_effects()
    d.window(1, 4)
    d.renew(1, 2, frozenset() if later == "saved" else frozenset({late.token}), 1.0)
    effects = d.take_effects()
    assert not [e for e in effects if isinstance(e, Send)]
    assert [e for e in effects if isinstance(e, Leave)]
    stale = [Answer(2, (), (early.token,))]
    stale += [Answer(1, (), (late.token,))] * (later == "saved")
    assert [e for e in effects if isinstance(e, Answer)] == stale


def test_a_flush_that_waits_for_members_is_refused_when_the_lease_of_the_group_ends():
    d = segments(AT_TRAINER)
    token = next(e.token for e in d.take_effects() if isinstance(e, Send))
    d.save(1, token)
    batch = d.last_saved(1, token)
    assert batch is not None
    d.flush(batch, "of 1")
    assert d.take_effects() == []
    d.tick(2 * TTL)
    told = [e for e in d.take_effects() if isinstance(e, (Answer, FlushLost))]
    assert told == [Answer(1, (), (token,)), FlushLost("of 1")]


def test_where_states_stay_with_trainers_a_new_member_makes_lanes_begin_again():
    d = segments(AT_TRAINER)
    token = next(e.token for e in d.take_effects() if isinstance(e, Send))
    d.leave(2)
    assert not [e for e in d.take_effects() if isinstance(e, (Answer, Leave))]
    d.save(1, token)
    d.join_group(3, hello(b"3", 0, 1, "g", 2), 0.0, 1)
    effects = d.take_effects()
    (left,) = [e for e in effects if isinstance(e, Leave)]
    assert Answer(1, (), (token,)) in effects
    d.window(1, 2)
    d.window(3, 1)
    d.made(Batch(0, 1, 2, meta={"rank": 0, "round": 0, "stripe": left.instead}))
    assert sorted(sent(d)) == [(1, 2, 1), (3, 1, 1)]
