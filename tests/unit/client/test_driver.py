"""The socket and who uses it, against a server that is a socket in the test."""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Callable, Iterator

import pytest

from headrace import driver as module
from headrace.driver import Driver
from headrace.requests import DrainInput
from headrace.session import Session
from headrace_proto.clock import AwakeClock
from headrace_proto.errors import ConnectionLost, LimitExceeded, ProtocolError
from headrace_proto.messages import Bye, Drain, Ended, Hello, Pulse, Renew, Welcome
from tests.patience import PATIENCE_S
from tests.shortage import no_descriptors

from .peer import Peer


@contextlib.contextmanager
def driven(address: str) -> Iterator[Driver]:
    driver = Driver(address, Session("f", b"nonce", prefetch=2))
    try:
        yield driver
    finally:
        driver.close()


@pytest.mark.parametrize("free", [0, 4, 12])
def test_a_process_without_descriptors_gets_an_error_that_names_the_limit(free: int, peer: Peer):
    """With 4 of them libzmq would end the process."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (
        no_descriptors(free),
        pytest.raises(LimitExceeded, match=r"needs 16 open files.*RLIMIT_NOFILE.*ulimit -n"),
    ):
        Driver(peer.address, Session("f", b"nonce", prefetch=2))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
    with driven(peer.address) as driver:  # nothing is left of the first
        peer.welcome()
        until(driver, lambda s: s.welcome)


def until(driver: Driver, what: Callable[[Session], object]) -> None:
    """Wait, without the socket, until the session is so."""
    with driver.changed:
        for _ in range(100):
            if what(driver.session):
                return
            driver.wait_for_news(0.1)
    raise AssertionError("it did not come")


def take_over(driver: Driver) -> None:
    with driver.changed:
        while not driver.take_over():
            driver.wait_for_news(0.01)


def test_it_greets_opens_and_says_goodbye(peer: Peer):
    with driven(peer.address) as driver:
        peer.welcome()
        until(driver, lambda s: s.welcome)
        assert driver.session.welcome.session == 7
    assert peer.hear(Bye) == Bye(7)


def test_a_peer_that_speaks_nonsense_is_a_protocol_error(peer: Peer):
    with driven(peer.address) as driver:
        peer.hear(Hello)
        peer.say_raw(b"\xff\xff")
        until(driver, lambda s: s.failure)
        assert isinstance(driver.session.failure, ProtocolError)
        assert f"the peer at {peer.address} sent nonsense" in str(driver.session.failure)


def test_an_address_that_the_socket_refuses_is_the_sessions_failure():
    with driven("tcp://") as driver:
        until(driver, lambda s: s.failure)
        assert "address='tcp://'" in str(driver.session.failure)
        with driver.changed:
            assert not driver.take_over()


def test_its_own_thread_says_what_it_is_woken_for_and_keeps_heartbeats(peer: Peer):
    with driven(peer.address) as driver:
        peer.welcome()
        until(driver, lambda s: s.welcome)
        with driver.changed:
            driver.session.requests.ask(DrainInput(False))
        driver.wake()
        driver.wake()
        assert peer.hear(Drain) == Drain(7)
        peer.hear(Renew)
        peer.hear(Renew)


def test_a_thread_that_took_over_hears_and_says_by_itself_until_it_hands_back(peer: Peer):
    with driven(peer.address) as driver:
        peer.welcome()
        until(driver, lambda s: s.welcome)
        take_over(driver)
        try:
            peer.say(Pulse(7, "to who has the socket"))
            while not driver.session.waiting:
                driver.turn(1.0)
            heard = driver.session.heard_at
            peer.say(Pulse(7, "to nobody yet"))
            with driver.changed:
                assert not driver._io.acquire(blocking=False)
            assert driver.session.heard_at == heard
        finally:
            driver.hand_back()
        until(driver, lambda s: s.waiting == "to nobody yet")  # by its own thread


def test_one_thread_at_a_time_has_the_socket_and_the_others_are_told(peer: Peer):
    """1 one thread has it, 2 another does not get it and waits, 3 the first hears the end."""
    with driven(peer.address) as driver:
        peer.welcome()
        until(driver, lambda s: s.welcome)
        take_over(driver)
        got: list[bool] = []
        waits = threading.Event()

        def other() -> None:
            with driver.changed:
                got.append(driver.take_over())
                waits.set()
            until(driver, lambda s: s.finished)

        thread = threading.Thread(target=other)
        thread.start()
        try:
            assert waits.wait(PATIENCE_S) and got == [False]
            peer.say(Ended(7))
            while not driver.session.finished:
                driver.turn(1.0)
        finally:
            driver.hand_back()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_thread_does_not_wait_for_a_socket_that_another_trainers_thread_uses(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    """TensorFlow's thread waits for a batch; the training thread waits for its commit's answer."""
    monkeypatch.setattr("headrace.driver._TAKE_OVER_S", 60)
    with driven(peer.address) as driver:
        peer.welcome()
        until(driver, lambda s: s.welcome)
        take_over(driver)
        got: list[bool] = []

        def other() -> None:
            with driver.changed:
                got.append(driver.take_over())

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(PATIENCE_S)
        assert got == [False]
        driver.hand_back()
        thread.join()
        take_over(driver)
        driver.hand_back()


def test_what_is_said_now_is_said_by_this_thread_or_by_the_one_that_has_the_socket(peer: Peer):
    with driven(peer.address) as driver:
        peer.welcome()
        until(driver, lambda s: s.welcome)
        for _ in range(20):
            with driver.changed:
                driver.session.requests.ask(DrainInput(True))
            driver.say_now()
            assert peer.hear(Drain).cancel


def test_what_is_said_soon_is_said_after_a_moment_and_at_once_where_the_socket_rests(peer: Peer):
    with driven(peer.address) as driver:
        peer.welcome()
        until(driver, lambda s: s.welcome)
        for rests in (True, False):
            if rests:
                driver._driven_at -= 10
            else:
                take_over(driver)
                driver.hand_back()
            with driver.changed:
                driver.session.requests.ask(DrainInput(rests))
            driver.say_soon(False)
            assert peer.hear(Drain).cancel is rests


def test_an_interruption_amid_a_message_is_a_lost_connection_and_the_socket_is_free(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    with driven(peer.address) as driver:
        peer.welcome()
        until(driver, lambda s: s.welcome)

        def interrupted(*message: object) -> None:
            raise KeyboardInterrupt

        take_over(driver)
        monkeypatch.setattr(driver, "_send", interrupted)
        with driver.changed:
            driver.session.requests.ask(DrainInput(False))
        with pytest.raises(KeyboardInterrupt):
            driver.hand_back()
        assert isinstance(driver.session.failure, ConnectionLost)
        assert "interrupted amid a message" in str(driver.session.failure)
        monkeypatch.undo()
        take_over(driver)
        driver.hand_back()


def test_a_process_that_was_suspended_hears_the_server_before_it_judges_its_silence(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    """1 it is suspended for an hour, 2 it wakes, 3 a heartbeat is said at once and no Hello."""
    now = [100.0]
    monkeypatch.setattr(module, "AwakeClock", lambda: AwakeClock(1.0, lambda: now[0]))
    with driven(peer.address) as driver:
        peer.hear(Hello)
        peer.say(Welcome(1, "t", 7, "f", [], 2.0, 30.0, 64))
        until(driver, lambda s: s.welcome)
        take_over(driver)
        try:
            driver.turn(0.0)
            now[0] += 3600
            driver.turn(0.0)
            assert driver.session.connected
            while not isinstance(said := peer.hear(object), Renew):
                assert not isinstance(said, Hello)
            for _ in range(4):
                now[0] += 0.9
                driver.turn(0.0)
                assert driver.session.connected
            now[0] += 0.9
            driver.turn(0.0)
            assert not driver.session.connected, "silence while it ran counts"
        finally:
            driver.hand_back()


def test_what_came_while_a_process_was_suspended_is_heard_before_its_silence_is_judged(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    now = [100.0]
    monkeypatch.setattr(module, "AwakeClock", lambda: AwakeClock(1.0, lambda: now[0]))
    with driven(peer.address) as driver:
        peer.welcome()  # by its heartbeat of 0.2 s half a second is silence
        until(driver, lambda s: s.welcome)
        take_over(driver)
        try:
            peer.say(Pulse(7, "while it slept"))
            lane = driver._lane
            assert lane is not None and lane.socket.poll(1000 * int(PATIENCE_S))
            now[0] += 3600
            driver.turn(1.0)
            assert driver.session.waiting == "while it slept" and driver.session.connected
        finally:
            driver.hand_back()


def test_memory_that_can_not_be_seen_from_here_is_none(peer: Peer):
    with driven(peer.address) as driver:
        peer.hear(Hello)
        peer.say(Welcome(1, "t", 7, "f", [], 0.2, 30.0, 64, "/nowhere", "/nowhere/trainer-7"))
        until(driver, lambda s: s.welcome)
        assert driver.session.memory is None


def test_a_driver_that_was_closed_has_no_socket_to_take_and_may_be_closed_again(peer: Peer):
    with driven(peer.address) as driver:
        peer.welcome()
        until(driver, lambda s: s.welcome)
        driver.close()
        assert driver.closing and not driver._thread.is_alive()
        with driver.changed:
            assert not driver.take_over()
        driver.wake()
        driver.say_now()
        driver.close()


def test_a_thread_that_gets_the_socket_when_it_is_gone_lets_go_again(peer: Peer):
    """1 the socket is there and in use, 2 a thread wants it, 3 it is closed before that gets it."""
    with driven(peer.address) as driver:
        peer.welcome()
        until(driver, lambda s: s.welcome)
        lane = driver._lane
        driver.close()
        driver._lane = lane
        got: list[bool] = []

        def other() -> None:
            with driver.changed:
                got.append(driver.take_over())

        with driver._io:
            thread = threading.Thread(target=other)
            thread.start()
            while not driver._io_wanted and thread.is_alive():
                thread.join(0.001)
            driver._lane = None
        thread.join(PATIENCE_S)
        assert got == [False] and not driver._io.locked()


def test_an_attempt_to_connect_that_nobody_answers_ends_long_before_the_kernel_ends_it(peer: Peer):
    with driven(peer.address) as driver:
        peer.welcome()
        until(driver, lambda s: s.welcome)
        assert driver._lane is not None
        assert 0 < driver._lane.socket.connect_timeout <= 10_000
