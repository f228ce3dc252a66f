"""A run completes even if contestants fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench import running
from tests.bench.alone import Alone
from tests.bench.environments import Absent
from tests.bench.pairs import Comparison
from tests.bench.report import Run, table

WINDOW = {
    "batches_per_s": 2.0,
    "cpu_s_per_1000": 1.0,
    "p50_us": 1.0,
    "p99_us": 1.0,
    "peak_rss_mb": 1.0,
    "pss_beyond_framework_mb": 1.0,
}


def program(file: Path, lines: str) -> str:
    file.write_text(f"#!/bin/sh\n{lines}\n")
    file.chmod(0o755)
    return str(file)


def test_failing_and_absent_contestants_are_reported_and_the_others_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    loop = f"echo '{{}}'; while read x; do echo '{json.dumps(WINDOW)}'; done"
    good = program(tmp_path / "good", loop)
    bad = program(tmp_path / "bad", "echo '{}'; read x; echo 'out of memory' >&2; exit 1")
    # Its first life fails.
    flaky = program(tmp_path / "flaky", f"mkdir {tmp_path}/tried && exit 1; {loop}")

    def python(self, name: str) -> str:
        if name == "absent":
            raise Absent("pip knows none")
        return {"bad": bad, "flaky": flaky}.get(name, good)

    monkeypatch.setattr(running.Environments, "python", python)
    chosen = [Comparison("W1", "ours", peer) for peer in ("bad", "absent", "flaky", "peer")]
    run = Run(2, 0.1)
    with running.running(tmp_path) as them:
        bench.measure(
            run, chosen, [Alone("W1 memory", "bad", "memory", 0.1)], them, tmp_path / "out.json"
        )
    assert [outcome.comparison.peer for outcome in run.outcomes] == ["flaky", "peer"]
    assert {title: why.rpartition(": ")[2].strip() for title, why in run.absent.items()} == {
        "W1: ours / bad": "out of memory",
        "W1: ours / absent": "pip knows none",
        "W1 memory: bad": "out of memory",
    }
    assert "* W1: ours / absent: absent: pip knows none" in table(run)
    assert json.loads((tmp_path / "out.json").read_text())["absent"] == run.absent


def test_contestants_are_kept_that_the_same_workload_needs_again():
    chosen = [
        Comparison("W1", "a", "b"),
        Comparison("W1", "a", "c"),
        Comparison("W2", "a", "b"),
    ]
    assert bench.needed(chosen, 0) == {"a", "c"}
    assert bench.needed(chosen, 1) == bench.needed(chosen, 2) == set()
