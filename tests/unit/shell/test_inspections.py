"""A question is answered when all workers have answered, or when time is up."""

from __future__ import annotations

from headrace_server.shell.inspections import Inspections
from headrace_server.shell.worker_messages import Sought


def sought(request: int, worker: int, *found: list[object]) -> Sought:
    return Sought("a", request, worker, list(found))


def test_it_is_done_when_every_worker_has_answered():
    inspections = Inspections()
    inspections.begin(1, "a", [0, 1], now=10.0)
    inspections.answer(sought(1, 0, [0, 0, 1, 4, "ready", -1]))
    assert inspections and inspections.take_done(10.1) == []
    inspections.answer(sought(1, 1))
    (done,) = inspections.take_done(10.1)
    assert (done.request, done.feed, done.unheard) == (1, "a", set())
    assert done.found == [[0, 0, 1, 4, "ready", -1]] and not inspections


def test_a_worker_that_does_not_answer_is_told_of_when_time_is_up():
    inspections = Inspections()
    inspections.begin(1, "a", [0, 1], now=10.0)
    inspections.answer(sought(1, 0, ["x"]))
    assert inspections.take_done(12.9) == []
    (done,) = inspections.take_done(13.0)
    assert done.unheard == {1} and done.found == [["x"]]


def test_an_answer_that_comes_twice_late_or_unasked_changes_nothing():
    inspections = Inspections()
    inspections.begin(1, "a", [0, 1], now=10.0)
    for _ in range(2):
        inspections.answer(sought(1, 0, ["x"]))
    inspections.answer(sought(2, 0, ["y"]))
    (done,) = inspections.take_done(20.0)
    assert done.found == [["x"]]
    inspections.answer(sought(1, 1, ["z"]))
    assert not inspections


def test_without_workers_it_is_done_at_once():
    inspections = Inspections()
    inspections.begin(1, "a", [], now=10.0)
    assert [i.found for i in inspections.take_done(10.0)] == [[]]
