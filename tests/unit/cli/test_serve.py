"""The signals that ``headrace serve`` counts."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from collections.abc import Iterator

import pytest

from headrace_server.cli.serve import Signals, until_stopped

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_BLOCK, [])  # runs its handler


def started() -> Signals:
    signals = Signals()
    signals.started = True
    return signals


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_during_the_start_gives_it_up_and_later_it_is_the_first(number):
    signals = Signals()
    with pytest.raises(SystemExit):
        send(number)
    signals.started = True
    send(number)
    assert signals.first.is_set() and not signals.second.is_set()
    signals.ignore()
    send(number)


@pytest.mark.parametrize("first", NUMBERS)
def test_the_end_of_a_terminal_is_never_the_second_since_kernel_and_shell_both_send_it(first):
    signals = started()
    send(first)
    send(signal.SIGHUP)
    assert signals.first.is_set() and not signals.second.is_set()


def test_a_server_whose_feed_has_failed_says_how_long_it_stays(monkeypatch, caplog):
    stop = started()
    state = {"draining": False, "wait": lambda _: True, "check": lambda: None}
    server = Namespace(failed_feeds=lambda: {"speech": "why"}, **state)
    monkeypatch.setattr(stop.first, "wait", lambda _: None)
    assert until_stopped(server, stop, Namespace(drain_timeout=0.01, exit_when_done=True)) == 1
    assert "the server ends in 0.01 s (--drain-timeout)" in caplog.text


def test_after_a_drain_by_http_its_end_can_be_seen_before_the_server_ends(monkeypatch):
    stop, done = started(), []
    server = Namespace(draining=True, drain=lambda _: done.append("drained"), failed_feeds=dict)
    monkeypatch.setattr(stop.first, "wait", done.append)
    assert until_stopped(server, stop, Namespace(drain_timeout=0)) == 0
    assert done == ["drained", 2.0]
