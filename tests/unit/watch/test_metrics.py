"""Every metric is well formed, its samples stay few, and Prometheus reads the text of them."""

from __future__ import annotations

import re
from functools import partial
from typing import get_type_hints

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from headrace_proto.errors import one_line
from headrace_server.watch.metrics import METRICS, MOST, exposition

from .statuses import feed, server, trainer

BY_NAME = {metric.name: metric for metric in METRICS}
LABELS = "feed trainer reason bucket class state kind outcome stage host name way worker doing"


def samples(name: str, **feeds: object) -> dict[tuple[str, ...], float]:
    return dict(BY_NAME[name].samples(server(**feeds)))


def test_metrics_are_named_as_prometheus_wants_them_and_are_of_a_field_or_computed():
    for metric in METRICS:
        assert re.fullmatch(r"headrace_[a-z_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric.help.endswith(".") and "\n" not in metric.help
        assert set(metric.labels) <= {*LABELS.split(), "share", "source", "version"}
        if isinstance(metric.value, partial):
            (path,) = metric.value.args
            assert path.partition(".")[0] in get_type_hints(metric.of)


def test_each_sample_has_a_value_for_every_label_and_none_comes_twice():
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
        sources={"web": 7, "code": 3},
        weights={"web": [1.4, 2], "code": [0.6, 2]},
        balance={"rounds": 3, "mean": 1.1, "worst": 1.3},
        log={"open": 2, "backlog_bytes": 7},
    )
    disk = {"path": "state", "free_bytes": 4096, "fault": "full"}
    status = {**server(crowded=crowded), "disk": disk}
    for metric in METRICS:
        found = list(metric.samples(status))
        assert found and all(len(labels) == len(metric.labels) for labels, _ in found), metric.name
        assert len({labels for labels, _ in found}) == len(found)
        kinds = {"reason", "bucket", "class", "trainer"} & set(metric.labels)
        assert len(found) <= 5 * (MOST + 1) ** len(kinds)


def test_padding_is_the_part_of_a_buckets_elements_that_is_none_of_its_rows():
    found = samples("headrace_padding_ratio", a=feed(padding={"0": [100, 75], "1": [0, 0]}))
    assert found == {("a", "0"): 0.25}


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


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_stays_the_value_of_its_label(text):
    found = parsed(exposition(server(a=feed(trainers=[trainer(1, host=text)], dropped={text: 5}))))
    shown = one_line(text)
    assert found["headrace_rows_dropped_total", (("feed", "a"), ("reason", shown))] == 5
    hosts = [dict(labels)["host"] for name, labels in found if name == "headrace_trainer_info"]
    assert hosts == [shown]
