"""The status of several owners or servers is joined field by field, by the rules in its types."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from headrace_server.process.config import MOST_TRAINERS
from headrace_server.process.statuses import (
    AccessStatus,
    FeedStatus,
    Rates,
    ServerStatus,
    StoreStatus,
    TrainerStatus,
    joined,
    joined_feed,
)

from ..watch.statuses import feed, server, trainer, worker


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([{"rows": 1.0, "stall": 0.2}, {"rows": 2.0}], {"rows": 3.0, "stall": 0.2}),
        ([{"rows": None, "stall": None}] * 2, {"rows": None, "stall": None}),
        (
            [{"awaited": {"0/2": 0.1}}, {"awaited": {"1/2": 0.3}}],
            {"awaited": {"0/2": 0.1, "1/2": 0.3}},
        ),
    ],
)
def test_rates_are_added_and_the_same_wait_counts_once(parts: list[Any], whole: Any):
    assert joined(Rates, parts) == whole


def test_the_longest_rest_of_stores_counts_and_each_fault_once():
    one: StoreStatus = {"commits": 1, "since_commit_s": None, "faults": ["b"]}
    two: StoreStatus = {"commits": 2, "since_commit_s": 3.0, "faults": ["a", "b"]}
    whole = {"commits": 3, "since_commit_s": 3.0, "faults": ["a", "b"]}
    assert joined(StoreStatus, [one, two]) == whole


def test_a_key_is_present_as_often_as_at_one_server_and_refusals_are_added():
    def access(present: dict[str, int], refused: int) -> AccessStatus:
        return {"keys": True, "known": ["a"], "present": present, "refused": {"x": refused}}

    assert joined(AccessStatus, [access({"a": 2}, 1), access({"a": 1, "b": 1}, 2)]) == (
        access({"a": 2, "b": 1}, 3)
    )


def test_fields_that_some_parts_lack_are_those_of_the_others():
    told = joined(TrainerStatus, [trainer(1), {**trainer(1), "local": False, "rank": 3}])
    assert (told["rank"], told["local"], told["batches"]) == (-1, False, 10)
    bare = {k: v for k, v in trainer(1).items() if k not in ("leases", "rank")}
    assert joined(TrainerStatus, [bare, trainer(1)])["leases"] == 2


def test_statuses_of_servers_become_one_of_the_same_shape():
    one, two = (
        server(10.0, a=feed(), b=feed()),
        server(12.0, a=feed(), workers=[worker(worker="1.0"), worker(worker="1.1")]),
    )
    two["state"], two["draining"] = "draining", True
    told = joined(ServerStatus, [one, two])
    assert (told["state"], told["draining"], told["at"]) == ("draining", True, 12.0)
    assert (told["feeds"]["a"]["batches"], told["feeds"]["b"]["batches"]) == (6, 3)
    assert len(told["workers"]) == 3 and told["access"]["refused"] == {"garbage": 4}
    assert told.keys() == one.keys()
    assert told["feeds"]["a"].keys() == one["feeds"]["a"].keys()


def test_the_first_of_many_trainers_are_listed():
    many = [trainer(n) for n in range(MOST_TRAINERS)]
    told = joined_feed([feed(trainers=many), feed(trainers=[trainer(1000)], trainers_more=2)])
    assert len(told["trainers"]) == MOST_TRAINERS and told["trainers_more"] == 3


def test_the_helpers_of_these_tests_know_no_field_that_the_types_do_not():
    for told, kind in ((feed(), FeedStatus), (trainer(), TrainerStatus), (server(), ServerStatus)):
        assert set(told) <= set(get_type_hints(kind))
