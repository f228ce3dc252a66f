"""The status of several owners or servers is joined field by field, by the rules in its types."""

from __future__ import annotations

from typing import get_type_hints

from headrace_server.process.statuses import (
    FeedStatus,
    ServerStatus,
    TrainerStatus,
    joined,
)

from ..server.statuses import feed, server, trainer, worker


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


def test_the_helpers_of_these_tests_know_no_field_that_the_types_do_not():
    for told, kind in ((feed(), FeedStatus), (trainer(), TrainerStatus), (server(), ServerStatus)):
        assert set(told) <= set(get_type_hints(kind))
