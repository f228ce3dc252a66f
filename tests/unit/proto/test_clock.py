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


def test_a_clock_that_is_looked_at_often_is_that_of_the_machine(source: Source):
    clock = AwakeClock(1.0, source)
    for source.now in (100.0, 100.5, 101.5, 102.5):
        assert clock() == source.now
    assert clock.slept_s == 0


def test_a_gap_between_two_looks_counts_for_its_bound_and_no_more(source: Source):
    clock = AwakeClock(1.0, source)
    source.now = 140.0
    assert clock() == 101.0 and clock.slept_s == 39.0
    source.now = 140.5
    assert clock() == 101.5
    source.now = 200.5
    assert clock() == 102.5 and clock.slept_s == 98.0


def test_a_clock_that_is_always_looked_at_too_seldom_goes_on_all_the_same(source: Source):
    clock = AwakeClock(1.0, source)
    seen = []
    for _ in range(5):
        source.now += 3.0
        seen.append(clock())
    assert seen == [101.0, 102.0, 103.0, 104.0, 105.0]


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


def test_a_deadline_is_as_far_away_after_a_suspension_as_before(source: Source):
    deadline = Deadline(10.0, source=source)
    source.now += 0.5
    assert deadline.left_s == 9.5
    source.now += 3600
    assert deadline.left_s == 8.5
    for _ in range(20):
        source.now += 0.5
    assert 0 < deadline.left_s <= 8.5  # one look: one gap


def test_a_wait_goes_in_steps_and_looks_once_more_at_its_end(source: Source):
    steps = []

    def step(seconds: float) -> bool:
        steps.append(seconds)
        source.now += seconds
        return False

    assert not Deadline(1.25, source=source).wait(step)
    assert steps == [0.5, 0.5, 0.25, 0.0]


def test_a_wait_that_was_suspended_beyond_its_end_still_gets_the_answer(source: Source):
    """1. A wait of 0.8 s; 2. the process sleeps amid the first step; 3. the answer is there."""
    answers = iter([None, "the answer"])

    def step(seconds: float) -> str | None:
        source.now += 3600
        return next(answers)

    assert Deadline(0.8, source=source).wait(step) == "the answer"


def test_a_wait_returns_what_its_step_came_to(source: Source):
    assert Deadline(5.0, source=source).wait(lambda seconds: 7) == 7
    assert Deadline(0.0, source=source).wait(lambda seconds: seconds) == 0.0


def test_a_deadline_counts_at_most_its_gap_between_two_looks(source: Source):
    deadline = Deadline(60.0, gap_s=15.0, source=source)
    source.now += 10
    assert deadline.left_s == 50
    source.now += 3600
    assert deadline.left_s == 35


def test_a_thread_is_waited_for_until_it_ends_or_the_deadline_comes():
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    assert not Deadline(0.01).join(thread)
    go.set()
    assert Deadline(20).join(thread)
