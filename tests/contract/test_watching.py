"""Metrics mean the same in the code, in the reference and in the dashboard."""

from __future__ import annotations

import json
import re
from pathlib import Path

from headrace_server.server.metrics import METRICS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "watching.md"
DASHBOARD = ROOT / "docker" / "observe" / "dashboard.json"
LABELS = {metric.name: set(metric.labels) for metric in METRICS}


def reference() -> list[str]:
    """The lines that docs/watching.md has of the table."""
    return [
        f"| `{m.name}` | {m.kind} | {', '.join(f'`{label}`' for label in m.labels)} | {m.help} |"
        for m in METRICS
    ]


def test_the_reference_has_every_metric_as_it_is():
    told = [line for line in PAGE.read_text().splitlines() if line.startswith("| `headrace_")]
    assert told == reference(), "print these lines with: python -m tests.contract.test_watching"


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


if __name__ == "__main__":
    print("\n".join(reference()))
