"""All sessions of a trainer greet as one trainer, each its own owner and server."""

from __future__ import annotations

from headrace.session import Session
from headrace_proto.messages import Hello, Pulse, Refused, ServedShare, Welcome

_SERVED = ServedShare("f", 1, 2, 4, "server", 3, {})
_SHARED = ("feed", "nonce", "rank", "world_size", "process", "resume", "host")


def session() -> Session:
    made = Session("f", b"nonce", 2, 0, 3, b"process", "S", "host", explicit=True, restart=True)
    made.address, made.owner = "tcp://a:1", 0
    return made


def said(of: Session, now: float = 0.0) -> list[Hello]:
    return of.outgoing(now)


def test_a_session_with_another_server_requests_its_share_until_it_is_answered():
    first = session()
    other = first.elsewhere("tcp://b:1")
    (hello,), (asks,) = said(first), said(other)
    assert (hello.share, hello.shares, hello.restart) == (0, 1, True)
    assert (asks.share, asks.shares, asks.restart, asks.owner) == (0, 0, True, 0)
    assert all(getattr(hello, name) == getattr(asks, name) for name in _SHARED)
    assert other.address == "tcp://b:1" and other.explicit
    assert other.refused is first.refused and other.meter is first.meter
    other.receive(_SERVED, [], 0.0)
    assert other.served == _SERVED
    assert said(other, 5.0) == [] and other.due_in(5.0) > 0


def test_it_then_greets_the_server_as_the_one_with_that_share():
    other = session().elsewhere("tcp://b:1")
    said(other)
    other.receive(_SERVED, [], 0.0)
    other.take_for(1, 2)
    (hello,) = said(other)
    assert (hello.share, hello.shares) == (1, 2)
    other.receive(Welcome(1, "t", 7, "f", [], 1.0, 30.0, 64, owners=2, partitions=9), [], 0.0)
    assert other.connected
    beside = other.beside(1)
    assert (beside.share, beside.shares, beside.address, beside.owner) == (1, 2, "tcp://b:1", 1)
    beside.receive(other.welcome, [], 0.0)
    assert list(beside.partitions) == [3, 7]


def test_a_server_that_has_another_share_by_now_is_greeted_on_and_named():
    other = session().elsewhere("tcp://b:1")
    other.take_for(0, 2)
    said(other)
    other.receive(_SERVED, [], 0.0)
    assert other.waiting == "this is share 1/2 of feed 'f'"
    assert said(other, 2.0)[0].shares == 2


def test_other_answers_are_what_they_were():
    first = session()
    first.receive(Pulse(0, "opening"), [], 0.0)
    assert first.waiting == "opening"
    first.receive(Refused("feed", "there is none"), [], 0.0)
    assert first.failure is not None
