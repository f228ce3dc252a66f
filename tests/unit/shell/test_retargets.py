"""A request for other proportions is answered once, when every partition has spoken."""

from __future__ import annotations

from typing import Any

from headrace_server.shell.events import Retargeted
from headrace_server.shell.retargets import Retargets

HALVES = (0.5, 0.5)
THIRDS = (1 / 3, 2 / 3)


def answered(retargets: Retargets) -> list[tuple[Any, ...]]:
    return [(a.session, a.request, a.since, a.fault) for a in retargets.take_answered()]


def test_a_request_is_told_to_partitions_and_answered_when_all_partitions_have():
    retargets = Retargets(range(2))
    retargets.ask(7, 40, HALVES)
    assert retargets.asked == [(1, HALVES)]
    retargets.answer(Retargeted("speech", 1, 1, 12))
    retargets.answer(Retargeted("speech", 1, 1, 99))  # the word came twice
    assert answered(retargets) == []
    retargets.answer(Retargeted("speech", 0, 1, 5))
    assert answered(retargets) == [(7, 40, [[1, 12], [0, 5]], "")]
    assert answered(retargets) == []


def test_a_partition_that_has_ended_is_not_waited_for():
    retargets = Retargets(range(2))
    retargets.ask(7, 40, HALVES)
    retargets.partition_ended(0)
    retargets.answer(Retargeted("speech", 1, 1, 3))
    assert answered(retargets) == [(7, 40, [[1, 3]], "")]
    retargets.ask(7, 41, HALVES)
    retargets.answer(Retargeted("speech", 1, 2, 4))
    assert answered(retargets) == [(7, 41, [[1, 4]], "")]


def test_where_all_partitions_have_ended_the_answer_is_that_it_came_too_late():
    retargets = Retargets(range(1))
    retargets.partition_ended(0)
    retargets.ask(7, 40, HALVES)
    assert answered(retargets) == [(7, 40, [], "all batches of the feed were made before")]


def test_a_request_that_can_not_be_drawn_is_told_why():
    retargets = Retargets(range(1))
    retargets.ask(7, 40, HALVES)
    retargets.answer(Retargeted("speech", 0, 1, 3))
    retargets.ask(7, 41, THIRDS)
    retargets.answer(Retargeted("speech", 0, 2, 0, "it has three classes"))
    assert [fault for *_, fault in answered(retargets)] == ["", "it has three classes"]
    retargets.answer(Retargeted("speech", 0, 2, 9))  # nobody asks any more
    assert answered(retargets) == []
