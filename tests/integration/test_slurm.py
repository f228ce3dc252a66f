"""The script for Slurm, run by stand-ins of its commands: two nodes, one host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.ports import free_port

SCRIPT = Path(__file__).resolve().parents[2] / "packaging" / "slurm" / "train.sbatch"

FEEDS = """
import headrace_server as hs

def numbers():
    return hs.from_examples([{"x": i} for i in range(32)]).batch(2)
"""
TRAIN = """
import json, os, sys
import headrace

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with headrace.connect(os.environ["HEADRACE_ADDRESS"], rank=rank, world_size=world) as feed:
    rows = [batch["x"].tolist() for batch in feed]
line = json.dumps({"rank": rank, "arguments": sys.argv[1:], "rows": rows}) + "\\n"
print(line, end="", flush=True)  # in one write: both trainers have one pipe
"""
#: A task for each node, with what differs from node to node; a signal goes to all of them.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do
    SLURM_NODEID=$node HEADRACE_BIND=tcp://127.0.0.$((node + 1)):$HEADRACE_PORT "$@" &
done
trap 'kill $(jobs -p)' TERM
for task in $(jobs -p); do
    until wait "$task"; do kill -0 "$task" 2>/dev/null || exit 1; done
done
"""
SCONTROL = """#!/bin/bash
[[ "$*" == "show hostnames two-nodes" ]] && printf '127.0.0.%s\\n' 1 2
"""
TORCHRUN = """#!/bin/bash
while [[ $1 == --* ]]; do
    [[ $1 == --node-rank ]] && export RANK=$2
    [[ $1 == --nnodes ]] && export WORLD_SIZE=$2
    shift 2
done
exec "$PYTHON" "$@"
"""


@pytest.mark.tools
def test_a_job_has_a_server_and_a_trainer_on_each_node_and_ends_with_its_trainers(tmp_path):
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("torchrun", TORCHRUN)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    (tmp_path / "feeds.py").write_text(FEEDS)
    (tmp_path / "train.py").write_text(TRAIN)
    headrace = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{commands}:{headrace}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "two-nodes",
        "SLURM_NNODES": "2",
        "HEADRACE_PORT": str(free_port()),
        "HEADRACE_PARTITIONS": "4",
        "HEADRACE_WORKERS": "1",
    }
    bash = shutil.which("bash")
    assert bash is not None

    def run_job() -> list[dict[str, Any]]:
        job = subprocess.run(
            [bash, SCRIPT, "feeds.py:numbers", "train.py", "--epochs", "3"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert job.returncode == 0, job.stderr
        return [json.loads(line) for line in job.stdout.splitlines() if line.startswith("{")]

    keys = tmp_path / "headrace-7" / "keys"
    keys.mkdir(parents=True)
    (keys / "server.secret").touch()  # of a job that was killed while it made keys
    told = run_job()
    assert sorted(one["rank"] for one in told) == [0, 1]
    assert all(one["arguments"] == ["--epochs", "3"] for one in told)
    assert len(told[0]["rows"]) == len(told[1]["rows"]) == 8
    assert sorted(x for one in told for row in one["rows"] for x in row) == [*range(32)]
    assert (tmp_path / "headrace-7" / "state-1").is_dir()
    assert (keys / "server.secret").stat().st_mode & 0o77 == 0
    # Requeued, it has the same number, keys and states: all is trained already.
    made = {path: path.read_bytes() for path in keys.rglob("*.secret")}
    assert [told["rows"] for told in run_job()] == [[], []]
    assert {path: path.read_bytes() for path in keys.rglob("*.secret")} == made
