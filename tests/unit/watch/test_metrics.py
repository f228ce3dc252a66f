"""Every metric is well formed, its samples stay few, and Prometheus reads the text of them."""

from __future__ import annotations

import re
from typing import get_type_hints

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from headrace_server.process.statuses import (
    DiskStatus,
    FeedStatus,
    ServerStatus,
    ShareStatus,
    StoreStatus,
    TrainerStatus,
    WorkerStatus,
)
from headrace_server.watch.metrics import METRICS, MOST, Metric, exposition

from .statuses import feed, server, trainer

BY_NAME = {metric.name: metric for metric in METRICS}
NAMES = [metric.name for metric in METRICS]


def samples(name: str, **feeds: object) -> dict[tuple[str, ...], float]:
    return dict(BY_NAME[name].samples(server(**feeds)))


@pytest.mark.parametrize("metric", METRICS, ids=NAMES)
def test_a_metric_is_named_as_prometheus_wants_it(metric: Metric):
    assert re.fullmatch(r"headrace_[a-z_]+", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert metric.help.endswith(".") and "\n" not in metric.help
    assert set(metric.labels) <= {
        *("feed", "trainer", "reason", "bucket", "class"),
        *(
            "state",
            "kind",
            "outcome",
            "stage",
            "host",
            "name",
            "way",
            "worker",
            "doing",
            "version",
            "share",
        ),
    }


@pytest.mark.parametrize(
    "kind",
    [ServerStatus, DiskStatus, FeedStatus, ShareStatus, StoreStatus, TrainerStatus, WorkerStatus],
)
def test_a_field_names_a_metric_that_its_class_describes(kind: type):
    hints = get_type_hints(kind, include_extras=True).values()
    named = {n for hint in hints for n in getattr(hint, "__metadata__", ()) if isinstance(n, str)}
    assert named and {f"headrace_{name}" for name in named} <= set(NAMES)


def test_no_name_is_there_twice():
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("metric", METRICS, ids=NAMES)
def test_each_sample_has_a_value_for_every_label_and_none_comes_twice(metric: Metric):
    many = [trainer(n, refused={f"code{i}": 1 for i in range(300)}) for n in range(300)]
    classes = {name: list(range(300)) for name in ("accepted", "rejected", "waiting")}
    store = {"commits": 1, "since_commit_s": 2.0, "faults": ["x"]}
    crowded = feed(
        trainers=many,
        dropped={f"reason {i}": i for i in range(300)},
        padding={str(i): [10, 5] for i in range(300)},
        classes=classes,
        store=store,
        segments={"in_flight": 1, "rewound": 2},
        seconds={"reading": 1.5, "map function f:g": 2.5},
        segment_standing={"ready": 3, "leased": 4, "full": 5},
    )
    disk = {"path": "state", "free_bytes": 4096, "fault": "full"}
    found = list(metric.samples({**server(crowded=crowded), "disk": disk}))
    assert found and all(len(labels) == len(metric.labels) for labels, _ in found)
    assert len({labels for labels, _ in found}) == len(found)
    kinds = {"reason", "bucket", "class", "trainer"} & set(metric.labels)
    assert len(found) <= 5 * (MOST + 1) ** len(kinds)


def test_what_is_too_much_is_added_up_under_other():
    dropped = {f"reason {i}": 1 for i in range(MOST + 7)}
    found = samples("headrace_rows_dropped_total", a=feed(dropped=dropped))
    assert len(found) == MOST + 1 and found["a", "other"] == 7


def test_a_status_without_feeds_gives_what_is_known():
    for metric in METRICS:
        list(metric.samples(server(workers=[])))
    failed = {**server(workers=[]), "state": "failed"}
    assert dict(BY_NAME["headrace_up"].samples(failed)) == {(): 0.0}


def test_stale_commits_and_other_refusals_are_told_by_reason():
    found = samples(
        "headrace_saves_refused_total", a=feed(stale=2, refused={"stale": 1, "state": 4})
    )
    assert found == {("a", "stale"): 3, ("a", "state"): 4}


def test_padding_is_the_part_of_a_buckets_elements_that_is_none_of_its_rows():
    found = samples("headrace_padding_ratio", a=feed(padding={"0": [100, 75], "1": [0, 0]}))
    assert found == {("a", "0"): 0.25}


def test_a_feed_is_in_one_state():
    found = samples("headrace_feed_state", a=feed(state="ended"))
    assert [state for (_, state), value in found.items() if value] == ["ended"]


def test_partitions_are_opening_or_open_or_done():
    marks = [(False, False), (True, False), (True, True), (True, True)]
    partitions = [{"open": opened, "done": done} for opened, done in marks]
    found = samples("headrace_partitions", a=feed(partitions=partitions))
    assert found == {("a", "opening"): 1, ("a", "open"): 1, ("a", "done"): 2}


HOSTILE = [
    'a"b',
    "back\\slash",
    "two\nlines",
    "\\n",
    "<b>&amp;",
    "ünï ☃",
    '"} 1\nx{y="',
    "",
    "\ud800",
]


def parsed(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text.decode())
        for sample in family.samples
    }


def test_every_metric_is_announced_with_help_and_kind():
    families = {family.name: family for family in parse(exposition(server(a=feed())).decode())}
    for metric in METRICS:
        # The parser takes the ending of a counter off.
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)


def test_values_are_those_of_the_status():
    found = parsed(exposition(server(a=feed(rows=12), b=feed(trainers=[trainer(9, busy_s=2.5)]))))
    assert found["headrace_rows_committed_total", (("feed", "a"),)] == 12
    busy = "headrace_trainer_busy_seconds_total"
    assert found[busy, (("feed", "b"), ("trainer", "9"))] == 2.5
    assert found["headrace_up", ()] == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_stays_the_value_of_its_label(text: str):
    found = parsed(exposition(server(a=feed(trainers=[trainer(1, host=text)], dropped={text: 5}))))
    shown = text.replace("\ud800", "?")
    assert found["headrace_rows_dropped_total", (("feed", "a"), ("reason", shown))] == 5
    hosts = [dict(labels)["host"] for name, labels in found if name == "headrace_trainer_info"]
    assert hosts == [shown]
