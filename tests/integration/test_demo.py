"""``make demo`` in small: it trains, checks itself, and leaves a table and a plot."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.tf
@pytest.mark.slow
def test_the_demo_trains_every_row_once_and_plots_falling_losses(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, ROOT / "examples" / "demo.py", "--quick"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=110)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"the demo did not end:\n{process.communicate()[0]}")
    assert process.returncode == 0, output
    assert "each of 512 examples was trained exactly 2 times, 1024 rows" in output
    table = re.findall(r"^ +\d  +(\d+)  +(\d+)  +([\d.]+)  +([\d.]+)  +[\d.]+%$", output, re.M)
    assert len(table) == 2
    assert sum(int(rows) for _, rows, _, _ in table) == 1024
    for batches, _, first, last in table:
        assert int(batches) > 0
        assert int(batches) < 15 or float(last) < float(first)
    assert (tmp_path / "demo-out" / "loss.png").read_bytes().startswith(b"\x89PNG")
