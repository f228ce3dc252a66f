"""Servers on a Ray cluster of four raylets, and Ray Train with two ranks; nodes are killed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FEEDS = """
import ray
import headrace_server as hs

def doubled(example):
    return {"x": 2 * example["x"]}

def numbers():
    return hs.from_examples([{"x": i} for i in range(240)]).shuffle(seed=7).map(doubled).batch(2)

def node_of(actor):
    return ray.get(actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
"""


@pytest.mark.tools
@pytest.mark.timeout(500)
def test_a_feed_and_ray_train_go_on_when_a_node_is_killed(tmp_path):
    """1. Four servers are on four nodes, and functions travel in the runtime environment.
    2. A node is killed: its share moves, each row comes once.
    3. Two ranks train on four servers; a node is killed after a checkpoint.
    4. Ray Train begins again from it, and each segment is trained once.
    """
    for package in ("ray", "torch", "pandas"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    (tmp_path / "feeds.py").write_text(FEEDS)
    storage = tmp_path / "storage"
    storage.mkdir()
    process = subprocess.Popen(
        [
            *(sys.executable, ROOT / "tests" / "integration" / "ray_cluster.py"),
            *(storage, ROOT / "examples" / "ray_ddp.py"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_DEDUP_LOGS": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=480)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    told = {line["event"]: line for line in lines}
    assert "plain" in told and "train" in told, f"{output[-3000:]}\n{errors[-5000:]}"
    assert sorted(told["plain"]["rows"]) == [2 * i for i in range(240)]
    assert (told["plain"]["nodes"], told["plain"]["moved"]) == (4, 1)
    assert told["train"]["code"] == 0, told["train"]["output"]
    assert "445 segments in" in told["train"]["output"]
    assert "feed 'walks' is taken back to snapshot" in told["train"]["output"]
