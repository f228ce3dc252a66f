"""The dashboard and the page of docs name metrics that there are, each by its kind."""

from __future__ import annotations

import json
import re
from pathlib import Path

from headrace_server.watch.metrics import METRICS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "watching.md"
DASHBOARD = ROOT / "docker" / "observe" / "dashboard.json"
LABELS = {metric.name: set(metric.labels) for metric in METRICS}


def test_the_page_names_only_metrics_that_there_are():
    named = set(re.findall(r"\bheadrace_[a-z_]+_\w+", PAGE.read_text())) - {"headrace_server"}
    assert named <= set(LABELS) and len(named) > 10


def queries() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return panels + [v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]


def test_the_dashboard_asks_only_for_metrics_that_there_are():
    named = {name for query in queries() for name in re.findall(r"headrace_\w+", query)}
    assert named <= set(LABELS) and len(named) > len(METRICS) / 2


def test_a_counter_is_asked_for_its_rate_and_a_gauge_never():
    kinds = {metric.name: metric.kind for metric in METRICS}
    for query in queries():
        for head, name in re.findall(r"(\w+\()?(headrace_\w+)", query):
            rated = head in ("rate(", "increase(")
            assert rated == (kinds[name] == "counter"), (query, name)
