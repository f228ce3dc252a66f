"""Keras' fit trains a model with states, and every state meets its own sequence.

The network here adds up its inputs, and the examples bring the sums: a loss of exactly 0 shows
that no state was ever another's, and padding, which has no sums, was never counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from tests.patience import PATIENCE_S

from .serving import connect, serving

pytestmark = [
    pytest.mark.tf,
    # Keras warns so whenever a dataset of unknown size ends.
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
]

UNROLL = 4


@pytest.fixture(scope="module")
def stateful() -> Any:
    """Return ``headrace.keras`` with the networks of these tests, which import Keras."""
    pytest.importorskip("tensorflow")
    import headrace.keras

    return headrace.keras


LENGTHS = np.random.default_rng(3).integers(1, 30, 40).tolist()
ROWS = sum(-(-length // UNROLL) for length in LENGTHS)


def sums(**options: Any) -> hs.Pipeline:
    random = np.random.default_rng(4)
    examples = []
    for number, length in enumerate(LENGTHS):
        x = random.integers(-5, 6, (length, 1)).astype(np.float32)
        total = np.cumsum(x, axis=0, dtype=np.float32)
        steps = np.arange(1, len(x) + 1, dtype=np.int32)
        examples.append({"key": f"e{number}", "x": x, "sum": total, "steps": steps})
    states = {"count": hs.zeros((), "int32"), "sum": hs.zeros((1,), "float32")}
    return hs.from_examples(examples).batch_sequences_with_states(
        "key", ["x", "sum", "steps"], [], None, states, UNROLL, 8, **options
    )


def adding() -> Any:
    """A layer of one weight, 1, that adds its inputs to a sum and counts its steps."""
    import keras

    class Adding(keras.layers.Layer):
        def build(self, shapes: Any) -> None:
            self.one = self.add_weight(shape=(), initializer="ones")

        def call(self, inputs: Any) -> Any:
            x, states = inputs
            outputs = states["sum"][:, None] + keras.ops.cumsum(x, axis=1) * self.one
            counts = states["count"] + keras.ops.shape(x)[1]
            return outputs, {"sum": outputs[:, -1], "count": counts}

    return Adding()


def split(batch: Any) -> Any:
    return batch["sequences"]["x"], batch["sequences"]["sum"]


def compiled(stateful: Any, network: Any, **options: Any) -> Any:
    import keras

    model = stateful.StatefulModel(network)
    options = {"optimizer": keras.optimizers.SGD(0.0), "loss": "mse", **options}
    model.compile(**options)
    return model


def largest_loss() -> Any:
    """A callback that keeps the largest loss of any epoch, and counts batches."""
    import keras

    class Largest(keras.callbacks.Callback):
        loss, batches = 0.0, 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.batches += 1
            self.loss = max(self.loss, logs["loss"])

    return Largest()


def served(server: Any) -> tuple[int, int]:
    server.wait(PATIENCE_S)
    stats = server.stats()["default"]
    return stats["batches"], stats["rows"]


@pytest.mark.parametrize(
    ("how", "way"),
    [
        *((how, "shared memory") for how in ("plain", "prefetched", "steps at once", "eager")),
        ("plain", "tcp"),
    ],
    indirect=["way"],
)
def test_fit_trains_on_every_segment_with_the_state_that_is_its_own(stateful, way, how):
    options = {"steps at once": {"steps_per_execution": 3}, "eager": {"run_eagerly": True}}
    model = compiled(stateful, adding(), **options.get(how, {}))
    watch = largest_loss()
    with serving(sums()) as server:
        with connect(server, framework="tf") as feed:
            data = stateful.batches(feed, split)
            if how == "prefetched":
                data = data.prefetch(3)
            callbacks = [watch, stateful.LogFeed(feed)]
            history = model.fit(data, shuffle=False, verbose=0, callbacks=callbacks)
        batches, rows = served(server)
    assert history.history["loss"] == [0.0] and watch.loss == 0.0
    assert history.history["feed/rows_per_s"][0] > 0
    assert 0 < history.history["feed/padding"][0] < 1
    assert rows == ROWS
    assert watch.batches == (batches if how != "steps at once" else -(-batches // 3))


def test_fits_of_some_steps_evaluation_and_prediction_take_turns_on_one_feed(stateful):
    """None of them takes a batch that it does not save: the last fit reaches the end."""
    model = compiled(stateful, adding(), weighted_metrics=["mae"])
    with serving(sums()) as server:
        with connect(server, framework="tf") as feed:
            data = stateful.batches(feed, split)
            history = model.fit(data, steps_per_epoch=3, epochs=2, shuffle=False, verbose=0)
            assert history.history["loss"] == [0.0, 0.0]
            assert model.evaluate(data, steps=2, verbose=0) == [0.0, 0.0]
            only_x = stateful.batches(feed, lambda batch: (batch["sequences"]["x"],))
            assert model.predict(only_x, steps=2, verbose=0).shape == (16, UNROLL, 1)
            history = model.fit(
                stateful.batches(feed, split), shuffle=False, verbose=0, validation_freq=1
            )
            assert history.history["loss"] == history.history["mae"] == [0.0]
        assert served(server)[1] == ROWS


class _Wrong:
    """Networks that return something else than outputs and states."""

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def __call__(self, inputs: Any, training: Any = None) -> Any:
        x, states = inputs
        return self.returned(x, states)


def test_a_state_of_a_wrong_shape_stops_the_fit_with_the_text_of_the_feed(tf, stateful):
    def wide(x: Any, states: Any) -> Any:
        return x, {**states, "sum": tf.tile(states["sum"], [1, 2])}

    with serving(sums()) as server, connect(server, framework="tf") as feed:
        data = stateful.batches(feed, split)
        with pytest.raises(tf.errors.OpError, match=r"got float32\[8, 2\], wanted float32\[8, 1\]"):
            compiled(stateful, _Wrong(wide)).evaluate(data, verbose=0)
