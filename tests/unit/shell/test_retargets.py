"""A request for other proportions is answered once, when every partition has spoken."""

from __future__ import annotations

from typing import Any

from headrace_server.shell.retargets import Retargets
from headrace_server.shell.worker_messages import Retarget, Retargeted

HALVES = (0.5, 0.5)
THIRDS = (1 / 3, 2 / 3)


def answered(retargets: Retargets) -> list[tuple[Any, ...]]:
    return [(a.session, a.request, a.since, a.fault) for a in retargets.take_answered()]


def test_a_request_is_told_to_workers_and_answered_when_all_partitions_have():
    retargets = Retargets("speech", range(2))
    retargets.ask(7, 40, HALVES)
    assert retargets.asked == [Retarget("speech", 1, HALVES)]
    retargets.answer(Retargeted("speech", 1, 1, 12))
    retargets.answer(Retargeted("speech", 1, 1, 99))  # the word came twice
    assert answered(retargets) == []
    retargets.answer(Retargeted("speech", 0, 1, 5))
    assert answered(retargets) == [(7, 40, [[1, 12], [0, 5]], "")]
    assert answered(retargets) == []


def test_a_partition_that_has_ended_is_not_waited_for():
    retargets = Retargets("speech", range(2))
    retargets.ask(7, 40, HALVES)
    retargets.partition_ended(0)
    retargets.answer(Retargeted("speech", 1, 1, 3))
    assert answered(retargets) == [(7, 40, [[1, 3]], "")]
    retargets.ask(7, 41, HALVES)
    retargets.answer(Retargeted("speech", 1, 2, 4))
    assert answered(retargets) == [(7, 41, [[1, 4]], "")]


def test_where_all_partitions_have_ended_the_answer_is_that_it_came_too_late():
    retargets = Retargets("speech", range(1))
    retargets.partition_ended(0)
    retargets.ask(7, 40, HALVES)
    assert answered(retargets) == [(7, 40, [], "all batches of the feed were made before")]


def test_a_worker_that_starts_is_told_what_holds_and_what_is_not_answered():
    retargets = Retargets("speech", range(1))
    assert retargets.of_a_new_worker() == []
    retargets.ask(7, 40, HALVES)
    retargets.answer(Retargeted("speech", 0, 1, 3))
    retargets.take_answered()
    retargets.ask(8, 5, THIRDS)
    assert retargets.of_a_new_worker() == [
        Retarget("speech", 1, HALVES, [[0, 3]]),
        Retarget("speech", 2, THIRDS, []),
    ]


def test_a_request_that_can_not_be_drawn_is_told_why_and_what_held_before_holds():
    retargets = Retargets("speech", range(1))
    retargets.ask(7, 40, HALVES)
    retargets.answer(Retargeted("speech", 0, 1, 3))
    retargets.ask(7, 41, THIRDS)
    retargets.answer(Retargeted("speech", 0, 2, 0, "it has three classes"))
    assert [fault for *_, fault in answered(retargets)] == ["", "it has three classes"]
    assert retargets.of_a_new_worker() == [Retarget("speech", 1, HALVES, [[0, 3]])]
    retargets.answer(Retargeted("speech", 0, 2, 9))  # nobody asks any more
    assert answered(retargets) == []
