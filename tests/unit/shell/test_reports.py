"""What children have told, as those ask for it who wait."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_proto.errors import HeadraceError
from headrace_server.shell.reports import LIVES, Reports


def reports(*events: tuple[str, dict[str, Any]]) -> Reports:
    told = Reports()
    for child, event in events:
        told.hear(child, event)
    return told


def over(feed: str, code: str = "", text: str = "") -> tuple[str, dict[str, Any]]:
    event = {"event": "over", "feed": feed, "code": code, "text": text, "dropped": {"bad": 2}}
    return "front", event


def test_at_first_nothing_has_been_told():
    told = reports(("worker-0-0", {"event": "something else"}), ("front", {}))
    assert not told.ready and not told.open and not told.idle and told.addresses == []
    assert told.outcome() == {} and not told.answered(1) and told.failed_early() is None


def test_the_router_alone_says_where_it_listens():
    told = reports(("worker-0-0", {"event": "ready"}))
    assert not told.ready
    told.hear("front", {"event": "ready", "addresses": ["tcp://127.0.0.1:5"]})
    assert told.ready and told.addresses == ["tcp://127.0.0.1:5"]


def test_each_word_of_the_router_is_kept():
    told = reports(("front", {"event": "open"}))
    assert told.open and not told.idle
    told.hear("front", {"event": "idle"})
    assert told.idle


def test_an_answer_is_kept_for_who_waits_for_it_and_for_nobody_else():
    told = reports()
    told.expect(1, "close")
    for request in (1, 2):
        told.hear("worker-0-0", {"event": "answer", "request": request, "feeds": {"f": request}})
    assert told.answered(1) and not told.answered(2)
    answer = told.take_answer(1)
    assert answer is not None and answer["feeds"] == {"f": 1}
    assert told.take_answer(1) is None and told.take_answer(2) is None
    told.expect(3, "close")
    assert told.take_answer(3) is None
    told.hear("worker-0-0", {"event": "answer", "request": 3})  # it came too late
    assert not told.answered(3)


def test_the_outcome_of_a_feed_has_its_error_and_the_rows_that_were_dropped():
    told = reports(over("well"), over("ill", "server", "why"))
    assert told.outcome() == {"well": ("", "", {"bad": 2}), "ill": ("server", "why", {"bad": 2})}


@pytest.mark.parametrize(("code", "early"), [("", False), ("data", False), ("config", True)])
def test_what_is_wrong_with_data_is_no_failure_to_start(code: str, early: bool):
    error = reports(over("well"), over("f", code, "why")).failed_early()
    assert isinstance(error, HeadraceError) == early
    assert not early or "why" in str(error)


def test_what_a_child_said_before_its_end_is_taken_once():
    told = reports(("worker-0-1", {"event": "dying", "text": "it hurts"}))
    assert told.take_dying("worker-0-0") is None
    assert told.take_dying("worker-0-1") == "it hurts"
    assert told.take_dying("worker-0-1") is None


def test_what_all_owners_have_to_say_is_said_when_the_last_one_has():
    told = Reports(owners=2)
    told.expect(1, "users")
    for owner in range(2):
        assert not (told.open or told.idle or told.answered(1) or told.over)
        told.hear("", {"event": "open"}, owner)
        told.hear("", {"event": "idle"}, owner)
        told.hear("", {"event": "answer", "request": 1, "users": [f"{owner}"]}, owner)
        told.hear(*over("f"), owner)
        told.hear(*over("f"), owner)  # its next life says it again
    assert told.open and told.idle and told.take_answer(1) == {"users": ["0", "1"]}
    assert told.outcome() == {"f": ("", "", {"bad": 4})}
    told.begin_anew("f")
    assert told.outcome() == {}


def test_a_feed_fails_when_it_fails_at_one_owner_and_the_first_reason_stands():
    told = Reports(owners=3)
    told.hear(*over("f"), 0)
    told.hear(*over("f", "data", "why"), 2)
    assert told.outcome() == {"f": ("data", "why", {"bad": 4})}
    told.hear(*over("f", "server", "because it failed"), 1)
    assert told.outcome() == {"f": ("data", "why", {"bad": 6})}


def test_bad_examples_of_all_owners_are_added():
    told = Reports(owners=2)
    for owner, n in ((0, 1), (1, 2), (0, 3)):
        told.hear("", {"event": "bad", "feed": "f", "bad": {"short": n}}, owner)
    assert told.bad("f") == {"short": 5} and told.bad("g") == {}


def test_what_is_committed_does_not_become_less_while_the_next_life_of_an_owner_opens():
    told = Reports()
    nobody: dict[str, Any] = {"keys": False, "known": [], "present": {}, "refused": {}}
    states = ("opening", 0), ("open", 5), ("opening", 0), ("open", 6)
    for request, (state, n) in enumerate(states):
        told.expect(request, LIVES)
        told.hear("front", {"event": "answer", "request": request})
        feed: dict[str, Any] = dict.fromkeys(("redelivered", "expired", "trainers_more"), 0)
        feed |= {name: {} for name in ("made", "refused", "dropped", "standing", "padding")}
        feed |= {"classes": {}, "failure": None, "waiting": "", "partitions": [], "trainers": []}
        feed |= {"state": state, "batches": n, "rows": n, "stale": n}
        about = {"request": request, "feeds": {"f": feed}, "access": nobody}
        told.hear("worker-0-0", {"event": "answer", **about})
    seen = [told.take_answer(request) for request in range(4)]
    assert [one["feeds"]["f"]["batches"] for one in seen if one] == [0, 5, 5, 6]
    assert [one["feeds"]["f"]["stale"] for one in seen if one] == [0, 5, 0, 6]


def test_a_look_at_all_is_answered_when_the_front_has_answered_too():
    told = Reports(owners=1)
    told.expect(1, LIVES)
    told.expect(2, "users")
    told.hear("worker-0-0", {"event": "answer", "request": 2, "users": ["one"]})
    assert told.take_answer(2) == {"users": ["one"]}
    told.hear("worker-0-0", {"event": "answer", "request": 1, "feeds": {}, "access": {}})
    assert not told.answered(1) and told.silent(1) == ["the front"]
    told.hear("front", {"event": "answer", "request": 1})
    assert told.answered(1)
