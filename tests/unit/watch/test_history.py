"""Rates are differences between looks, and never negative after counts restart."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_server.watch.history import History

from .statuses import feed, server, trainer, worker


def looked(*statuses: dict[str, Any]) -> History:
    history = History()
    for status in statuses:
        history.add(status)
    return history


def counted(rows: int, **more: Any) -> dict[str, Any]:
    return feed(
        rows=rows, read=2 * rows, made={"batches": 0, "rows": rows, "bytes": 8 * rows}, **more
    )


def test_a_rate_is_what_was_added_divided_by_the_time_between():
    history = looked(server(100.0, a=counted(0)), server(102.0, a=counted(50, dropped={"x": 4})))
    (point,) = history.points()
    rates = point["feeds"]["a"]
    assert (point["at"], point["span"]) == (102.0, 2.0)
    assert (rates["rows"], rates["read"], rates["bytes"], rates["dropped"]) == (25, 50, 200, 2)


def test_one_look_gives_no_rate():
    history = looked(server(100.0, a=counted(0)))
    assert history.points() == [] and history.rates() == {"feeds": {}, "workers": {}}


def test_the_stall_ratio_is_the_part_of_the_time_that_was_waited():
    before = [trainer(1, blocked_s=10.0, busy_s=50.0), trainer(2, blocked_s=0.0, busy_s=0.0)]
    after = [trainer(1, blocked_s=11.0, busy_s=51.0), trainer(2, blocked_s=0.0, busy_s=2.0)]
    rates = looked(
        server(1.0, a=feed(trainers=before)), server(3.0, a=feed(trainers=after))
    ).rates()
    of_feed = rates["feeds"]["a"]
    assert of_feed["stall"] == 0.25
    assert {n: t["stall"] for n, t in of_feed["trainers"].items()} == {"1": 0.5, "2": 0.0}


def test_trainers_that_came_or_left_between_two_looks_do_not_count():
    before, after = [trainer(1)], [trainer(2, blocked_s=1000.0)]
    rates = looked(
        server(1.0, a=feed(trainers=before)), server(3.0, a=feed(trainers=after))
    ).rates()
    assert rates["feeds"]["a"]["stall"] is None and rates["feeds"]["a"]["trainers"] == {}


def test_a_feed_that_counts_anew_has_no_negative_rate():
    history = looked(server(1.0, a=counted(100)), server(2.0, a=counted(10)))
    assert history.points()[0]["feeds"]["a"]["rows"] == 0


def test_a_workers_time_is_told_in_shares():
    before = worker(work_s=10.0, rests_s={"trainers": 1.0, "states": 0.0, "slab": 0.0})
    after = worker(work_s=11.0, rests_s={"trainers": 3.0, "states": 0.0, "slab": 1.0})
    rates = looked(server(1.0, workers=[before]), server(5.0, workers=[after])).rates()
    expected = {"work": 0.25, "trainers": 0.5, "states": 0.0, "slab": 0.25}
    assert rates["workers"]["0"] == pytest.approx(expected)


def test_rates_are_averages_of_the_last_ten_seconds():
    history = looked(
        *(server(float(t), a=counted(rows)) for t, rows in ((0, 0), (2, 1000), (4, 1000)))
    )
    assert history.rates()["feeds"]["a"]["rows"] == 250
    for t in range(6, 20, 2):
        history.add(server(float(t), a=counted(1000)))
    assert history.rates()["feeds"]["a"]["rows"] == 0


def test_points_after_a_moment_are_given_and_old_ones_go():
    history = looked(*(server(float(t), a=counted(t)) for t in range(400)))
    assert [p["at"] for p in history.points(397.0)] == [398.0, 399.0]
    assert len(history.points()) == 180


def test_a_clock_that_is_set_back_gives_no_point():
    history = looked(server(10.0, a=counted(0)), server(9.0, a=counted(5)))
    assert history.points() == []
