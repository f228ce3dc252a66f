"""Two workers of MultiWorkerMirroredStrategy are two ranks of a feed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from tests.nursery import warm_run
from tests.ports import free_port

from .serving import serving

pytestmark = pytest.mark.tf

PROGRAM = Path(__file__).parent / "mirrored_trainer.py"
EPOCHS, UNROLL = 3, 4  # as in the program, which imports TensorFlow


def rows(n: int = 32) -> hs.Pipeline:
    random = np.random.default_rng(1)
    examples = [{"x": random.normal(size=4).astype("float32"), "i": i} for i in range(n)]
    return hs.from_examples(examples).shuffle(seed=2).repeat(EPOCHS, across_batches=False).batch(4)


def segments() -> hs.Pipeline:
    random = np.random.default_rng(1)
    examples = [
        {"key": f"e{i}", "x": random.normal(size=(length, 1)).astype("float32")}
        for i, length in enumerate(random.integers(1, 20, 20))
    ]
    source = hs.from_examples(examples).shuffle(seed=2).repeat(EPOCHS, across_batches=False)
    states = {"h": hs.zeros((3,), "float32")}
    return source.batch_sequences_with_states("key", ["x"], [], None, states, UNROLL, 4)


def trained(pipeline: hs.Pipeline, loop: str) -> list[dict[str, Any]]:
    """Return the reports of two workers at their end."""
    workers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with serving(pipeline, partitions=2) as server, ThreadPoolExecutor(2) as pool:

        def worker(rank: int) -> dict[str, Any]:
            task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            done = warm_run(
                *(PROGRAM, server.address, "default", loop),
                imports=["tensorflow", "keras"],
                TF_CONFIG=json.dumps(task),
            )
            assert done.returncode == 0, done.stderr[-3000:]
            told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return told

        return list(pool.map(worker, (0, 1)))


@pytest.mark.parametrize(
    ("shape", "loop"),
    [
        ("segments", "segments"),
        pytest.param("segments", "segments_in_graph", marks=pytest.mark.tools),
        pytest.param("segments", "segments_in_fit", marks=pytest.mark.tools),
        pytest.param("rows", "loop", marks=pytest.mark.tools),
    ],
)
def test_two_workers_take_equal_steps_and_end_with_equal_weights(shape: str, loop: str) -> None:
    pytest.importorskip("tensorflow")
    if loop == "segments_in_fit" and find_spec("tf_keras") is None:
        pytest.skip("tf_keras is not installed")
    pipeline = {"rows": rows, "segments": segments}[shape]()
    first, second = trained(pipeline, loop)
    assert first["steps"] == second["steps"] and len(first["steps"]) == EPOCHS
    assert min(first["steps"]) > 2
    assert first["weights"] == second["weights"]
    both = [*first["trained"], *second["trained"]]
    if shape == "segments":  # each of every epoch, once
        assert len(both) == EPOCHS * len(set(both))
    else:
        assert max(both.count(row) for row in both) <= EPOCHS
        assert len(both) == 2 * 4 * sum(first["steps"])
