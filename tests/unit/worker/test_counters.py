"""Counters are sums of partitions' last reports, and of all batches' descriptions."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_server.leasing.protocol import Answer, Batch
from headrace_server.worker.counters import Counters, Tally


@pytest.fixture
def counters() -> Counters:
    return Counters()


def made(partition: int = 0) -> Batch:
    return Batch(partition, 0, -1, (0, 0), 4, nbytes=32)


def test_dropped_rows_are_the_sum_of_the_last_reports_of_partitions(counters: Counters):
    counters.on_counted(0, {"dropped": {"bad:x": 1, "filtered": 2}})
    counters.on_counted(1, {"dropped": {"filtered": 10}})
    counters.on_counted(0, {"dropped": {"bad:x": 3, "filtered": 4}})
    assert counters.dropped() == {"bad:x": 3, "filtered": 14}
    counters.on_counted(1, {"dropped": {"filtered": 11, "remainder": 1}})
    assert counters.dropped() == {"bad:x": 3, "filtered": 15, "remainder": 1}
    assert counters.bad() == {"x": 3}


def padded(buckets: dict[str, list[int]]) -> dict[str, Any]:
    return {"dropped": {}, "padding": buckets}


def test_padding_is_added_up_by_bucket_over_partitions_whose_last_word_counts(counters: Counters):
    counters.on_counted(0, padded({"2": [10, 7]}))
    counters.on_counted(0, padded({"2": [10, 7], "0": [4, 4]}))
    counters.on_counted(1, padded({"2": [6, 5]}))
    told = counters.totals()
    assert list(told["padding"].items()) == [("0", [4, 4]), ("2", [16, 12])]
    assert told["classes"] == {}


def test_classes_are_added_up_and_changes_of_targets_stay_each_partitions_own(counters: Counters):
    def classes(accepted: list[int], change: int) -> dict[str, Any]:
        return {"dropped": {}, "classes": {"accepted": accepted, "changes": [[[change]]]}}

    counters.on_counted(0, classes([9, 9], 9))
    counters.on_counted(0, classes([1, 2], 0))
    counters.on_counted(1, classes([10, 20], 1))
    assert counters.totals()["classes"] == {"accepted": [11, 22], "changes": [[[0]], [[1]]]}


def test_counters_of_segments_are_added_up_beside_the_classes(counters: Counters):
    assert "segments" not in counters.totals()
    for partition in range(2):
        segments = {"in_flight": 2 + partition, "rewound": 1}
        counters.on_counted(partition, {"dropped": {}, "segments": segments})
    told = counters.totals()
    assert told["segments"] == {"in_flight": 5, "rewound": 2} and told["classes"] == {}


def test_counts_of_made_batches_are_added_up(counters: Counters):
    counters.on_made(made(0))
    counters.on_made(made(1))
    assert counters.totals()["made"] == {"batches": 2, "rows": 8, "bytes": 64}


def test_saves_that_are_refused_are_counted_by_their_code_and_stay_when_a_trainer_leaves(
    counters: Counters,
):
    faults = ((7, "state", "no"), (8, "state", "no"), (9, "cancelled", "late"))
    one, other = Tally(), Tally()
    one.answered(Answer((1,), (2,), faults))
    other.answered(Answer(faults=faults[:1]))
    assert counters.totals([one, other])["refused"] == {"state": 3, "cancelled": 1}
    counters.on_left(one)
    assert counters.totals([other])["refused"] == {"state": 3, "cancelled": 1}


def test_a_tally_has_what_one_trainer_was_sent_and_what_it_was_answered():
    tally = Tally()
    tally.sent(4, 100)
    tally.sent(2, 50)
    tally.answered(Answer((1, 2), (3,), ((4, "state", "no"),)))
    assert (tally.batches, tally.rows, tally.bytes) == (2, 6, 150)
    assert (tally.committed, tally.stale, tally.refused) == (2, 1, {"state": 1})
