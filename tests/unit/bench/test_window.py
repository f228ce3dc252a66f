"""The times of a window: from batch to batch, or by the contestant's own report."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest

from tests.bench import window
from tests.bench.steps import ENDED


class Clock:
    """Goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "perf_counter", Clock())


def test_a_batch_takes_the_time_since_the_one_before():
    times = array("d")
    assert not window.run(iter([1, 1, ENDED]), 100.0, times)
    assert times.tolist() == [1.0, 1.0]


def test_a_time_that_the_contestant_took_itself_stands_for_it():
    times = array("d")
    assert not window.run(iter([0.25, 1, 0.125, ENDED]), 100.0, times)
    assert times.tolist() == [0.25, 1.0, 0.125]


def test_batches_are_counted_by_the_trainer_that_took_them():
    times, taken = array("d"), Counter()
    assert not window.run(iter([1, 2, 2, 1, 2, ENDED]), 100.0, times, taken)
    assert taken == {1: 2, 2: 3}


def test_a_window_ends_when_its_time_is_over_and_the_rest_is_left():
    steps = iter([1, 1, 1, 1, 1])
    assert window.run(steps, 3.0)
    assert len(list(steps)) == 3


def test_a_contestant_that_stops_without_a_word_is_an_error():
    with pytest.raises(RuntimeError, match="without a word"):
        window.run(iter([1]), 100.0)
