"""Requests and waits of a trainer, against a server that is a socket in the test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from headrace.link import Link
from headrace.requests import DrainInput, FlushStates, SetTargetProbs, StatesPart
from headrace.session import Session
from headrace_proto.errors import ConnectionLost, DeadlineExceeded, FeedClosed, UnknownFeed
from headrace_proto.messages import (
    Drain,
    Drained,
    Ended,
    Flush,
    Flushed,
    Hello,
    Pulse,
    Refused,
    Renew,
    Retarget,
    Retargeted,
)

from .peer import Peer


@contextlib.contextmanager
def linked(address: str, timeout_s: float) -> Iterator[Link]:
    link = Link(address, Session("f", b"nonce", prefetch=2), timeout_s)
    try:
        yield link
    finally:
        link.close()


def test_a_refusal_is_raised_as_what_it_says(peer: Peer):
    with linked(peer.address, 5) as link:
        peer.hear(Hello)
        peer.say(Refused("feed", "there is no feed 'f'"))
        with pytest.raises(UnknownFeed, match="no feed 'f'"):
            link.open()


def test_nobody_there_is_told_when_the_timeout_is_over():
    with linked("tcp://127.0.0.1:9", 0.3) as link:
        with pytest.raises(ConnectionLost, match=r"no server answered .* timeout=0.3 s"):
            link.open()


def test_a_server_that_is_not_ready_says_what_it_waits_for(peer: Peer):
    with linked(peer.address, 0.5) as link:
        peer.hear(Hello)
        peer.say(Pulse(0, "the workers are opening the feed's source"))
        with pytest.raises(DeadlineExceeded, match="workers are opening"):
            link.open()


def test_a_wait_for_a_batch_ends_with_the_servers_own_words(peer: Peer):
    with linked(peer.address, 0.6) as link:
        peer.welcome()
        link.open()
        failures: list[BaseException] = []

        def take() -> None:
            try:
                link.take()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        while thread.is_alive():
            with contextlib.suppress(AssertionError):
                peer.hear(Renew, 0.1)
                peer.say(Pulse(7, "batch 3 of partition 0 is being made"))
        thread.join()
    assert isinstance(failures[0], DeadlineExceeded)
    assert "batch 3 of partition 0 is being made" in str(failures[0])


def test_a_server_that_falls_silent_is_lost(peer: Peer):
    with linked(peer.address, 1.0) as link:
        peer.welcome()
        link.open()
        with pytest.raises(ConnectionLost, match="nothing was heard of it"):
            link.take()


def test_the_end_and_a_failure_reach_who_waits(peer: Peer):
    with linked(peer.address, 5) as link:
        peer.welcome()
        link.open()
        peer.say(Ended(7))
        assert link.take() is None
    with linked(peer.address, 5) as link:
        peer.welcome()
        link.open()
        peer.say(Ended(7, "lost", "the server was stopped"))
        with pytest.raises(ConnectionLost, match="was stopped"):
            link.take()


def test_closing_ends_the_wait_of_another_thread(peer: Peer):
    link = Link(peer.address, Session("f", b"nonce", prefetch=2), 30)
    peer.welcome()
    link.open()
    failures: list[BaseException] = []

    def take() -> None:
        try:
            link.take()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    link.close()
    thread.join(5)
    assert not thread.is_alive() and isinstance(failures[0], FeedClosed)


def test_who_asks_gets_the_answer_to_the_own_request(peer: Peer):
    with linked(peer.address, 5) as link:
        peer.welcome()
        link.open()
        answers: list[Retargeted] = []
        asking = SetTargetProbs((0.25, 0.75))
        thread = threading.Thread(target=lambda: answers.append(link.ask(asking)))
        thread.start()
        asked = peer.hear(Retarget)
        assert asked.probs == (0.25, 0.75)
        peer.say(Retargeted(7, asked.request + 1, [[0, 1]]))  # nobody's
        peer.say(Retargeted(7, asked.request, [[0, 5]]))
        thread.join(5)
        assert answers == [Retargeted(7, asked.request, [[0, 5]])]


def test_a_deadline_names_the_request_that_was_not_answered(peer: Peer):
    with linked(peer.address, 5) as link:
        peer.welcome()
        link.open()
        with pytest.raises(DeadlineExceeded, match="for the answer to flush_states of feed 'f'"):
            link.ask(FlushStates(1, []), at_most_s=0.1)


def test_a_deadline_names_the_limit_when_a_trainer_holds_all_that_it_may(peer: Peer):
    with linked(peer.address, 5) as link:
        peer.welcome()
        link.open()
        for held, told in ((63, "holds 63 batches$"), (64, "as many as .* max_credits=64 allows")):
            link.session._held = set(range(held))
            with pytest.raises(DeadlineExceeded, match=told):
                link._wait(lambda session: None, 0.1, "a batch")


@pytest.mark.parametrize("answer", [Drained(7), Ended(7)])
def test_a_drain_is_answered_by_the_server_or_by_the_end(peer: Peer, answer: Drained | Ended):
    with linked(peer.address, 5) as link:
        peer.welcome()
        link.open()
        answers: list[Drained] = []
        thread = threading.Thread(target=lambda: answers.append(link.ask(DrainInput(True))))
        thread.start()
        assert peer.hear(Drain).cancel
        peer.say(answer)
        thread.join(5)
        assert answers == [Drained(7)]


def test_a_commit_that_was_refused_is_told_to_who_waits_unless_it_hands_over_states(peer: Peer):
    with linked(peer.address, 5) as link:
        peer.welcome()
        link.open()
        link.session.refused.append(UnknownFeed("of a commit"))
        answers: list[Flushed] = []
        flush = FlushStates(1, [StatesPart((0,), [], b"states")])
        thread = threading.Thread(target=lambda: answers.append(link.ask(flush)))
        thread.start()
        peer.say(Flushed(7, peer.hear(Flush).request))
        thread.join(5)
        assert answers and len(link.session.refused) == 1
        with pytest.raises(UnknownFeed, match="of a commit"):
            link.ask(DrainInput(False))
