"""A Ray cluster of four raylets on this machine that loses a node, twice, for the tests.

    python ray_cluster.py DIRECTORY EXAMPLE      (in a directory with feeds.py)

First a feed without states is read over four nodes; then the example trains on four nodes.  In the
middle of both a node is killed.  Prints a JSON line for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

import headrace
import headrace_server as hs

PATIENCE_S = 120.0
NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
#: A lost node is noticed after 2 s.
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


def tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def plain(cluster: Cluster, state: Path) -> None:
    """Read a feed over four nodes, of which one is lost."""
    sys.path.insert(0, os.getcwd())
    import feeds

    rows: list[int] = []
    nodes = set()
    with (
        hs.on_ray(
            {"numbers": feeds.numbers()}, servers=4, resources={"CPU": 0.5}, state_dir=state
        ) as servers,
        headrace.connect(servers.address, commit="explicit", timeout=PATIENCE_S) as feed,
    ):
        nodes = {feeds.node_of(actor) for actor in servers._servers}
        directory = ray.get_actor("numbers", namespace="headrace")
        before, _ = ray.get(directory.addresses.remote())
        for number, batch in enumerate(feed):
            rows += batch["x"].tolist()
            batch.commit()
            if number == 30:
                cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        after, _ = ray.get(directory.addresses.remote())
    moved = sum(after[share] != before[share] for share in before)
    tell(event="plain", rows=rows, nodes=len(nodes), moved=moved)


def train(cluster: Cluster, directory: Path, example: str) -> None:
    """Run the example of Ray Train, and lose a node once there is a checkpoint."""
    process = subprocess.Popen(
        [sys.executable, example, "--servers", "4", "--storage", directory],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 2 * PATIENCE_S
    while len([*directory.glob("*/checkpoint_*")]) < 2 and process.poll() is None:
        if time.monotonic() > deadline:  # a loss before would show nothing
            process.kill()
            raise TimeoutError("the example has made no checkpoints")
        time.sleep(0.05)
    cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
    try:
        output, _ = process.communicate(timeout=2 * PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    tell(event="train", code=process.returncode, output=output)


def main(directory: Path, example: str) -> None:
    head = {**NODE, "include_dashboard": False, "_system_config": HEALTH}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(3):
            cluster.add_node(**NODE)
        ray.init(address=cluster.address, runtime_env={"working_dir": "."}, log_to_driver=False)
        plain(cluster, directory / "state")
        cluster.add_node(**NODE)
        train(cluster, directory, example)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
