"""A trainer's session loses no message and sends none twice without need, on any network.

First the machine alone, message by message; then back to back with the server's dispatcher over a
network that is cut at any moment.  Every message goes through the codec.
"""

import itertools
import random
import re
import sys
from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.free_buffers import FreeBuffers
from headrace.requests import DrainInput
from headrace.session import Meter, Received, Session
from headrace_proto.errors import (
    ProtocolError,
    ServerError,
    StaleLease,
    UnknownFeed,
    VersionMismatch,
)
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Answered,
    Deliver,
    Delivery,
    Ended,
    Handed,
    Hello,
    Outcome,
    Passed,
    Pulse,
    Refused,
    Renew,
    Retired,
    Save,
    Step,
    Unknown,
    Welcome,
)
from headrace_proto.state_buffers import FIRST_BUFFER, file_bytes
from headrace_server.core.dispatch_effects import Answer, Batch, Finish, Freed, Send
from tests.examples import some
from tests.footprint import entries
from tests.unit.core.prompt import Prompt

HEARTBEAT, TTL = 1.0, 10.0
SCHEMA = [["x", "int64", [-1]]]


def welcome(session=1, resumed=False, schema=SCHEMA, life="life"):
    file = f"{life}/trainer-{session}"
    return Welcome(1, "test", session, "feed", schema, HEARTBEAT, TTL, 64, "dir", file, resumed)


def delivery(seq, token, segment="", frame=1):
    return Delivery(
        seq, token, 0, token, 1, 8, [[0, 8, [1]]], {}, segment, 0, 0 if segment else frame
    )


class Talk:
    """A session and the messages that it sent, through the codec."""

    def __init__(self, prefetch=2, **options):
        self.session = Session("feed", b"nonce", prefetch, **options)
        self.now = 100.0

    def hear(self, *messages, frames=()):
        for message in messages:
            message = FROM_SERVER.decode(FROM_SERVER.encode(message))
            self.session.receive(message, list(frames), self.now)

    def deliver(self, *deliveries, session=1):
        frames = [b"%d" % d.token for d in deliveries]
        items = [
            d if d.segment else delivery(d.seq, d.token, "", i + 1)
            for i, d in enumerate(deliveries)
        ]
        self.hear(Deliver(session, tuple(items)), frames=frames)

    def said(self, after_s=0.0):
        self.now += after_s
        messages = self.session.outgoing(self.now)
        assert self.session.outgoing(self.now) == [], "said twice"
        return [FROM_TRAINER.decode(FROM_TRAINER.encode(m)) for m in messages]

    def take(self):
        received = self.session.take()
        return None if received is None else received.delivery.token


def opened(prefetch=2, **options):
    talk = Talk(prefetch, **options)
    assert len(talk.said()) == 1
    talk.hear(welcome())
    return talk


def test_a_batch_that_a_greeting_listed_is_returned_to_the_session_that_the_greeting_opens():
    """1. The greeting names a batch that is not taken.  2. The answer to an earlier greeting comes,
    of a session that is over by now, and the batch goes back there.  3. The greeting is answered.
    That session counts the batch as held; it would send those after it first.
    """
    talk = opened()
    talk.deliver(delivery(1, 11))
    for _ in range(2):
        talk.session.greet()
        (greeting,) = talk.said()
        assert greeting.held == (11,)
    talk.hear(welcome(2))
    assert talk.said()[-1].returned == (11,)
    talk.hear(welcome(3))
    assert talk.said()[-1].returned == (11,)


def trainer(run=5):
    """Sessions of one trainer with two owners, where it is of this run."""
    first = Session("feed", b"nonce", 0, 0, 1, owner=0)
    first.receive(replace(welcome(), run=run, owners=2), [], 0.0)
    sessions = [first, first.beside(1)]
    sessions[1].receive(replace(welcome(2), run=run, owner=1, owners=2), [], 0.0)
    return sessions


# Saved states


def test_a_refused_save_names_the_batch_and_the_first_of_its_keys_also_in_another_session():
    talk = opened()
    few, many = delivery(1, 11), replace(delivery(2, 12), rows=9)
    talk.hear(Deliver(1, (few, replace(many, frame=2))), frames=[b"11", b"12"])
    talk.take(), talk.take()
    talk.session.save(11, [], None, lambda: [b"00000_of_00002:a"])
    talk.session.save(12, [], None, lambda: [b"00001_of_00002:b", b"\xff" + b"x" * 300])
    talk.hear(Unknown(1))
    talk.said()
    talk.hear(welcome(2))
    talk.hear(Outcome(2, (), (11,), [[12, "stale", "its lanes went to another trainer"]]))
    stale, refused = map(str, talk.session.refused)
    assert stale.startswith("batch 0/11 (token 11, 1 row: 00000_of_00002:a) was committed after")
    keys = "00001_of_00002:b, \\xff" + "x" * 76 + ", …"
    assert refused == f"batch 0/12 (token 12, 9 rows: {keys}): its lanes went to another trainer"


def test_a_refused_save_is_named_without_keys_where_the_server_sent_what_are_none():
    def lies():
        raise ProtocolError("the offsets of an array of strings do not fit its data")

    talk = opened()
    talk.deliver(delivery(1, 11))
    talk.take()
    talk.session.save(11, [], None, lies)
    talk.hear(Outcome(1, (), (), [[11, "stale", "too late"]]))
    assert [str(error) for error in talk.session.refused] == [
        "batch 0/11 (token 11, 1 row): too late"
    ]


@pytest.mark.parametrize("again", [False, True])
def test_nothing_of_a_batch_is_kept_longer_than_the_batch(again):
    """The first of four batches is committed, the second returned, the save of the third refused.
    The trainer leaves the last one, which goes back when another session begins.
    """
    talk, kept, number = opened(prefetch=4), [], 1
    for at in range(1, 800, 4):
        talk.deliver(*(delivery(i, i) for i in range(at, at + 4)), session=number)
        talk.take(), talk.take(), talk.take()
        talk.session.commit(at)
        talk.session.give_back(at + 1)
        talk.session.save(at + 2, [], b"states", lambda: [b"00000_of_00002:a"])
        talk.said()
        talk.hear(Outcome(number, (at,), (), [[at + 2, "stale", "too late"]]))
        assert talk.session.refused.pop() and talk.session.held() == 1
        if again:
            talk.hear(Unknown(number))
            talk.said()
            talk.hear(welcome(number := number + 1))
        else:
            talk.session.give_back(talk.take())
        assert talk.session.held() == 0
        kept.append(entries(talk.session))
    assert max(kept[100:]) <= max(kept[:100])


# Opening


@pytest.mark.parametrize(
    ("code", "kind"),
    [("feed", UnknownFeed), ("version", VersionMismatch), ("from a later release", ServerError)],
)
def test_a_refusal_is_the_error_that_it_stands_for_and_the_first_one_stays(code, kind):
    talk = Talk()
    talk.hear(Refused(code, "why"), Refused("data", "another"))
    assert type(talk.session.failure) is kind and str(talk.session.failure) == "why"


def test_messages_of_another_session_are_ignored():
    talk = Talk()
    drain = DrainInput(False)
    talk.session.requests.ask(drain)
    talk.hear(Ended(1), Unknown(1))
    talk.deliver(delivery(1, 10))
    talk.hear(welcome(2), Ended(1), Outcome(1, (), (10,)), Unknown(1), Answered(1, 1))
    talk.hear(Retired(1, ("slab-0-0-0",)))
    talk.deliver(delivery(1, 10))
    session = talk.session
    assert session.connected and not session.finished and not session.ready
    assert not session.requests.answer_to(drain)
    assert not session.retired and not session.refused


@pytest.mark.parametrize(("prefetch", "takes"), [(0, 1), (2, 1), (7, 1), (8, 2), (16, 4)])
def test_it_is_time_to_speak_when_a_fourth_of_what_may_come_ahead_could_come(prefetch, takes):
    talk = opened(prefetch)
    talk.said()
    talk.hear(Deliver(1, tuple(delivery(i, 10 + i, "slab-0-0-0") for i in range(1, 17))))
    talk.said()
    for taken in range(1, takes + 1):
        assert not talk.session.much_to_say
        talk.session.take()
        assert talk.session.much_to_say is (taken == takes)
    talk.said()
    assert not talk.session.much_to_say


# Deliveries


def test_a_delivery_that_comes_while_the_server_is_greeted_again_waits_for_those_before_it():
    """An earlier delivery may be lost: the server resends all."""
    talk = opened()
    talk.deliver(delivery(1, 11))
    talk.session.greet()
    talk.deliver(delivery(3, 13))
    talk.hear(Passed(1, 3, 0))
    assert talk.said()[0].last_seq == 1 and not talk.session.passed
    talk.hear(welcome(1, resumed=True))
    talk.deliver(delivery(2, 12), delivery(3, 13))
    assert [talk.take() for _ in range(4)] == [11, 12, 13, None]


@pytest.mark.parametrize("frame", [0, 3])
def test_a_batch_whose_frame_did_not_come_is_nonsense_and_changes_nothing(frame):
    talk = opened()
    items = (delivery(1, 11), Delivery(2, 12, 3, 4, 1, 8, [], {}, "", 0, frame))
    with pytest.raises(
        ProtocolError, match=f"batch 3/4 names frame {frame}, but the message has 2 frames"
    ):
        talk.hear(Deliver(1, items), frames=[b"", b""])
    assert not talk.session.ready and talk.session.held() == 0
    assert talk.said(HEARTBEAT)[-1] == Renew(1, 2, 0, ())


@pytest.mark.parametrize("meta", [7, 0, b"round", []])
def test_a_batch_that_brings_no_mapping_is_nonsense_and_changes_nothing(meta):
    talk = opened()
    items = (delivery(1, 11), Delivery(2, 12, 3, 4, 1, 8, [], meta, "", 0, 1))
    with pytest.raises(ProtocolError, match=f"batch 3/4 says of itself {re.escape(repr(meta))}, "):
        talk.hear(Deliver(1, items), frames=[b"", b""])
    assert not talk.session.ready and talk.session.held() == 0


def test_a_heartbeat_lists_mapped_batches_where_they_come_through_memory():
    talk = opened()
    talk.said()
    talk.deliver(delivery(1, 11))
    assert talk.said(HEARTBEAT) == [Renew(1, 2, 1, (11,))]  # nothing about memory
    talk.deliver(delivery(2, 12, "slab-0-0-0"), delivery(3, 13, "slab-0-0-0"))
    assert talk.said(HEARTBEAT) == [Renew(1, 2, 3, (11, 12, 13), (12, 13), 3)]
    talk.session.mapped.release(12)
    talk.session.mapped.release(13)
    step, renew = talk.said(HEARTBEAT)
    assert step.released == (12, 13) and renew == Renew(1, 2, 3, (11, 12, 13), (), 3)
    talk.hear(welcome(2))
    talk.deliver(delivery(1, 21), session=2)
    assert talk.said(HEARTBEAT)[-1] == Renew(2, 2, 1, (21,))


def test_a_heartbeat_lists_no_mapped_batches_where_they_are_too_many():
    talk = opened(63)
    for n in range(1, 4002):
        talk.deliver(delivery(n, n, "slab-0-0-0"))
        talk.take()
        talk.session.give_back(n)
    assert talk.said(HEARTBEAT)[-1] == Renew(1, 4064, 4001, ())
    talk.session.mapped.release(1)
    assert talk.said(HEARTBEAT)[-1] == Renew(1, 4064, 4001, (), tuple(range(2, 4002)), 4001)


def test_a_stale_commit_is_raised_once():
    talk = opened()
    talk.deliver(delivery(1, 11), delivery(2, 12))
    talk.session.commit(11)
    talk.said()
    talk.hear(Outcome(1, (), (11, 12)), Outcome(1, (), (11,)))
    (error,) = talk.session.refused  # 12 was never committed here
    assert isinstance(error, StaleLease) and "lease_ttl_s" in str(error)
    assert str(error).startswith("batch 0/11 (token 11, 1 row) was committed after")
    assert talk.session.settled


def test_any_number_of_released_batches_fits_the_messages():
    talk = opened()
    talk.said()
    for token in range(20_000):
        talk.session.mapped.release(2**60 + token)
    steps = talk.said()
    assert [t for step in steps for t in step.released] == [2**60 + n for n in range(20_000)]
    assert steps[-1].window == 2


# Reconnection


def test_another_schema_after_a_reconnection_is_a_failure_that_names_both():
    talk = opened()
    talk.hear(welcome(2, schema=[["y", "int64", [-1]]]))
    assert isinstance(talk.session.failure, ProtocolError)
    assert "[['y', 'int64', [-1]]] instead of [['x', 'int64', [-1]]]" in str(talk.session.failure)
    assert talk.session.welcome.session == 1


def test_a_server_that_failed_before_it_knew_its_schema_can_give_the_reason():
    talk = opened()
    talk.hear(welcome(2, schema=[]), Ended(2, "data", "no file matches"))
    assert str(talk.session.failure) == "no file matches"


def over(session):
    """Whether the loop of a trainer of one owner ends."""
    return session.over(session.held() > 0)


def test_a_loop_that_holds_all_that_is_left_ends_before_it_has_committed():
    """1 it holds two batches and asks, 2 a heartbeat asks why none comes, 3 none is left."""
    talk = opened(explicit=True)
    talk.said()
    talk.deliver(delivery(1, 11), delivery(2, 12))
    talk.take(), talk.take()
    talk.said()
    talk.session.want(), talk.session.ask_what_is_left()
    (renew,) = [m for m in talk.said() if isinstance(m, Renew)]
    assert renew.held == (11, 12) and not over(talk.session)
    talk.session.want()  # it looks again, and asks no more: there are heartbeats
    assert talk.said() == []
    talk.hear(Pulse(1, "leases", True))
    assert over(talk.session) and not talk.session.ended
    talk.session.commit(11), talk.session.commit(12)
    assert not over(talk.session)  # it waits for those of others, and may get their batches
    talk.said()
    talk.hear(Outcome(1, (11, 12)), Ended(1))
    assert over(talk.session) and talk.session.ended


# Back to back


class Server:
    """The dispatcher behind a door: sessions by nonce, connections that come and go, no payload.

    A trainer of a session that is over reads its memory until it has a new one.
    """

    def __init__(self, local, batches, term=0):
        self.d = Prompt(range(2), TTL, max_window=8, term=term)
        self.local = local
        self.now = 0.0
        self.out = []  # (connection, header)
        self.sessions = {}  # number → [nonce, connection, {token: (seq, batch)}, present]
        self.freed = Counter()
        self.batches = batches
        self.made = [0, 0]
        self.numbers = 0

    def make(self, partition):
        if self.made[partition] < self.batches:
            self.d.made(Batch(partition, self.made[partition], 1))
            self.made[partition] += 1
        else:
            self.d.partition_ended(partition)

    def say(self, connection, message):
        self.out.append((connection, FROM_SERVER.encode(message)))

    def hear(self, connection, header):
        message = FROM_TRAINER.decode(header)
        if isinstance(message, Hello):
            self.on_hello(connection, message)
            return
        number = message.session
        _, where, mapped, present = self.sessions.get(number, (b"", None, {}, False))
        if not present or where != connection:
            self.say(connection, Unknown(number))
            return
        self.d.seen(number, self.now)
        if isinstance(message, Step):
            for token in message.released:
                self.unmap(number, token)
            self.d.commit(number, message.commits)
            self.d.give_back(number, message.returned)
            self.d.window(number, message.window)
        elif isinstance(message, Renew):
            self.d.window(number, message.window)
            self.d.renew(number, message.last_seq, frozenset(message.held), self.now)
            for token, (seq, _) in list(mapped.items()):
                if seq <= message.mapped_upto and token not in message.mapped:
                    self.unmap(number, token)
            exhausted = self.d.exhausted(number, message.last_seq)
            self.say(connection, Pulse(number, self.d.describe(self.now), exhausted))

    def on_hello(self, connection, hello):
        for number, session in self.sessions.items():
            if session[3] and session[0] == hello.nonce:
                session[1] = connection
                self.d.seen(number, self.now)
                self.say(connection, welcome(number, resumed=True))
                ours = hello.known in ("", f"life/trainer-{number}")
                self.d.resend(number, hello.last_seq if ours else 0)
                return
        self.numbers += 1
        number = self.numbers
        self.sessions[number] = [hello.nonce, connection, {}, True]
        self.d.join(number, self.now)
        self.d.adopt(number, hello.held, self.now)
        self.say(connection, welcome(number))

    def act(self):
        for e in self.d.take_effects():
            if isinstance(e, Freed):
                self.freed[e.batch.order] += 1
                continue
            if not isinstance(e, (Send, Answer, Finish)):
                continue
            session = self.sessions[e.session]
            if isinstance(e, Send):
                if self.local:
                    session[2][e.token] = (e.seq, e.batch)
                    self.d.pin(e.batch, (e.session, e.token))
                segment = "slab-0-0-0" if self.local else ""
                batch = e.batch
                item = Delivery(
                    *(e.seq, e.token, batch.partition, batch.number, 1, 8, [[0, 8, [1]]], {}),
                    *(segment, 0, 0 if self.local else 1),
                )
                self.say(session[1], Deliver(e.session, (item,)))
            elif isinstance(e, Answer):
                self.say(session[1], Outcome(e.session, e.committed, e.stale))
            else:
                self.say(session[1], Ended(e.session))

    def tick(self):
        for number in self.d.tick(self.now):
            self.sessions[number][3] = False
            self.d.leave(number)

    def attachment_gone(self, number):
        for token in list(self.sessions[number][2]):
            self.unmap(number, token)

    def unmap(self, number, token):
        _, batch = self.sessions[number][2].pop(token, (0, None))
        if batch is not None:
            self.d.unpin(batch, (number, token))


class Trainer:
    """A session with a trainer that takes, commits, gives back, and keeps views for a while."""

    def __init__(self, name, prefetch):
        self.session = Session("feed", name, prefetch)
        self.connection = (name, 0)
        self.to_server, self.to_client = deque(), deque()
        self.in_hand = None
        self.views = []  # (session number, token)
        self.numbers = set()
        self.stale = 0

    def cut(self):
        self.to_server.clear()
        self.to_client.clear()
        self.connection = (self.connection[0], self.connection[1] + 1)

    def speak(self, now):
        if self.session.connected and self.session.silence(now):
            self.session.lose()
        for message in self.session.outgoing(now):
            self.to_server.append((self.connection, FROM_TRAINER.encode(message)))

    def listen(self, now):
        message = FROM_SERVER.decode(self.to_client.popleft())
        self.session.receive(message, [b"payload"], now)
        if isinstance(message, Welcome):
            self.numbers.add(message.session)
        self.stale += len(self.session.refused)
        self.session.refused.clear()
        held = len(self.session.ready) + (self.in_hand is not None)
        assert held <= self.session.prefetch + 1, "more is held than was asked for"

    def act(self, chance):
        session = self.session
        if self.in_hand is not None:
            (session.commit if chance < 0.9 else session.give_back)(self.in_hand)
            self.in_hand = None
        received = session.take()
        if received is None:
            session.want()
            return
        token = self.in_hand = received.delivery.token
        if received.delivery.segment:
            if chance < 0.3:
                session.mapped.release(token)  # copied out
            else:
                self.views.append((session.welcome.session, token))

    def let_go(self, index):
        _, token = self.views.pop(index)
        self.session.mapped.release(token)


class World:
    """Trainers, a server and the network between them, drawn from one seed."""

    def __init__(self, seed, local, prefetches, cuts, jumps):
        self.random = random.Random(seed)
        self.server = Server(local, batches=8)
        self.trainers = [Trainer(b"%d" % i, p) for i, p in enumerate(prefetches)]
        self.cuts, self.jumps = cuts, jumps

    def turn(self, calm=False):
        r, server = self.random, self.server
        now = server.now
        trainer = r.choice(self.trainers)
        what = r.random()
        if what < 0.25:
            trainer.speak(now)
        elif what < 0.45:
            for _ in range(r.randrange(1, 4)):  # what comes in one burst is acted on together
                waiting = [t for t in self.trainers if t.to_server]
                if waiting:
                    server.hear(*r.choice(waiting).to_server.popleft())
            if r.random() < 0.8:
                server.act()
        elif what < 0.65 and trainer.to_client:
            trainer.listen(now)
        elif what < 0.8:
            trainer.act(r.random())
        elif what < 0.85:
            server.make(r.randrange(2))
        elif what < 0.9 and trainer.views:
            trainer.let_go(r.randrange(len(trainer.views)))
        elif what < 0.98:
            server.now += r.random() * 0.3
            server.tick()
        elif not calm and r.random() < self.cuts:
            trainer.cut()
        elif not calm and r.random() < self.jumps:
            server.now += r.random() * 2 * TTL
        self.carry()

    def carry(self):
        """Deliver the server's messages; free the memory of sessions that have ended."""
        for connection, header in self.server.out:
            for trainer in self.trainers:
                if trainer.connection == connection:
                    trainer.to_client.append(header)
        self.server.out.clear()
        for number, (nonce, _, mapped, present) in self.server.sessions.items():
            if not present and mapped:
                (trainer,) = (t for t in self.trainers if t.connection[0] == nonce)
                current = trainer.session.welcome
                moved = current is not None and current.session != number
                if moved and not any(n == number for n, _ in trainer.views):
                    self.server.attachment_gone(number)

    def over(self):
        return all(t.session.finished and t.session.settled for t in self.trainers)

    def run(self, turns):
        for _ in range(turns):
            self.turn()
        for _ in range(20_000):
            if self.over():
                break
            self.turn(calm=True)
        assert self.over(), self.server.d.describe(self.server.now)
        for trainer in self.trainers:
            while trainer.views:
                trainer.let_go(0)
        for _ in range(300):
            self.turn(calm=True)


@settings(max_examples=some(120), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    local=st.booleans(),
    prefetches=st.lists(st.integers(0, 2), min_size=1, max_size=2),
)
def test_over_a_network_that_is_cut_every_batch_is_committed_once_and_all_memory_comes_back(
    seed, local, prefetches
):
    world = World(seed, local, prefetches, cuts=0.8, jumps=0.0)
    world.run(600)
    every = {(n, p) for p in range(2) for n in range(8)}
    assert world.server.d.counts["batches"] == len(every)
    assert world.server.freed == Counter(every), "bytes that nobody gave back"
    assert [t.stale for t in world.trainers] == [0] * len(prefetches)
    assert all(len(t.numbers) == 1 for t in world.trainers), "no session was given up"


@settings(max_examples=some(120), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    local=st.booleans(),
    prefetches=st.lists(st.integers(0, 2), min_size=1, max_size=2),
)
def test_trainers_that_were_given_up_and_are_back_commit_every_batch_once_with_the_others(
    seed, local, prefetches
):
    world = World(seed, local, prefetches, cuts=0.5, jumps=0.5)
    world.run(600)
    every = {(n, p) for p in range(2) for n in range(8)}
    assert world.server.d.counts["batches"] == len(every)
    assert world.server.freed == Counter(every), "bytes that nobody gave back"


def test_a_session_makes_no_batch_of_a_server_before_its_restart_count():
    """1 a batch is in hand, 2 the server restarts, 3 its tokens begin at another number."""
    old, new = (Server(False, batches=1, term=term) for term in (5, 9))
    trainer = Trainer(b"t", 1)
    stale = 0
    for server in (old, new):
        server.make(0), server.make(1)
        for _ in range(4):
            trainer.speak(server.now)
            for connection, header in list(trainer.to_server):
                server.hear(connection, header)
            trainer.to_server.clear()
            server.act()
            trainer.to_client.extend(header for _, header in server.out)
            server.out.clear()
            while trainer.to_client:
                trainer.listen(server.now)
        if server is old:
            trainer.in_hand = trainer.session.take().delivery.token
            trainer.cut()
            trainer.session.lose()
            trainer.session.hurry()
        stale += trainer.stale
    assert [isinstance(r, Received) for r in trainer.session.ready] == [True]
    trainer.session.commit(trainer.in_hand)
    trainer.speak(0.0)
    new.hear(*trainer.to_server.popleft())
    new.act()
    assert new.d.counts["batches"] == 0 and new.d.counts["stale"] == 1


def test_a_reference_is_read_in_the_memory_of_its_own_session_also_after_a_later_one_began():
    session = Session("", b"n", prefetch=2)
    session.outgoing(0.0)
    session.memory = "of session 1"
    session.receive(Welcome(1, "t", 1, "f", [], 1.0, 30.0, 64), [], 0.0)
    session.receive(Deliver(1, (delivery(1, 10, "slab-0-0-0"),)), [], 0.0)
    taken = session.take()
    session.memory = "of session 2"
    assert taken.source == "of session 1"


def test_states_in_a_buffer_are_named_in_its_session_and_sent_as_bytes_in_another(tmp_path):
    """1. A save names its buffer.  2. Its session is lost: another has other buffers, or none.
    3. The buffer is free once the save is answered, though a socket may still send its bytes."""
    path = tmp_path / "trainer-1"
    with path.open("wb") as file:
        file.truncate(file_bytes(1, 64))
    buffers, others = FreeBuffers(str(path), 64, bytes(16)), FreeBuffers(str(path), 64, bytes(16))
    buffer = buffers.take(8)
    buffer.array[:] = 3
    talk = opened()
    session = talk.session
    session.buffers = buffers
    talk.deliver(delivery(1, 11))
    talk.take()
    session.save(11, [], buffer)
    del buffer
    (step,) = talk.said()
    assert step.saves == (Save(11, FIRST_BUFFER, []),) and session.frames_of(step) == []
    for session.buffers in (others, None):
        talk.hear(Unknown(1))
        talk.said()
        talk.hear(welcome(1, resumed=True))
        (step,) = talk.said()
        assert step.saves == (Save(11, 1, []),)
        (frame,) = session.frames_of(step)
        assert frame == b"\3" * 64
    assert buffers.take(8) is None
    talk.hear(Outcome(1, (11,)))
    taken = buffers.take(8)
    taken.array[:] = 9
    assert frame == b"\3" * 64


def test_the_meter_counts_running_spans_and_nothing_before_the_first_batch_or_after_the_last():
    meter = Meter()
    assert meter.totals(9.0) == (0.0, 0.0)
    meter.asks(10.0)
    assert meter.totals(12.0) == (2.0, 0.0)
    meter.gets(13.0)
    assert meter.totals(16.0) == (3.0, 3.0)
    meter.asks(20.0)
    meter.gets(20.5, any_came=False)
    assert meter.totals(99.0) == (3.5, 7.0)


# A server that is started anew


def test_hello_lists_batches_in_hand_and_unanswered_ones():
    talk = opened(5)
    talk.deliver(*(delivery(n, 10 + n) for n in range(1, 5)))
    places = [Handed(10 + n, 0, 10 + n, 1, b"which") for n in range(1, 5)]
    for place in places:
        talk.take()
        talk.session.place(place.token, place.segments)
    talk.session.commit(11), talk.session.commit(12), talk.session.give_back(14)
    talk.said()
    talk.hear(Outcome(1, (11,)))
    talk.session.lose()
    (hello,) = talk.said(1.0)
    assert hello.batches == tuple(places[1:3])
    talk.hear(welcome(2, life="another"))
    talk.hear(Outcome(2, (), (12,)))
    talk.session.lose()
    assert talk.said(1.0)[0].batches == (places[2],)


def test_hello_has_the_start_of_the_server_and_the_last_commit_of_each_partition():
    talk = opened(5)
    talk.hear(replace(welcome(2, life="durable"), properties={"epoch": 8, "generation": 0}))
    partitions = enumerate((0, 1, 0, 0, 1), 1)
    items = tuple(replace(delivery(n, 10 + n), partition=p) for n, p in partitions)
    talk.hear(Deliver(2, items), frames=[b"8 bytes."])
    for n in range(1, 6):
        talk.take()
        talk.session.place(10 + n)
        talk.session.commit(10 + n)
    talk.said()
    talk.hear(Outcome(2, (13, 12, 11), (15,)))
    talk.session.lose()
    (hello,) = talk.said(1.0)
    assert hello.term == 8 and hello.committed == (0, 13, 1, 12)


def test_hello_lists_as_many_batches_as_a_header_holds():
    talk = opened(63)
    talk.deliver(*(delivery(n, n) for n in range(1, 41)))
    for n in range(1, 41):
        talk.take()
        talk.session.place(n, b"s" * (5000 if n > 1 else 20_000))
    talk.session.lose()
    (hello,) = talk.said(1.0)
    assert len(hello.held) == 40
    told = [place.token for place in hello.batches]
    assert 5 <= len(told) < 40 and 1 not in told


def interrupted_at(line, act):
    """Call a function, interrupted before one of the lines that it runs; return whether it was."""
    lines = itertools.count()

    def interrupted(frame, event, argument):
        if event == "line" and next(lines) == line:
            raise KeyboardInterrupt
        return interrupted

    before = sys.gettrace()
    sys.settrace(interrupted)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_save_that_is_interrupted_anywhere_is_sent_or_can_be_made_again():
    for line in itertools.count():
        talk = opened()
        talk.deliver(delivery(1, 5))
        assert talk.take() == 5
        if not interrupted_at(line, lambda talk=talk: talk.session.save(5, [], None)):
            break
        said = [save.token for step in talk.said() for save in step.saves]
        assert talk.session.holds(5) or said == [5], line


def test_a_delivery_that_is_interrupted_anywhere_is_there_or_goes_back():
    for line in itertools.count():
        talk = opened(2)
        if not interrupted_at(line, lambda talk=talk: talk.deliver(delivery(1, 5))):
            break
        taken = [] if talk.take() is None else [5]
        lost = [token for _, token in talk.session.lost(taken)]
        assert taken + lost == [5] or not talk.session.holds(5), line
    assert line > 40


def test_a_commit_that_is_sent_again_after_an_interrupted_answer_is_known_to_a_restarted_server():
    for line in itertools.count():
        talk = opened()
        talk.deliver(delivery(1, 5))
        talk.take()
        talk.session.place(5, b"segments")
        talk.session.save(5, [], None)
        talk.said()
        if not interrupted_at(line, lambda talk=talk: talk.hear(Outcome(1, (5,)))):
            break
        talk.session.lose()
        (hello,) = talk.said(1.0)
        places = [place.token for place in hello.batches]
        talk.hear(welcome(2, life="another"))
        again = [save.token for step in talk.said() for save in step.saves]
        assert places == [5] or again == [], line
    assert line > 20


@pytest.mark.parametrize("answer", [{"stale": (5,)}, {"faults": [[5, "state", "no"]]}])
def test_an_interrupted_refusal_is_raised_at_least_once(answer):
    for line in itertools.count():
        talk = opened()
        talk.deliver(delivery(1, 5))
        talk.take()
        talk.session.save(5, [], None)
        talk.said()
        outcome = Outcome(1, **answer)
        if not interrupted_at(line, lambda talk=talk, outcome=outcome: talk.hear(outcome)):
            break
        talk.hear(outcome)
        assert talk.session.refused and talk.session.settled, line
