"""Ctrl-C takes effect after a step that must not be left half-made."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace_proto.interrupts import interrupts_held, start


@pytest.fixture(autouse=True)
def python_handles_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_a_handler_of_the_program_that_raises_waits_for_the_end_of_the_block_too():
    def give_up(number: int, frame: Any) -> None:
        raise SystemExit(number)

    def interrupted(number: int) -> None:
        with interrupts_held():
            signal.raise_signal(number)
            done.append("the rest of the block")

    for number in (signal.SIGTERM, signal.SIGHUP):
        done, before = list[str](), signal.signal(number, give_up)
        try:
            with pytest.raises(SystemExit) as caught:
                interrupted(number)
            assert done and caught.value.code == number
            assert signal.getsignal(number) is give_up
        finally:
            signal.signal(number, before)


def test_the_block_ends_before_ctrl_c_takes_effect():
    done = []

    def interrupted() -> None:
        with interrupts_held():
            ctrl_c()
            done.append("the rest of the block")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done


def test_a_second_ctrl_c_takes_effect_at_once():
    done = []

    def interrupted() -> None:
        with interrupts_held():
            ctrl_c()
            done.append("first")
            ctrl_c()
            done.append("second")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == ["first"]


@pytest.mark.parametrize("ignored", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_program_that_leaves_ctrl_c_to_the_system_keeps_that(ignored):
    signal.signal(signal.SIGINT, ignored)
    with interrupts_held():
        assert signal.getsignal(signal.SIGINT) is ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Ended(threading.Thread):
    """A thread that runs until it is closed, and is interrupted while it starts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ending = threading.Event()

    def run(self) -> None:
        self.ending.wait()

    def start(self) -> None:
        super().start()
        ctrl_c()

    def close(self) -> None:
        self.ending.set()
        self.join()


def test_a_thread_that_was_interrupted_at_its_start_is_closed():
    thread = Ended()
    with pytest.raises(KeyboardInterrupt):
        start(thread, thread.close)
    assert not thread.is_alive()
