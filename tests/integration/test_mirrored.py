"""Two workers of MultiWorkerMirroredStrategy are two ranks of a feed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from tests.patience import TRAINING_PATIENCE_S, eventually
from tests.ports import free_port

from .processes import Process
from .serving import serving, trainers_of

pytestmark = pytest.mark.tf

PROGRAM = Path(__file__).parent / "mirrored_trainer.py"
EPOCHS, UNROLL = 3, 4  # as in the program, which imports TensorFlow


def rows(n: int = 32) -> hs.Pipeline:
    """Return rows of several epochs, without a shape."""
    random = np.random.default_rng(1)
    examples = [
        {"x": random.normal(size=4).astype("float32"), "i": i, "kind": i % 2} for i in range(n)
    ]
    return hs.from_examples(examples).shuffle(seed=2).repeat(EPOCHS, across_batches=False)


def buckets() -> hs.Pipeline:
    return rows(96).bucket("kind", 4, 2)


def segments(**order: str) -> hs.Pipeline:
    random = np.random.default_rng(1)
    examples = [
        {"key": f"e{i}", "x": random.normal(size=(length, 1)).astype("float32")}
        for i, length in enumerate(random.integers(1, 20, 20))
    ]
    source = hs.from_examples(examples).shuffle(seed=2).repeat(EPOCHS, across_batches=False)
    states = {"h": hs.zeros((3,), "float32")}
    return source.batch_sequences_with_states("key", ["x"], [], None, states, UNROLL, 4, **order)


SHAPES: dict[str, Callable[[], hs.Pipeline]] = {
    "rows": lambda: rows().batch(4),
    "buckets": buckets,
    "segments": segments,
    "lanes": lambda: segments(order="lanes"),
}


@contextlib.contextmanager
def workers(server: hs.Server, loop: str, *more: str) -> Iterator[list[Process]]:
    """Start two workers; they are killed at the end, where they have not ended."""
    ports = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Process(
                    *(str(PROGRAM), server.address, "default", loop, *more),
                    imports=["tensorflow", "keras"],
                    TF_CONFIG=json.dumps(
                        {"cluster": {"worker": ports}, "task": {"type": "worker", "index": rank}}
                    ),
                )
            )
            for rank in range(2)
        ]


def trained(server: hs.Server, loop: str) -> list[dict[str, Any]]:
    """Return the reports of two workers at their end."""
    with workers(server, loop) as both:
        said = [worker.wait_for("trained", TRAINING_PATIENCE_S) for worker in both]
        assert [worker.finish() for worker in both] == [0, 0]
    return said


def rounds(shape: str, step: Callable[[int, Any, Any, Any], Any]) -> None:
    """Take the batches of both ranks as one: ``step(epoch, mask, data, states)``, and save."""
    import tensorflow as tf

    import headrace

    with serving(SHAPES[shape](), partitions=2) as server, contextlib.ExitStack() as stack:
        feeds = [
            stack.enter_context(
                headrace.connect(server.address, framework="tf", rank=rank, world_size=2)
            )
            for rank in range(2)
        ]
        for epoch in range(EPOCHS):
            for pair in zip(*feeds, strict=True):
                parts = zip(
                    *(
                        (
                            tf.sequence_mask(batch.length, UNROLL, tf.float32),
                            batch.sequences["x"],
                            batch.state("h"),
                        )
                        for batch in pair
                    ),
                    strict=True,
                )
                new = step(epoch, *(tf.concat(one, 0) for one in parts))
                for batch, saved in zip(pair, tf.split(new["h"], 2), strict=True):
                    batch.save_state("h", saved)


def network() -> Any:
    """Return the network of ``stateful``, with the same weights."""
    import keras

    keras.utils.set_random_seed(5)
    x, h = keras.Input((UNROLL, 1)), keras.Input((3,))
    steps, after = keras.layers.GRU(3, return_sequences=True, return_state=True)(x, h)
    return keras.Model((x, {"h": h}), (keras.layers.Dense(1)(steps), {"h": after}))


def trained_together(shape: str) -> list[np.ndarray]:
    """Return the weights of ``segments_in_fit``, trained on both batches of each round as one."""
    import keras
    import tensorflow as tf

    net, optimizer = network(), keras.optimizers.SGD(0.01)
    weights = net.trainable_variables

    def step(epoch: int, mask: Any, data: Any, states: Any) -> Any:
        with tf.GradientTape() as tape:
            out, new = net((data, {"h": states}))
            errors = tf.square(out - data)[..., 0] * mask
            loss = tf.reduce_sum(errors) / tf.reduce_sum(mask)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return new

    rounds(shape, step)
    return list(net.get_weights())


def evaluated_together(shape: str) -> list[np.ndarray]:
    """Return loss and mean absolute error of each epoch: the means over its rounds."""
    net = network()
    found: list[list[list[float]]] = [[] for _ in range(EPOCHS)]

    def step(epoch: int, mask: Any, data: Any, states: Any) -> Any:
        out, new = net((data, {"h": states}))
        real = (out - data).numpy()[..., 0][mask.numpy() > 0]
        found[epoch].append([float(np.mean(real**2)), float(np.mean(np.abs(real)))])
        return new

    rounds(shape, step)
    return [np.mean(epoch, axis=0) for epoch in found]


@pytest.mark.parametrize(
    ("shape", "loop"),
    [
        ("segments", "segments"),
        pytest.param("segments", "segments_in_graph", marks=pytest.mark.tools),
        pytest.param("segments", "segments_in_fit", marks=pytest.mark.tools),
        pytest.param("lanes", "segments_in_fit", marks=pytest.mark.tools),
        pytest.param("segments", "segments_in_evaluate", marks=pytest.mark.tools),
        pytest.param("lanes", "segments_in_evaluate", marks=pytest.mark.tools),
        pytest.param("segments", "segments_in_fit_of_keras_2", marks=pytest.mark.tools),
        pytest.param("lanes", "segments", marks=pytest.mark.tools),
        pytest.param("rows", "loop", marks=pytest.mark.tools),
        pytest.param("buckets", "loop", marks=pytest.mark.tools),
    ],
)
def test_two_workers_take_equal_steps_and_end_with_equal_weights(shape: str, loop: str) -> None:
    pytest.importorskip("tensorflow")
    if loop.endswith("keras_2") and find_spec("tf_keras") is None:
        pytest.skip("tf_keras is not installed")
    with serving(SHAPES[shape](), partitions=2) as server:
        first, second = trained(server, loop)
    assert first["steps"] == second["steps"] and len(first["steps"]) == EPOCHS
    assert min(first["steps"]) > 2
    assert first["weights"] == second["weights"]
    together = {"segments_in_fit": trained_together, "segments_in_evaluate": evaluated_together}
    if loop in together:
        wanted_all = together[loop](shape)
        for weight, wanted in zip(first["weights"], wanted_all, strict=False):  # then its history
            np.testing.assert_allclose(
                np.frombuffer(bytes.fromhex(weight), np.float32), wanted.ravel(), atol=1e-5
            )
    both = [*first["trained"], *second["trained"]]
    if loop.startswith("segments"):  # each of every epoch, once
        assert len(both) == EPOCHS * len(set(both))
    else:
        assert max(both.count(row) for row in both) <= EPOCHS
        assert len(both) == 2 * 4 * sum(first["steps"])


@pytest.mark.tools
@pytest.mark.parametrize("shape", ["segments", "lanes"])
def test_a_killed_job_goes_on_and_every_segment_is_trained_once(shape: str) -> None:
    """1. One worker dies with a batch in hand, and the other one is in the same step.
    2. Whatever runs the job kills the other one, too: TensorFlow would wait for minutes.
    3. Both begin again, and go on in step where the feed is.
    """
    pytest.importorskip("tensorflow")
    with serving(SHAPES[shape](), partitions=2) as server:
        with workers(server, "segments", "4") as (lives, dies):
            dies.wait_for("holding", TRAINING_PATIENCE_S)
            dies.kill()
            lives.kill()
        eventually(lambda: not trainers_of(server))
        before = server.stats()["default"]["rows"]
        first, second = trained(server, "segments")
        after = server.stats()["default"]["rows"]
    assert first["steps"] == second["steps"] and min(first["steps"]) > 2
    assert first["weights"] == second["weights"]
    both = [*first["trained"], *second["trained"]]
    assert 0 < before < after == EPOCHS * len(set(both)) == before + len(both)
