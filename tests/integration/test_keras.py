"""Keras' fit trains a model with states, and every state meets its own sequence.

The network here adds up its inputs, and the examples bring the sums: a loss of exactly 0 shows
that no state was ever another's, and padding, which has no sums, was never counted.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import headrace
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


def sums(n: int = 40, batch_size: int = 8, **options: Any) -> hs.Pipeline:
    random = np.random.default_rng(3)
    examples = []
    for number in range(n):
        x = random.integers(-5, 6, (int(random.integers(1, 30)), 1)).astype(np.float32)
        total = np.cumsum(x, axis=0, dtype=np.float32)
        steps = np.arange(1, len(x) + 1, dtype=np.int32)
        examples.append({"key": f"e{number}", "x": x, "sum": total, "steps": steps})
    states = {"count": hs.zeros((), "int32"), "sum": hs.zeros((1,), "float32")}
    return hs.from_examples(examples).batch_sequences_with_states(
        "key", ["x", "sum", "steps"], [], None, states, UNROLL, batch_size, **options
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


def rows_of_sums() -> int:
    random = np.random.default_rng(3)
    rows = 0
    for _ in range(40):
        length = int(random.integers(1, 30))
        random.integers(-5, 6, (length, 1))
        rows += -(-length // UNROLL)
    return rows


@pytest.mark.parametrize(
    ("how", "way"),
    [
        *((how, "shared memory") for how in ("plain", "prefetched", "steps at once", "eager")),
        ("plain", "tcp"),
    ],
    indirect=["way"],
)
def test_fit_trains_on_every_segment_with_the_state_that_is_its_own(
    stateful: Any, way: str, how: str
) -> None:
    options = {"steps at once": {"steps_per_execution": 3}, "eager": {"run_eagerly": True}}
    model = compiled(stateful, adding(), **options.get(how, {}))
    watch = largest_loss()
    with serving(sums()) as server:
        with connect(server, framework="tf") as feed:
            data = stateful.batches(feed, split)
            if how == "prefetched":
                data = data.prefetch(3)
            history = model.fit(data, shuffle=False, verbose=0, callbacks=[watch])
        batches, rows = served(server)
    assert history.history["loss"] == [0.0] and watch.loss == 0.0
    assert rows == rows_of_sums()
    assert watch.batches == (batches if how != "steps at once" else -(-batches // 3))


def test_a_state_that_is_lost_would_show(stateful: Any) -> None:
    """The loss of these tests is 0 because of the states, and not by chance."""
    import keras

    class Forgetting(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.adding = adding()

        def call(self, inputs: Any) -> Any:
            outputs, states = self.adding(inputs)
            return outputs, {**states, "sum": states["sum"] * 0}

    model = compiled(stateful, Forgetting())
    with serving(sums()) as server, connect(server, framework="tf") as feed:
        history = model.fit(stateful.batches(feed, split), shuffle=False, verbose=0)
    assert history.history["loss"][0] > 1


def test_fits_of_some_steps_evaluation_and_prediction_take_turns_on_one_feed(
    stateful: Any,
) -> None:
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
        assert served(server)[1] == rows_of_sums()


def test_a_feed_is_validated_on_while_another_is_trained_on(stateful: Any) -> None:
    model = compiled(stateful, adding())
    with serving({"train": sums(), "test": sums(12)}) as server:
        with (
            headrace.connect(
                server.address, feed="train", framework="tf", timeout=PATIENCE_S
            ) as train,
            headrace.connect(
                server.address, feed="test", framework="tf", timeout=PATIENCE_S
            ) as test,
        ):
            history = model.fit(
                stateful.batches(train, split),
                validation_data=stateful.batches(test, split),
                shuffle=False,
                verbose=0,
            )
        server.wait(PATIENCE_S)
    assert history.history["loss"] == history.history["val_loss"] == [0.0]


def by_hand(tf: Any, network: Any, address: str) -> list[float]:
    """Losses of a loop without Keras' fit, and training by it."""
    losses = []
    with headrace.connect(address, framework="tf", prefetch=0, timeout=PATIENCE_S) as feed:
        for batch in feed:
            states = {name: batch.state(name) for name in feed.states}
            with tf.GradientTape() as tape:
                outputs, states = network((batch.sequences["x"], states))
                mask = tf.sequence_mask(batch.length, UNROLL, tf.float32)
                errors = tf.square(outputs - batch.sequences["sum"])[:, :, 0] * mask
                loss = tf.reduce_sum(errors) / tf.reduce_sum(mask)
            for weight, slope in zip(
                network.trainable_weights,
                tape.gradient(loss, network.trainable_weights),
                strict=True,
            ):
                weight.assign_sub(0.01 * slope)
            for name, value in states.items():
                batch.save_state(name, value)
            losses.append(float(loss))
    return losses


def recurrent(dtype: str | None = None) -> Any:
    import keras

    x, h, count = keras.Input((UNROLL, 1)), keras.Input((1,)), keras.Input((), dtype="int32")
    gru = keras.layers.GRU(1, return_sequences=True, return_state=True, dtype=dtype)
    steps, after = gru(x, initial_state=h)
    return keras.Model(
        (x, {"sum": h, "count": count}), (steps, {"sum": after, "count": count + UNROLL})
    )


def test_fit_learns_what_a_loop_by_hand_learns(tf: Any, stateful: Any) -> None:
    import keras

    keras.utils.set_random_seed(1)
    network, twin = recurrent(), recurrent()
    twin.set_weights(network.get_weights())
    model = compiled(stateful, network, optimizer=keras.optimizers.SGD(0.01))
    losses: list[float] = []

    class Each(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            losses.append(logs["loss"])
            model.reset_metrics()

    with serving(sums()) as server, connect(server, framework="tf", prefetch=0) as feed:
        model.fit(stateful.batches(feed, split), shuffle=False, verbose=0, callbacks=[Each()])
    with serving(sums()) as server:
        wanted = by_hand(tf, twin, server.address)
    assert len(losses) == len(wanted) > 10
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    for mine, other in zip(network.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


def test_mixed_precision_saves_states_in_the_dtype_they_are_declared_in(stateful: Any) -> None:
    import keras

    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled(stateful, recurrent(), optimizer=keras.optimizers.SGD(0.01))
    finally:
        keras.config.set_dtype_policy("float32")
    assert type(model.optimizer).__name__ == "LossScaleOptimizer"
    seen: list[Any] = []

    def looked_at(batch: Any) -> Any:
        seen.append(batch["state"]["sum"].dtype.name)
        return split(batch)

    with serving(sums()) as server:
        with connect(server, framework="tf") as feed:
            history = model.fit(stateful.batches(feed, looked_at), shuffle=False, verbose=0)
        assert served(server)[1] == rows_of_sums()
    assert np.isfinite(history.history["loss"][0]) and seen == ["float32"]


def test_a_model_is_saved_and_loaded_with_its_network(stateful: Any, tmp_path: Any) -> None:
    import keras

    model = compiled(stateful, recurrent())
    with serving(sums()) as server, connect(server, framework="tf") as feed:
        checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "model.keras")
        model.fit(stateful.batches(feed, split), shuffle=False, verbose=0, callbacks=[checkpoint])
    known = {"StatefulModel": stateful.StatefulModel}
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects=known)
    for mine, other in zip(loaded.network.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(mine, other)


def test_several_outputs_are_masked_alike(stateful: Any) -> None:
    import keras

    class Two(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.adding = adding()

        def call(self, inputs: Any) -> Any:
            outputs, states = self.adding(inputs)
            return {"a": outputs, "b": -outputs}, states

    def both(batch: Any) -> Any:
        x, y = split(batch)
        return x, {"a": y, "b": -y}

    model = compiled(stateful, Two(), loss={"a": "mse", "b": "mae"})
    with serving(sums()) as server, connect(server, framework="tf") as feed:
        history = model.fit(stateful.batches(feed, both), shuffle=False, verbose=0)
    assert history.history["loss"] == [0.0]


def test_outputs_of_whole_segments_bring_their_weights(tf: Any, stateful: Any) -> None:
    """The network has an output at the end of each sequence only: the sum of its steps."""
    import keras

    class Ends(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.adding = adding()

        def call(self, inputs: Any) -> Any:
            _, states = self.adding(inputs)
            return states["sum"], states

    def ends(batch: Any) -> Any:
        y = tf.reduce_sum(batch["sequences"]["x"], axis=1) + batch["state"]["sum"]
        return batch["sequences"]["x"], tf.where(batch["last"][:, None], y, -1e9), batch["last"]

    with serving(sums()) as server, connect(server, framework="tf") as feed:
        data = stateful.batches(feed, split).take(1)
        with pytest.raises(ValueError, match=r"is not of every step, \[batch, 4, …\]: padding can"):
            compiled(stateful, Ends()).fit(data, shuffle=False, verbose=0)
    with serving(sums()) as server, connect(server, framework="tf") as feed:
        model = compiled(stateful, Ends())
        history = model.fit(stateful.batches(feed, ends), shuffle=False, verbose=0)
    assert history.history["loss"] == [0.0]


class _Wrong:
    """Networks that return something else than outputs and states."""

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def __call__(self, inputs: Any, training: Any = None) -> Any:
        x, states = inputs
        return self.returned(x, states)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (lambda x, states: x, r"the network must return \(outputs, states\), not"),
        (lambda x, states: (x, states["sum"]), r"new states as a dict of \['count', 'sum'\], not"),
        (lambda x, states: (x, {"sum": states["sum"]}), r"\['count', 'sum'\], not \['sum'\]"),
    ],
)
def test_a_network_that_returns_no_states_is_told_what_is_wanted(
    stateful: Any, returned: Any, text: str
) -> None:
    with serving(sums()) as server, connect(server, framework="tf") as feed:
        data = stateful.batches(feed, split)
        with pytest.raises(ValueError, match=text):
            compiled(stateful, _Wrong(returned)).evaluate(data, verbose=0)


def test_a_state_of_a_wrong_shape_stops_the_fit_with_the_text_of_the_feed(
    tf: Any, stateful: Any
) -> None:
    def wide(x: Any, states: Any) -> Any:
        return x, {**states, "sum": tf.tile(states["sum"], [1, 2])}

    with serving(sums()) as server, connect(server, framework="tf") as feed:
        data = stateful.batches(feed, split)
        with pytest.raises(tf.errors.OpError, match=r"got float32\[8, 2\], wanted float32\[8, 1\]"):
            compiled(stateful, _Wrong(wide)).evaluate(data, verbose=0)


def test_what_can_not_work_is_refused_with_the_remedy(tf: Any, stateful: Any) -> None:
    feeds = {
        "plain": hs.from_examples([{"x": 1.0}] * 8).batch(4),
        "kept": sums(order="lanes", state_placement="trainer"),
        "sums": sums(),
    }
    with serving(feeds) as server:

        def connected(name: str) -> Any:
            return connect(server, feed=name, framework="tf")

        with (
            connected("plain") as feed,
            pytest.raises(ValueError, match=r"'plain' has no states; use feed.as_dataset\(\)"),
        ):
            stateful.batches(feed, split)
        with (
            connected("kept") as feed,
            pytest.raises(ValueError, match="or iterate over the feed"),
        ):
            stateful.batches(feed, split)
        with connected("sums") as feed:
            with pytest.raises(ValueError, match=r"must return \(x, y\) or \(x, y, weights\)"):
                stateful.batches(feed, lambda batch: batch["sequences"]["x"])
            model = compiled(stateful, adding())
            with pytest.raises(ValueError, match=r"needs the dataset of headrace.keras.batches"):
                model.fit(feed.as_dataset().map(split), shuffle=False, verbose=0)


def test_replicas_of_one_process_are_refused(
    tf: Any, stateful: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = SimpleNamespace(num_replicas_in_sync=2)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: two)
    with pytest.raises(ValueError, match="2 replicas would tear batches from their states; start"):
        stateful.StatefulModel(adding())


def test_a_network_of_keras_2_is_refused(stateful: Any) -> None:
    tf_keras = pytest.importorskip("tf_keras")
    with pytest.raises(TypeError, match=r"is of Keras 2, and its weights would not be trained"):
        stateful.StatefulModel(tf_keras.Sequential([tf_keras.layers.Dense(1)]))


def test_xla_is_left_out_also_where_the_network_could_be_compiled(stateful: Any) -> None:
    assert not compiled(stateful, adding()).jit_compile
    with pytest.warns(UserWarning, match="Proceeding with `jit_compile=False`"):
        compiled(stateful, adding(), jit_compile=True)


def test_keras_on_another_backend_is_refused(
    stateful: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib
    import sys

    import keras

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.delitem(sys.modules, "headrace.keras")
    with pytest.raises(ImportError, match="Keras is set to 'jax': set KERAS_BACKEND=tensorflow"):
        importlib.import_module("headrace.keras")
