"""The text is what Prometheus reads, judged by the parser of its own client."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from headrace_server.watch.exposition import exposition
from headrace_server.watch.table import METRICS

from .statuses import feed, server, trainer

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


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_every_metric_is_announced_with_help_and_kind():
    families = {family.name: family for family in parse(exposition(server(a=feed())))}
    for metric in METRICS:
        # The parser takes the ending of a counter off.
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)


def test_values_are_those_of_the_status():
    found = values(exposition(server(a=feed(rows=12), b=feed(trainers=[trainer(9, busy_s=2.5)]))))
    assert found["headrace_rows_committed_total", (("feed", "a"),)] == 12
    busy = "headrace_trainer_busy_seconds_total"
    assert found[busy, (("feed", "b"), ("trainer", "9"))] == 2.5
    assert found["headrace_up", ()] == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_stays_the_value_of_its_label(text: str):
    found = values(exposition(server(a=feed(trainers=[trainer(1, host=text)], dropped={text: 5}))))
    shown = text.replace("\ud800", "?")
    assert found["headrace_rows_dropped_total", (("feed", "a"), ("reason", shown))] == 5
    hosts = [dict(labels)["host"] for name, labels in found if name == "headrace_trainer_info"]
    assert hosts == [shown]


def test_numbers_are_written_as_short_as_they_are():
    text = exposition(server(a=feed(rows=10**15, trainers=[trainer(1, busy_s=0.1)])))
    assert 'headrace_rows_committed_total{feed="a"} 1000000000000000\n' in text
    assert 'busy_seconds_total{feed="a",trainer="1"} 0.1\n' in text and text.endswith("\n")
