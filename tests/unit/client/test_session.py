"""A session says all that its owner needs to know, and nothing twice."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from headrace.connection.places import Server
from headrace.connection.session import MappedBatches, Member, Meter, Session, States
from headrace.machine.trainer import Trainer
from headrace_proto import limits
from headrace_proto.errors import StaleLease, StateError
from headrace_proto.messages import (
    FROM_TRAINER,
    Bye,
    Ended,
    Give,
    Hello,
    LetGo,
    Pulse,
    Renew,
    ServedShare,
    Step,
    Unknown,
)

from .peer import given, welcome_to


def session(partitions: int = 1, member: Member | None = None, prefetch: int = 1) -> Session:
    """A session with the one owner of a feed."""
    member = member or Member()
    member.trainer = Trainer(partitions, [0] * partitions, 1, prefetch=prefetch)
    server = Server("tcp://a:1")
    server.take(ServedShare("f", 0, 1, partitions, "s", {}, ("tcp://a:2",)))
    return Session(member, server)


class One:
    """A session with the one owner of a feed, and what it has said."""

    def __init__(self, prefetch: int = 2, partitions: int = 2, **told: Any) -> None:
        self.member = Member()
        self.session = session(partitions, self.member, prefetch)
        self.trainer = self.member.trainer
        self.told = {"partitions": partitions, **told}
        self.now = 0.0
        self.greet()

    def say(self) -> list[Any]:
        """Return the messages that it sends now, without heartbeats."""
        self.frames: list[Any] = []
        messages = []
        for message, frames in self.session.outgoing(self.now):
            self.frames += frames
            if not isinstance(message, Renew):
                messages.append(FROM_TRAINER.decode(FROM_TRAINER.encode(message)))
        return messages

    def hear(self, message: Any, *frames: bytes) -> None:
        self.session.receive(message, list(frames), self.now)

    def greet(self, **told: Any) -> Hello:
        """Let it greet, and be let in."""
        (hello,) = self.say()
        self.hear(welcome_to(hello, **self.told, **told))
        return hello

    def give(self, step: Step, *tokens: int) -> None:
        """Answer the first requests of a message."""
        items = tuple(
            given(get.request, token, get.partition)
            for get, token in zip(step.gets, tokens, strict=False)
        )
        self.hear(Give(7, items), b"")


def test_a_greeting_without_an_answer_is_sent_again_as_it_was():
    one = session()
    first = one.outgoing(0.0)
    assert one.outgoing(0.5) == []
    assert one.outgoing(1.0) == first


def test_only_the_answer_to_the_last_greeting_counts_and_only_once():
    one = One()
    (step,) = one.say()
    one.session.greet()
    one.give(step, 11)  # of the older connection
    assert not one.trainer.hands
    (hello,) = one.say()
    older = dataclasses.replace(hello, connection=hello.connection - 1)
    one.hear(welcome_to(older, **one.told))
    assert not one.session.connected
    one.hear(welcome_to(hello, **one.told))
    one.give(step, 11)
    assert [*one.trainer.hands] == [11]
    one.hear(welcome_to(hello, **one.told))
    assert [*one.trainer.hands] == [11] and one.session.connected


def test_a_greeting_lists_what_is_in_hand_and_committed_and_asked():
    one = One()
    (step,) = one.say()
    one.give(step, 11, 12)
    assert one.trainer.take() is not None
    one.trainer.commit(11, States([[0, 4, [1]]], np.arange(4, dtype=np.uint8)))
    one.say()
    one.session.greet()
    hello = one.greet()
    committed, held = hello.batches
    assert (committed.token, committed.committed, committed.state_bytes) == (11, True, 4)
    assert (held.token, held.committed, held.partition) == (12, False, 1)
    assert one.frames == [b"", bytes(range(4))]
    assert len(hello.gets) % 3 == 0 and hello.connection > 1
    assert all(not step.commits and not step.saves for step in one.say())


def test_what_the_trainer_does_while_the_owner_is_greeted_is_said_after_its_answer():
    one = One()
    (step,) = one.say()
    one.give(step, 11, 12)
    one.session.greet()
    (hello,) = one.say()
    assert [batch.committed for batch in hello.batches] == [False, False]
    one.trainer.take()
    one.trainer.commit(11)
    one.hear(Unknown(7))  # it is late: the owner knew the session before no more
    one.now += 1.0
    assert one.say() == [hello]
    one.hear(welcome_to(hello, **one.told))
    (step,) = one.say()
    assert step.commits == (11,)


@pytest.mark.parametrize("crossed", [False, True])
def test_a_farewell_before_the_welcome_has_its_answer(crossed: bool):
    one = session()
    ((hello, _),) = one.outgoing(0.0)
    assert one.goodbye() == Bye(0)
    if crossed:  # the owner has let it in, and then heard the Bye
        one.receive(welcome_to(hello), [], 0.0)
    one.receive(Unknown(0), [], 0.0)
    assert not one.greets and not one.connected


def test_states_beyond_the_size_of_a_message_are_saved_again_after_the_greeting(monkeypatch):
    one = One()
    (step,) = one.say()
    one.give(step, 11, 12)
    for token in (11, 12):
        one.trainer.take()
        one.trainer.commit(token, States([[0, 4, [1]]], np.full(4, token, np.uint8)))
    one.say()
    one.session.greet()
    monkeypatch.setattr(limits, "MAX_UPLOAD_BYTES", 6)
    hello = one.greet()
    assert [batch.committed for batch in hello.batches] == [True, False]
    saved = [save.token for step in one.say() for save in step.saves]
    assert saved == [12] and bytes(one.frames[-1]) == bytes([12] * 4)


def test_a_commit_rides_with_a_request_to_its_owner_or_waits_for_a_moment():
    one = One(prefetch=16, partitions=1)
    (step,) = one.say()
    one.give(step, *range(11, 11 + len(step.gets)))
    taken = [one.trainer.take() for _ in range(2)]
    one.trainer.lazy = True
    one.trainer.commit(taken[0].given.token)
    said = [message for message in one.say() if message.commits]
    assert not said and 0 < one.session.due_in(one.now) <= 0.1
    one.now += 0.1
    (step,) = one.say()
    assert step.commits == (11,)
    one.trainer.commit(taken[1].given.token)
    one.session.hurry()
    assert one.say()[0].commits == (12,), "a trainer that waits for answers waits for no moment"


@pytest.mark.parametrize(("placement", "waits"), [("trainer", True), ("server", False)])
def test_commits_of_lanes_wait_for_a_request_where_no_batch_waits_for_them(placement, waits):
    known = {"shape": "sequences", "order": "lanes", "placement": placement, "states": ["h"]}
    one = One(prefetch=8, partitions=1, properties=known)
    (step,) = one.say()
    one.give(step, *range(11, 11 + len(step.gets)))
    one.trainer.commit(one.trainer.take().given.token)
    assert bool(one.say()) is not waits


def test_a_message_that_was_dropped_shows_in_the_next_heartbeat():
    one = One()
    one.hear(Pulse(7, 0, "nothing"))
    assert one.session.connected and one.session.waiting == "nothing"
    one.hear(Pulse(7, 1, ""))
    assert one.session.connected
    one.hear(Pulse(7, 4, ""))
    assert not one.session.connected
    assert isinstance(one.say()[0], Hello)


def test_an_owner_that_does_not_know_the_session_is_greeted_and_a_stopped_one_is_waited_for():
    for message in (Unknown(7), Ended(7, "lost", "it stops", returns=True)):
        one = One()
        one.hear(message)
        assert not one.session.connected and one.session.stopped is isinstance(message, Ended)
        one.greet()
        assert one.session.connected and not one.session.stopped


def test_refused_commits_are_named_and_raised_once():
    one = One(prefetch=3)
    (step,) = one.say()
    one.give(step, 11, 12, 13)
    for token in (11, 12, 13):
        one.trainer.take()
        one.trainer.commit(token)
    one.hear(Give(7, (), (11,), (12,), [[13, "state", "why"]]))
    stale, fault = one.member.refused
    assert isinstance(stale, StaleLease) and "was committed after its lease had ended" in str(stale)
    assert str(stale).startswith("batch 1/0 (token 12, 1 row)")
    assert isinstance(fault, StateError) and str(fault).endswith("1 row): why")
    assert one.trainer.acknowledged == {0: 11}
    assert not one.trainer.unanswered(0)


def test_a_trainer_that_only_some_owners_have_let_in_has_nothing_to_give_back():
    one = session(2)
    ((hello, _),) = one.outgoing(0.0)
    one.receive(welcome_to(hello, partitions=2), [], 0.0)
    one.receive(LetGo(7), [], 0.0)
    assert one.connected


def test_a_server_with_other_owners_is_noticed():
    other = session()
    ((hello, _),) = other.outgoing(0.0)
    assert (hello.owner, hello.owners) == (0, 1)
    other.receive(ServedShare("f", 0, 1, 4, "", {}, ("", "")), [], 5.0)
    assert other.heard_at < 5.0, "so the link asks the locator"


def test_a_heartbeat_lists_what_is_mapped_unless_that_is_too_much():
    mapped = MappedBatches()
    assert mapped.listed == ((), 0)
    for token in (3, 1, 2):
        mapped.add(token)
    mapped.released.append(1)
    assert mapped.listed == ((2, 3), 3)
    assert mapped.due() == [1] and mapped.due() == []
    assert mapped.listed == ((2, 3), 3)


def test_the_time_of_waits_and_of_work_is_told_apart():
    meter = Meter()
    meter.spends("blocked", 1.0)
    meter.spends("busy", 3.0)
    meter.spends("blocked", 8.0)
    assert meter.totals(9.0) == (3.0, 5.0)
