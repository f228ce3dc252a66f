"""A clock that counts only time in which the process looked, and deadlines measured by it."""

from __future__ import annotations

import threading
import time

import pytest

from headrace_proto.clock import AwakeClock, Deadline


class Source:
    """A monotonic clock in the hands of a test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def source() -> Source:
    return Source()


def test_a_gap_between_two_looks_counts_for_its_bound_and_no_more(source):
    clock = AwakeClock(1.0, source)
    source.now = 140.0
    assert clock() == 101.0 and clock.slept_s == 39.0
    source.now = 140.5
    assert clock() == 101.5
    source.now = 200.5
    assert clock() == 102.5 and clock.slept_s == 98.0


def test_looks_of_many_threads_count_a_gap_once():
    """1. Each thread reads the time; 2. the process sleeps; 3. all of them look at once."""
    jump = threading.Event()
    clock = AwakeClock(0.5, lambda: time.monotonic() + (1000.0 if jump.is_set() else 0.0))
    begun = clock()
    stop = threading.Event()
    fell = []

    def look() -> None:
        last = clock()
        while not stop.is_set():
            now = clock()
            if now < last:
                fell.append((last, now))
            last = now

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    jump.set()
    while clock.slept_s == 0:
        pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not fell
    assert clock.slept_s <= 1000.0 and clock() - begun < 500


def test_a_wait_goes_in_steps_and_looks_once_more_at_its_end(source):
    steps = []

    def step(seconds: float) -> bool:
        steps.append(seconds)
        source.now += seconds
        return False

    assert not Deadline(1.25, source=source).wait(step)
    assert steps == [0.5, 0.5, 0.25, 0.0]


def test_a_wait_that_was_suspended_beyond_its_end_still_gets_the_answer(source):
    """1. A wait of 0.8 s; 2. the process sleeps amid the first step; 3. the answer is there."""
    answers = iter([None, "the answer"])

    def step(seconds: float) -> str | None:
        source.now += 3600
        return next(answers)

    assert Deadline(0.8, source=source).wait(step) == "the answer"
