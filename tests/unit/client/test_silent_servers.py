"""A server that falls silent is greeted again, and the log has a line when it stays away."""

from __future__ import annotations

from headrace.connection.exchanging import lose_silent
from headrace.connection.places import Server
from headrace.connection.session import Member, Session
from headrace.machine.trainer import Trainer
from headrace_proto.messages import ServedShare

from .peer import welcome_to


def session(address: str = "tcp://a:1", owner: int = 0) -> Session:
    member = Member()
    member.trainer = Trainer(2, [0, 1], 2)
    server = Server(address)
    server.take(ServedShare("f", 0, 1, 2, "s", {}, ("tcp://a:2", "tcp://a:3")))
    one = Session(member, server, owner, owners=2, number=owner)
    come(one, 0.0)
    return one


def come(one: Session, now: float) -> None:
    """Let the server welcome a session."""
    one.hurry()
    ((hello, _),) = one.outgoing(now)
    one.receive(welcome_to(hello, heartbeat_s=1.0, owners=2, partitions=2), [], now)
    assert one.connected and one.heard_at == now


def test_a_silent_server_is_greeted_again_and_named_once_when_it_stays_away(caplog):
    """1 two owners fall silent, 2 they stay away, 3 one is back, 4 so is the other."""
    away, both = set[str](), [session(), session(owner=1)]
    away = lose_silent(both, away, 2.0)
    assert both[0].connected
    away = lose_silent(both, away, 3.0)
    assert not both[0].connected and not both[1].connected and not caplog.messages
    for now in (9.0, 11.0, 100.0):
        away = lose_silent(both, away, now)
    gone = "nothing was heard of the server at tcp://a:1 for 11 s: trying again"
    assert caplog.messages == [gone]
    come(both[1], 101.0)
    away = lose_silent(both, away, 101.0)
    assert caplog.messages == [gone]
    come(both[0], 102.0)
    away = lose_silent(both, away, 102.0)
    away = lose_silent(both, away, 103.0)
    assert caplog.messages == [gone, "the server at tcp://a:1 is back"]


def test_an_owner_that_is_no_more_hides_no_later_silence(caplog):
    """1 two owners fall silent, 2 the server is back with one, 3 which falls silent again."""
    away, both = set[str](), [session(), session(owner=1)]
    away = lose_silent(both, away, 11.0)
    come(both[0], 12.0)
    away = lose_silent(both[:1], away, 12.0)
    away = lose_silent(both[:1], away, 30.0)
    assert len([text for text in caplog.messages if "trying again" in text]) == 2
