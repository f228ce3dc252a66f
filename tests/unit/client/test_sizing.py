"""A trainer that names the size of its next batch: its requests, and deliveries that it takes."""

import re

import numpy as np
import pytest

import headrace.sizing
from headrace.session import Session
from headrace_proto.messages import Deliver, Delivery, Idle, Passed, Renew, Step, Take, Welcome


def opened(prefetch=0):
    session = Session("feed", b"nonce", prefetch)
    schema = [["@sequence", "int32", [-1]]]
    session.receive(Welcome(1, "test", 1, "feed", schema, 1.0, 10.0, 64, "", "file"), [], 0.0)
    said(session)
    return session


def said(session):
    return [m for m in session.outgoing(0.0) if not isinstance(m, Renew)]


def deliver(session, seq, take=0):
    meta = {"take": take} if take else {}
    item = Delivery(seq, 100 + seq, 0, seq - 1, 2, 8, [[0, 8, [2]]], meta, "", 0, 1)
    session.receive(Deliver(1, (item,)), [b"\0" * 8], 0.0)


def test_a_take_is_sent_once_to_its_owner_and_ready_batches_go_back():
    session = opened(prefetch=1)
    deliver(session, 1)
    session.prefetch = 0
    session.begin_take(5, 3)
    assert said(session) == [Step(1, 1, returned=(101,))], "another owner may be asked"
    session.want()
    assert said(session) == [Take(1, 5, 3, 1)]
    session.want()
    assert said(session) == []
    deliver(session, 2, take=5)
    assert session.take().delivery.seq == 2
    assert not session.end_take() and said(session) == []
    session.want()
    assert said(session) == [Step(1, 3)]


def test_only_the_batch_of_this_take_is_taken():
    session = opened()
    session.begin_take(5, 3)
    session.want()
    said(session)
    deliver(session, 1)
    deliver(session, 2, take=4)
    assert not session.ready and said(session) == [Step(1, 2, returned=(101, 102))]
    deliver(session, 3, take=5)
    assert session.take().delivery.seq == 3
    session.end_take()
    deliver(session, 4, take=5)
    assert not session.ready, "nobody waits for it any more"


def test_a_take_is_withdrawn_where_another_owner_gave_the_batch():
    session = opened()
    session.begin_take(5, 3)
    session.want()
    said(session)
    session.receive(Idle(1, 0), [], 0.0)
    assert session.idle
    assert session.end_take() and said(session) == [Take(1, 5, 0, 0)]
    assert said(session) == []
    session.begin_take(6, 2)
    assert not session.idle, "it may have enough for fewer rows"


def test_a_batch_that_crossed_a_withdrawn_take_is_not_used():
    """The server has taken it back; that which it sends after the withdrawal is used."""
    session = opened(prefetch=1)
    session.prefetch = 0
    session.want()
    said(session)
    session.begin_take(5, 3)
    session.want()
    said(session)
    session.end_take()
    session.want()
    said(session)
    deliver(session, 1)
    assert not session.ready and said(session) == [Step(1, 2, returned=(101,))]
    deliver(session, 2)
    assert session.take().delivery.seq == 2


def test_a_batch_that_crossed_a_take_which_was_first_sent_after_a_reconnection_is_not_used():
    session = opened(prefetch=1)
    session.prefetch = 0
    session.greet()
    session.outgoing(0.0)
    schema = session.welcome.schema
    again = Welcome(1, "test", 1, "feed", schema, 1.0, 10.0, 64, "", "file", resumed=True)
    session.receive(again, [], 0.0)
    session.begin_take(5, 3)
    session.want()
    assert said(session) == [Take(1, 5, 3, 0)]
    session.end_take()
    session.want()
    said(session)
    deliver(session, 1)
    assert not session.ready
    deliver(session, 2)
    assert session.take().delivery.seq == 2


def test_a_take_is_resent_to_a_server_that_does_not_know_it():
    session = opened()
    session.begin_take(5, 3)
    session.want()
    assert said(session) == [Take(1, 5, 3, 0)]
    session.greet()
    session.outgoing(0.0)
    session.receive(Welcome(1, "test", 1, "feed", session.welcome.schema, 1.0, 10.0, 64), [], 0.0)
    assert Take(1, 5, 3, 0) in said(session)
    session.receive(Passed(1, 1, 0), [], 0.0)
    assert said(session) == [], "another owner may be asked"
    session.want()
    assert said(session) == [Take(1, 5, 3, 1)]


@pytest.mark.parametrize("size", [1, np.int32(7), np.array(3)])
def test_a_size_may_be_an_integer_of_any_kind(size):
    assert headrace.sizing.size_of("batch_size", size, "an int of 1 or more") == int(size)


@pytest.mark.parametrize(
    ("size", "error", "text"),
    [
        (True, TypeError, "batch_size=True is a bool; it is an int of 1 or more"),
        (2.0, TypeError, "batch_size=2.0 is a float"),
        (None, TypeError, "batch_size=None is a NoneType"),
        ([2], TypeError, "batch_size=[2] is a list"),
        (0, ValueError, "batch_size=0 is too small: the least is 1"),
        (-(10**30), ValueError, "is too small"),
    ],
)
def test_an_invalid_size_is_refused(size, error, text):
    with pytest.raises(error, match=re.escape(text)):
        headrace.sizing.size_of("batch_size", size, "an int of 1 or more")
