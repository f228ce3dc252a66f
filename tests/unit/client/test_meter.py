"""The meter measures the part of its time that a trainer waited, including running spans."""

from __future__ import annotations

import pytest

from headrace.meter import Meter


@pytest.fixture
def meter() -> Meter:
    return Meter()


def test_nothing_counts_before_the_first_batch_is_asked_for(meter: Meter):
    assert meter.totals(1000.0) == (0.0, 0.0)


def test_from_asking_to_getting_it_is_blocked_and_then_busy_until_it_asks_again(meter: Meter):
    meter.asks(10.0)
    meter.gets(13.0)
    meter.asks(20.0)
    meter.gets(20.5)
    assert meter.totals(20.5) == (3.5, 7.0)


def test_a_span_that_is_running_counts_up_to_now_and_only_once(meter: Meter):
    meter.asks(10.0)
    assert meter.totals(12.0) == (2.0, 0.0)
    assert meter.totals(14.0) == (4.0, 0.0)
    meter.gets(15.0)
    assert meter.totals(16.0) == (5.0, 1.0)


def test_a_batch_that_was_there_costs_no_wait(meter: Meter):
    meter.asks(10.0)
    meter.gets(10.0)
    meter.asks(12.0)
    assert meter.totals(12.0) == (0.0, 2.0)


def test_after_the_end_of_the_feed_time_counts_for_nothing(meter: Meter):
    meter.asks(10.0)
    meter.gets(11.0, any_came=False)
    assert meter.totals(100.0) == (1.0, 0.0)
    meter.asks(100.0)
    assert meter.totals(101.0) == (2.0, 0.0)
