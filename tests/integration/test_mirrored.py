"""Two workers of MultiWorkerMirroredStrategy are two ranks of a feed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from tests.patience import TRAINING_PATIENCE_S, eventually
from tests.ports import free_port

from .processes import Process
from .serving import serving, trainers_of

pytestmark = [pytest.mark.tf, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "mirrored_trainer.py"
EPOCHS, UNROLL = 3, 4  # as in the program, which imports TensorFlow


def segments(**order: str) -> hs.Pipeline:
    random = np.random.default_rng(1)
    examples = [
        {"key": f"e{i}", "x": random.normal(size=(length, 1)).astype("float32")}
        for i, length in enumerate(random.integers(1, 20, 20))
    ]
    source = hs.from_examples(examples).shuffle(seed=2).repeat(EPOCHS, across_batches=False)
    states = {"h": hs.zeros((3,), "float32")}
    return source.batch_sequences_with_states("key", ["x"], [], None, states, UNROLL, 4, **order)


@contextlib.contextmanager
def workers(server: hs.Server, *more: str) -> Iterator[list[Process]]:
    """Start two workers; they are killed at the end, where they have not ended."""
    ports = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Process(
                    *(str(PROGRAM), server.address, "default", *more),
                    imports=["tensorflow", "keras"],
                    TF_CONFIG=json.dumps(
                        {"cluster": {"worker": ports}, "task": {"type": "worker", "index": rank}}
                    ),
                )
            )
            for rank in range(2)
        ]


def trained(server: hs.Server) -> list[dict[str, Any]]:
    """Return the reports of two workers at their end.

    If one ends early, its output is the error: the other would wait for it for minutes.
    """
    with workers(server) as both, ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(worker.wait_for, "trained", TRAINING_PATIENCE_S) for worker in both]
        for end in as_completed(ends):
            if end.exception() is not None:
                for worker in both:
                    worker.kill()
            end.result()
        assert [worker.finish() for worker in both] == [0, 0]
    return [end.result() for end in ends]


def test_two_workers_take_equal_steps_and_end_with_equal_weights():
    pytest.importorskip("tensorflow")
    with serving(segments(), partitions=2) as server:
        first, second = trained(server)
    assert first["steps"] == second["steps"] and len(first["steps"]) == EPOCHS
    assert min(first["steps"]) > 2
    assert first["weights"] == second["weights"]
    both = [*first["trained"], *second["trained"]]
    assert len(both) == EPOCHS * len(set(both))  # each of every epoch, once


@pytest.mark.tools
def test_a_killed_job_goes_on_and_every_segment_is_trained_once():
    """1. One worker dies with a batch in hand, and the other one is in the same step.
    2. Whatever runs the job kills the other one, too: TensorFlow would wait for minutes.
    3. Both begin again, and go on in step where the feed is.
    """
    pytest.importorskip("tensorflow")
    with serving(segments(order="lanes"), partitions=2) as server:
        with workers(server, "4") as (lives, dies):
            dies.wait_for("holding", TRAINING_PATIENCE_S)
            dies.kill()
            lives.kill()
        eventually(lambda: not trainers_of(server))
        before = server.stats()["default"]["rows"]
        first, second = trained(server)
        after = server.stats()["default"]["rows"]
    assert first["steps"] == second["steps"] and min(first["steps"]) > 2
    assert first["weights"] == second["weights"]
    both = [*first["trained"], *second["trained"]]
    assert 0 < before < after == EPOCHS * len(set(both)) == before + len(both)
