"""What children have told, as those ask for it who wait."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_proto.errors import HeadraceError
from headrace_server.supervisor.asks import FRONT
from headrace_server.supervisor.reports import Reports


def reports(*events: dict[str, Any]) -> Reports:
    told = Reports()
    for event in events:
        told.hear(event)
    return told


def over(feed: str, code: str = "", text: str = "") -> dict[str, Any]:
    return {"event": "over", "feed": feed, "code": code, "text": text, "dropped": {"bad": 2}}


def test_at_first_nothing_has_been_told():
    told = reports({"event": "something else"}, {})
    assert not told.ready and not told.open and told.addresses == []
    assert told.outcome() == {} and told.failed_early() is None


def test_the_front_alone_says_where_it_listens():
    told = reports({"event": "ready"})
    assert not told.ready
    told.hear({"event": "ready", "addresses": ["tcp://127.0.0.1:5"]}, FRONT)
    assert told.ready and told.addresses == ["tcp://127.0.0.1:5"]


def test_the_outcome_of_a_feed_has_its_error_and_the_rows_that_were_dropped():
    told = reports(over("well"), over("ill", "server", "why"))
    assert told.outcome() == {"well": ("", "", {"bad": 2}), "ill": ("server", "why", {"bad": 2})}


@pytest.mark.parametrize(("code", "early"), [("", False), ("data", False), ("config", True)])
def test_what_is_wrong_with_data_is_no_failure_to_start(code: str, early: bool):
    error = reports(over("well"), over("f", code, "why")).failed_early()
    assert isinstance(error, HeadraceError) == early
    assert not early or "why" in str(error)


def test_the_next_life_of_an_owner_begins_with_what_was_told_before():
    told = Reports(owners=2)
    told.hear({"event": "open", "before": {"f": 1}}, 0)
    told.hear({"event": "open", "before": {"f": 9}}, 0)  # of its next life
    told.hear({"event": "used", "feed": "f", "generation": 3}, 1)
    assert told.begun(0) == {"failed": {}, "all_opened": None, "before": {"f": 1}}
    told.hear({"event": "open", "before": {}}, 1)
    told.failed["f"] = ("data", "why")
    marks = {"used": [["f", 3]], "touched": []}
    assert told.begun(1) == {"failed": told.failed, "all_opened": marks, "before": {}}


def test_what_all_owners_have_to_say_is_said_when_the_last_one_has():
    told = Reports(owners=2)
    for owner in range(2):
        assert not (told.open or told.over)
        told.hear({"event": "open"}, owner)
        told.hear(over("f"), owner)
        told.hear(over("f"), owner)  # its next life says it again
    assert told.open
    assert told.outcome() == {"f": ("", "", {"bad": 4})}
    told.begin_anew("f")
    assert told.outcome() == {}


def test_a_feed_fails_when_it_fails_at_one_owner_and_the_first_reason_stands():
    told = Reports(owners=3)
    told.hear(over("f"), 0)
    told.hear(over("f", "data", "why"), 2)
    assert told.outcome() == {"f": ("data", "why", {"bad": 4})}
    told.hear(over("f", "server", "because it failed"), 1)
    assert told.outcome() == {"f": ("data", "why", {"bad": 6})}


def test_bad_examples_of_all_owners_are_added():
    told = Reports(owners=2)
    for owner, n in ((0, 1), (1, 2), (0, 3)):
        told.hear({"event": "bad", "feed": "f", "bad": {"short": n}}, owner)
    assert told.bad("f") == {"short": 5} and told.bad("g") == {}


def test_what_is_committed_does_not_become_less_while_the_next_life_of_an_owner_opens():
    told = Reports()
    states = ("opening", 0), ("open", 5), ("opening", 0), ("open", 6)
    seen = []
    for state, n in states:
        feed = {"state": state, "batches": n, "rows": n, "stale": n}
        (one,) = told.lasting({0: {"feeds": {"f": feed}, "access": {}}})
        seen.append(one["feeds"]["f"])
    assert [one["batches"] for one in seen] == [0, 5, 5, 6]
    assert [one["stale"] for one in seen] == [0, 5, 0, 6]
