"""The threads of a link, against a server that is a socket in the test."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from headrace.connection import exchanging
from headrace.connection.connection import Connection, Sleep
from headrace.connection.link import Link
from headrace.connection.session import Member, Session
from headrace.machine.requests import drain
from headrace_proto.clock import AwakeClock, Deadline
from headrace_proto.errors import ConnectionLost, LimitExceeded
from headrace_proto.messages import (
    Drain,
    Ended,
    Hello,
    Pulse,
    Renew,
    Step,
)
from tests.patience import PATIENCE_S, eventually
from tests.shortage import no_descriptors

from .peer import Peer, linked


@pytest.mark.parametrize("free", [0, 4, 12])
def test_a_process_without_descriptors_gets_an_error_that_names_the_limit(free: int, peer: Peer):
    """With 4 of them libzmq would end the process."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (
        no_descriptors(free),
        pytest.raises(LimitExceeded, match=r"needs 16 open files.*RLIMIT_NOFILE.*ulimit -n"),
    ):
        Link(peer.address, Member(), PATIENCE_S)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
    with linked(peer):  # nothing is left of the first
        pass


def heard(link: Link, what: Callable[[Session], object]) -> None:
    """Wait as a trainer's thread does until the session is so."""
    deadline = Deadline(PATIENCE_S)
    while True:
        news = link.wire.news
        if what(link.sessions[0]):
            return
        assert deadline.left_s, "it did not come"
        link.wire.await_news(news, 1.0)


@pytest.fixture
def alone(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """A link that no silence ends, whose lazy thread does nothing any more."""
    with linked(peer, heartbeat_s=1000.0) as link:
        monkeypatch.setattr(link.wire, "_look", lambda: None)
        link.wire.exchange()
        yield link


def test_heartbeats_and_releases_are_sent_while_the_trainer_does_nothing(peer: Peer):
    with linked(peer, heartbeat_s=1.0) as link:
        link.sessions[0].mapped.released.append(11)
        while not isinstance(said := peer.hear(object), Step) or not said.released:
            pass
        assert said.released == (11,)
        for _ in range(2):
            peer.say(Pulse(7, waiting=""))  # a server that is silent for long is greeted anew
            peer.hear(Renew)


def test_one_of_two_waiting_threads_reads_for_both_and_the_other_takes_over(
    alone: Link, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    """1 three wait, 2 one receives the news of two, 3 the third receives its own."""
    first = [threading.Thread(target=heard, args=(alone, lambda s: s.waiting)) for _ in range(2)]
    last = threading.Thread(target=heard, args=(alone, lambda s: s.finished))
    threads, following = [*first, last], list[threading.Thread]()
    wait = alone.wire.changed.wait

    def followed(timeout: float | None = None) -> bool:
        following.append(threading.current_thread())
        return wait(timeout)

    monkeypatch.setattr(alone.wire.changed, "wait", followed)
    for thread in threads:
        thread.start()
    eventually(lambda: len(set(following)) == 2)
    peer.say(Pulse(7, waiting="for two"))
    for thread in first:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    peer.say(Ended(7))
    last.join(PATIENCE_S)
    assert not last.is_alive()
    peer.say(Pulse(7, waiting="for the next"))
    heard(alone, lambda s: s.waiting == "for the next")


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a thread of the test sleeps at the sockets."""
    sleeps, wait = threading.Event(), Sleep.wait

    def noted(sleep: Sleep, at_most_s: float) -> bool:
        if threading.current_thread().name != "headrace":
            sleeps.set()
        return wait(sleep, at_most_s)

    monkeypatch.setattr(Sleep, "wait", noted)
    return sleeps


def test_a_thread_can_send_while_another_sleeps_at_the_sockets(
    alone: Link, peer: Peer, asleep: threading.Event
):
    thread = threading.Thread(target=heard, args=(alone, lambda s: s.finished))
    thread.start()
    assert asleep.wait(PATIENCE_S)
    with alone.wire.changed:
        alone.sessions[0].requests.ask(drain(True))
    alone.wire.exchange()
    assert peer.hear(Drain).cancel and thread.is_alive()
    peer.say(Ended(7))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interruption_of_a_wait_leaves_the_wire_to_others(
    error: type[BaseException], alone: Link, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(Sleep, "wait", interrupted)
    with pytest.raises(error):
        alone.wire.await_news(alone.wire.news, 1.0)
    monkeypatch.undo()
    peer.say(Pulse(7, waiting="still there"))
    heard(alone, lambda s: s.waiting == "still there")
    assert alone.wire.failure is None


def test_an_interruption_amid_a_message_is_a_lost_connection_and_the_wire_is_free(
    alone: Link, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(connection: Connection, *said: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "_send", interrupted)
    with alone.wire.changed:
        alone.sessions[0].requests.ask(drain(False))
    with pytest.raises(KeyboardInterrupt):
        alone.wire.exchange()
    assert isinstance(alone.wire.failure, ConnectionLost)
    assert "interrupted amid a message" in str(alone.wire.failure)
    monkeypatch.undo()
    other = threading.Thread(target=alone.wire.exchange)
    other.start()
    other.join(PATIENCE_S)
    assert not other.is_alive()


def test_the_rest_of_a_message_whose_receipt_was_interrupted_is_not_the_next_message(
    alone: Link, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    """The payload of a batch came by the socket, and its header was lost."""
    receive, parts = zmq.Socket.recv, list[object]()

    def interrupted(socket: zmq.Socket[bytes], *more: Any, **options: Any) -> object:
        parts.append(receive(socket, *more, **options) if len(parts) != 1 else None)
        if len(parts) == 2:
            raise KeyboardInterrupt
        return parts[-1]

    peer.say(Pulse(7, waiting="with payload"), b"\x04\0\0\0", b"more of it")
    monkeypatch.setattr(zmq.Socket, "recv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        heard(alone, lambda s: bool(parts))
    monkeypatch.undo()
    peer.say(Pulse(7, waiting="whole"))
    heard(alone, lambda s: s.waiting == "whole")
    assert alone.wire.failure is None


def test_a_handler_of_a_signal_may_wait_while_its_thread_sleeps(alone: Link, peer: Peer):
    def handled(sleep: Sleep, at_most_s: float) -> bool:
        patch.undo()
        peer.say(Pulse(7, waiting="to a handler"))
        assert not alone.sessions[0].waiting
        heard(alone, lambda s: s.waiting == "to a handler")
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sleep, "wait", handled)
        alone.wire.await_news(alone.wire.news, 1.0)
    peer.say(Pulse(7, waiting="for the next"))
    heard(alone, lambda s: s.waiting == "for the next")


def test_a_resumed_process_reads_from_the_server_before_it_judges_the_silence(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    """1 it is suspended for an hour, 2 it wakes, 3 it sends a heartbeat at once and no Hello."""
    now = [100.0]
    monkeypatch.setattr(exchanging, "AwakeClock", lambda: AwakeClock(1.0, lambda: now[0]))
    with linked(peer, heartbeat_s=2.0) as link:
        link.wire.await_news(link.wire.news, 0.0)
        now[0] += 3600
        link.wire.await_news(link.wire.news, 0.0)
        assert link.sessions[0].connected
        while not isinstance(said := peer.hear(object), Renew):
            assert not isinstance(said, Hello)
        for _ in range(4):
            now[0] += 0.9
            link.wire.await_news(link.wire.news, 0.0)
            assert link.sessions[0].connected
        now[0] += 0.9
        link.wire.await_news(link.wire.news, 0.0)
        assert not link.sessions[0].connected, "silence while it ran counts"
