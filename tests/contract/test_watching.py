"""Metrics mean the same in the code, in the reference and in the dashboard."""

from __future__ import annotations

import json
import re
from pathlib import Path

from headrace_server.watch.metrics import METRICS

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


def test_it_selects_and_names_by_labels_that_these_have():
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            names = set(re.findall(r"headrace_\w+", query))
            selected = set(re.findall(r"(\w+)=~?\"", query))
            selected |= {
                label.strip()
                for by in re.findall(r"by \(([\w, ]+)\)", query)
                for label in by.split(",")
            }
            selected |= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            for name in names:
                assert selected <= LABELS[name], (panel["title"], name)


def test_a_counter_is_asked_for_its_rate_and_a_gauge_never():
    kinds = {metric.name: metric.kind for metric in METRICS}
    for query in queries():
        for head, name in re.findall(r"(\w+\()?(headrace_\w+)", query):
            rated = head in ("rate(", "increase(")
            assert rated == (kinds[name] == "counter"), (query, name)


def test_panels_do_not_overlap_and_have_numbers_of_their_own():
    dashboard = json.loads(DASHBOARD.read_text())
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & mine and at["x"] + at["w"] <= 24, panel["title"]
        cells |= mine
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


if __name__ == "__main__":
    print("\n".join(reference()))
