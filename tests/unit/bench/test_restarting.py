"""A restart is timed from the kill of a real daemon to the first batch of the next one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import headrace_server as hs
from tests.bench.restarting import judged, shown

_NAME = "headrace restart"


def _small(directory: Path) -> Any:
    examples = [{"key": f"{i}", "x": [0.0] * 400} for i in range(200)]
    return hs.from_examples(examples).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"s": hs.zeros((), "float32")},
        num_unroll=1,
        batch_size=2,
        capacity=200,
    )


def served() -> Any:
    """Return the daemon's pipeline: the daemon imports this module by its name."""
    return _small(Path())


def test_a_server_that_was_killed_serves_again(tmp_path: Path):
    code = (
        "import tests.bench.restarting as r, tests.unit.bench.test_restarting as t\n"
        "r._HELD, r._FRAMEWORK, r._SERVED = 4, 'numpy', 'tests.unit.bench.test_restarting:served'\n"
        "r.main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, _NAME, str(tmp_path)],
        input='{"seconds": 0}\n',
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    warm, measured = map(json.loads, ended.stdout.splitlines())
    assert warm == {"warm": True}
    assert len(measured["took_s"]) == 1 and measured["p50_s"] > 0
    assert [one.met for one in judged("restart", _NAME, {**measured, "p50_s": 1.1})] == [False]
    assert "of 1" in shown(measured)
