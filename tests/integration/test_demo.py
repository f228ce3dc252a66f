"""``make demo`` in small: it trains, checks itself, and leaves a table and a plot."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: The loss of a guess among the demo's symbols.
CHANCE = 1.386


@pytest.mark.tf
@pytest.mark.slow
def test_the_demo_trains_every_segment_once_and_only_a_carried_state_makes_the_loss_fall(tmp_path):
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
    told = re.findall(r"state (\w+), each of (\d+) segments was trained exactly 4 times", output)
    assert [mode for mode, _ in told] == ["carried", "forgotten"]
    assert told[0][1] == told[1][1]
    row = r"^(carried|forgotten) +(\d)  +(\d+)  +(\d+)  +([\d.]+)  +([\d.]+)  +[\d.]+%$"
    table = re.findall(row, output, re.M)
    assert [(mode, number) for mode, number, *_ in table] == [
        ("carried", "0"),
        ("carried", "1"),
        ("forgotten", "0"),
        ("forgotten", "1"),
    ]
    for mode, count in told:
        assert sum(int(row[3]) for row in table if row[0] == mode) == 4 * int(count)
    for mode, _, batches, _, first, last in table:
        assert float(first) > CHANCE / 2
        if mode == "forgotten":
            assert abs(float(last) - CHANCE) < 0.25
        elif int(batches) > 300:  # a trainer that joined late may have learnt nothing yet
            assert float(last) < CHANCE / 5
    assert any(int(row[2]) > 300 for row in table if row[0] == "carried")
    assert (tmp_path / "demo-out" / "loss.png").read_bytes().startswith(b"\x89PNG")
