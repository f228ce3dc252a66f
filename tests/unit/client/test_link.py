"""Requests and waits of a trainer, against a server that is a socket in the test."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import zmq

import headrace
from headrace.connection import exchanging
from headrace.connection.exchanging import Wire
from headrace.connection.link import Link, opened
from headrace.connection.places import Server
from headrace.connection.session import NEWCOMER, Member, Session
from headrace.machine.requests import flush_states
from headrace_proto.clock import AwakeClock
from headrace_proto.errors import ConnectionLost, DeadlineExceeded
from headrace_proto.messages import (
    Ended,
    Give,
    Hello,
    Pulse,
    Refused,
    Step,
)
from tests.patience import PATIENCE_S
from tests.waiting import waits_end_after

from .peer import Peer, linked, welcome_to


def test_a_trainer_joins_again_where_the_feed_is_taken_back_meanwhile(peer: Peer):
    link = Link(peer.address, Member(hello=replace(NEWCOMER, resume="S", restart=True)), PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(opened, link)
        first = peer.hear(Hello)
        peer.say(Refused("rewound", "the feed was taken back"))
        while (hello := peer.hear(Hello)).nonce == first.nonce:
            pass
        peer.say(welcome_to(hello))
        joining.result().close()
    assert (hello.resume, hello.restart) == ("S", True)


def test_a_trainer_that_leaves_while_it_looks_for_a_server_has_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """ZeroMQ's context ends before the socket is made at which it would ask."""
    link = Link("tcp://127.0.0.1:1", Member(), PATIENCE_S)
    server = Server("tcp://127.0.0.1:1")

    def leaves(*_: object) -> None:
        link.close()
        link.wire._thread.join()
        link.wire.context.socket(zmq.DEALER)

    monkeypatch.setattr("headrace.connection.finding.Lookup", leaves)
    monkeypatch.setattr(link._finding, "_away_servers", lambda: [server])
    link._finding._search()
    assert link.wire.failure is None and not caplog.records


def heard(link: Link, what: Callable[[Session], object]) -> None:
    """Wait until the session has received ``what``."""
    link.waits.wait(lambda: what(link.session), PATIENCE_S, "what the test says")


def test_the_error_of_a_server_that_is_not_ready_names_what_it_waits_for(peer: Peer):
    with contextlib.closing(Link(peer.address, Member(), 0.3)) as link:
        peer.owners = 0
        peer.hear(Hello)
        peer.say(Pulse(0, waiting="the workers are opening the feed's source"))
        heard(link, lambda session: session.server.waiting)
        with pytest.raises(DeadlineExceeded, match="workers are opening"):
            link.open()


class Taking:
    """A thread that waits for a batch from its creation on, and its outcome."""

    def __init__(self, link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
        self._link = link
        self.came: list[object] = []
        self.thread = threading.Thread(target=self._take)
        waits, await_news = threading.Event(), Wire.await_news

        def awaited(wire: Wire, news: int, at_most_s: float, *now: float) -> float:
            if threading.current_thread() is self.thread:
                waits.set()
            return await_news(wire, news, at_most_s, *now)

        monkeypatch.setattr(Wire, "await_news", awaited)
        self.thread.start()
        assert waits.wait(PATIENCE_S)

    def _take(self) -> None:
        try:
            self.came.append(self._link.take())
        except BaseException as error:
            self.came.append(error)

    def end(self) -> object:
        self.thread.join(PATIENCE_S)
        return self.came[0]


def test_a_server_that_is_away_for_minutes_is_waited_for(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    """1 the server is silent for more than 5 minutes, 2 it is greeted again, 3 it answers."""
    monkeypatch.setattr(
        exchanging, "AwakeClock", lambda: AwakeClock(1e6, lambda: 1e3 * time.monotonic())
    )
    with linked(peer, 1e5, heartbeat_s=50.0) as link:
        taking = Taking(link, monkeypatch)
        while link.session.silence(link.clock()) < 300 and taking.thread.is_alive():
            peer.hear(Hello)
        assert taking.thread.is_alive()
        peer.say(welcome_to(peer.greeted, 8, heartbeat_s=50.0))
        peer.end(8)
        assert taking.end() is None


def test_a_timeout_counts_only_time_in_which_this_process_ran(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    """1 it sleeps three times for an hour, 2 its timeout of 5 s is not over, 3 then it is."""
    machine, looks = [100.0], [0]

    def now() -> float:
        looks[0] += 1
        return machine[0]

    def seen() -> None:
        last = looks[0]
        while looks[0] < last + 4 and taking.thread.is_alive():
            time.sleep(0.001)

    monkeypatch.setattr(exchanging, "AwakeClock", lambda: AwakeClock(1.0, now))
    with linked(peer, 5.0, heartbeat_s=1.0) as link:
        taking = Taking(link, monkeypatch)
        for _ in range(3):
            machine[0] += 3600
            seen()
        assert taking.thread.is_alive()
        for _ in range(3):
            machine[0] += 0.9
            seen()
        error = taking.end()
    assert isinstance(error, ConnectionLost)
    told = r"heard of it for 6 s, .* timeout=5 s \(this process did not run for 10797 s more\)"
    assert re.search(told, str(error)), error


def test_a_process_that_resumes_after_its_deadline_reads_before_it_gives_up(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, sockets: list[zmq.Socket[bytes]]
):
    """1 a wait of 0.8 s is suspended, 2 the answer comes, 3 it wakes beyond the deadline."""
    machine = [100.0]
    monkeypatch.setattr(exchanging, "AwakeClock", lambda: AwakeClock(1.0, lambda: machine[0]))
    with linked(peer, 0.8) as link:
        await_news, woken = Wire.await_news, []

        def suspended(wire: Wire, news: int, at_most_s: float, *now: float) -> float:
            if threading.current_thread() is trainer and not woken:
                woken.append(True)
                link.wire.exchange()  # the request for a batch goes out
                with link.lock:
                    machine[0] += 3600
                    peer.end()
                    assert sockets[-1].poll(1000 * int(PATIENCE_S))
            return await_news(wire, news, at_most_s, *now)

        trainer = threading.current_thread()
        monkeypatch.setattr(Wire, "await_news", suspended)
        assert link.take() is None
        assert woken


def stop(peer: Peer) -> None:
    peer.say(Ended(7, "lost", "the server was stopped", returns=True))


def test_the_error_of_the_deadline_says_that_the_server_stopped_and_announced_its_return(
    peer: Peer,
):
    with linked(peer, PATIENCE_S) as link:
        stop(peer)
        heard(link, lambda session: session.stopped)
        announced = pytest.raises(ConnectionLost, match="was stopped and announced its return")
        with waits_end_after(0.3), announced as error:
            link.take()
        assert "for a batch" in str(error.value) and "commits" not in str(error.value)


def test_close_waits_for_less_time_and_counts_unanswered_commits(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.connection.waiting._LEAVE_S", 0.3)
    with linked(peer, 600, 1) as link:
        link.settle()  # owes nothing: it does not wait
        peer.give(5)
        while link.take() is None:
            pass
        link.commit(5)
        stop(peer)
        link.waits.left = True
        with pytest.raises(ConnectionLost, match="1 commits of this trainer have no answer"):
            link.settle()


def test_a_deadline_names_the_request_that_was_not_answered(peer: Peer):
    with linked(peer, PATIENCE_S) as link:
        with pytest.raises(DeadlineExceeded, match="for the answer to flush_states of feed 'f'"):
            link.ask(flush_states(1, []), at_most_s=0.1)


@pytest.mark.parametrize(
    "answer", [Give(7, (), (), (11,)), Give(7, (), (), (), [[11, "state", ""]])]
)
def test_a_rank_that_goes_on_after_a_refused_commit_gets_an_error_that_ends_it(
    peer: Peer, answer: Give
):
    """It may have batches ahead: these are of rounds that the others do not have."""

    def train() -> None:
        options: dict[str, Any] = {"rank": 0, "world_size": 1, "run": 1, "commit": "explicit"}
        with headrace.connect(peer.address, timeout=PATIENCE_S, prefetch=3, **options) as feed:
            batch = next(feed)
            with pytest.raises((headrace.StaleLease, headrace.StateError)):
                batch.commit()
            for _ in range(2):
                with pytest.raises(headrace.FeedRewound, match="start them again together from"):
                    next(feed)

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train)
        peer.welcome()
        for token in (11, 12, 13):
            peer.give(token, token)
        while not peer.hear(Step).commits:
            pass
        peer.say(answer)
        training.result()


def test_a_commit_of_a_batch_that_went_elsewhere_raises_there_and_once(peer: Peer):
    def train() -> None:
        with headrace.connect(peer.address, timeout=PATIENCE_S, commit="explicit") as feed:
            first, second = next(feed), next(feed)
            with pytest.raises(headrace.StaleLease):
                first.commit()
            first.commit()
            feed.commit([first, second])

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train)
        peer.welcome()
        for token in (11, 12):
            peer.give(token, token)
        for answer in (Give(7, (), (), (11,)), Give(7, (), (12,))):
            while not peer.hear(Step).commits:
                pass
            peer.say(answer)
        training.result()
