"""Keras: a model with states, trained by ``fit`` on a feed of segments.

    feed ──► batches(feed, split) ──► ticket, x, y ──► network((x, states)) ──► outputs, states
      ▲                                  token, states, …      │ loss, gradients         │
      └──── save_states(token, states) ◄───────────────────────┴─────────────────────────┘

The graph that trained on a batch saves its new states, with the token that came along with its
rows: however far TensorFlow fetches ahead, states meet their own sequences.  It saves them when the
gradients are there.

    x, h = keras.Input((20, 8)), keras.Input((32,))
    steps, after = keras.layers.GRU(32, return_sequences=True, return_state=True)(x, h)
    network = keras.Model((x, {"h": h}), (keras.layers.Dense(1)(steps), {"h": after}))

    model = headrace.keras.StatefulModel(network)
    model.compile("adam", "mse", weighted_metrics=["mae"])
    with headrace.connect(address, framework="tf") as feed:
        split = lambda batch: (batch["sequences"]["x"], batch["sequences"]["y"])
        model.fit(headrace.keras.batches(feed, split), shuffle=False)

A fit without ``steps_per_epoch`` ends with the feed, and Keras warns that its input ran out.
Padding has no weight: a loss is the mean over steps that are data, and so are ``weighted_metrics``
(Keras gives ``metrics`` no weights).  ``evaluate`` and ``predict`` work alike, and save states too:
without them no sequence goes on.  An error of the feed comes as one of ``tf.errors`` with its text.
States that stay with the trainer are for a loop of one's own: TensorFlow fetches ahead of saves.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

try:
    import keras
    import tensorflow as tf
except ImportError as error:
    raise ImportError("headrace.keras needs TensorFlow: pip install tensorflow") from error

from .feed import Feed

__all__ = ["CommitTrained", "LogFeed", "StatefulModel", "batches"]

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"headrace.keras trains with TensorFlow, and Keras is set to {keras.backend.backend()!r}: "
        "set KERAS_BACKEND=tensorflow, or train in a loop of your own"
    )

#: Feeds by the number that their elements bear: a graph holds tensors only.
_FEEDS: weakref.WeakValueDictionary[int, Feed] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count(1)


def batches(feed: Feed, split: Callable[[dict[str, Any]], tuple[Any, ...]]) -> Any:
    """Return the rest of a feed as a dataset for a ``StatefulModel``.

    ``split`` gets an element of ``feed.as_dataset()`` and returns ``(x, y)``; or ``(x, y,
    weights)`` where steps have unequal weights, or there is no output for each step; or ``(x,)``
    for ``predict``.
    """
    if not feed.states:
        raise ValueError(f"batches: the feed {feed.name!r} has no states; use feed.as_dataset()")
    number, left = next(_NUMBERS), 0 if feed._segments is None else feed._segments.left
    _FEEDS[number] = feed

    def element(batch: dict[str, Any]) -> tuple[Any, ...]:
        parts = split(batch)
        if not isinstance(parts, tuple) or not 1 <= len(parts) <= 3:
            raise ValueError(
                f"split={split!r} must return (x, y) or (x, y, weights), not {parts!r}"
            )
        steps = next(iter(batch["sequences"].values())).shape[1]
        ticket = {
            "feed": tf.constant(number, tf.int64),
            "token": batch["token"],
            "weights": _weights(batch["length"], steps, left),
            "state": batch["state"],
        }
        return (ticket, *parts)

    return feed.as_dataset().map(tf.autograph.experimental.do_not_convert(element))


class StatefulModel(keras.Model):  # type: ignore[misc]
    """A network with states as a model that Keras can train on ``batches``.

    ``network`` is a model or layer that is called with ``(x, states)`` and returns ``outputs,
    states``; states are a dict by the feed's names.  Training trains its weights; to save it, or to
    use it by itself, take ``model.network``.

    It trains on one device: a strategy of several replicas is refused.
    """

    def __init__(self, network: Any) -> None:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            raise ValueError(
                f"a strategy of {replicas} replicas would tear batches from their states; start a "
                "process for each device, as ranks of the feed, with a loop of your own"
            )
        super().__init__()
        self.network = network
        self.built = bool(getattr(network, "built", False))  # it has no weights of its own
        self.supports_jit = False  # states are handed over by Python

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.network(inputs, training=training)

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            step = self._forward(data, training=True)
            loss = self.optimizer.scale_loss(self._loss_of(step, training=True))
        gradients = tape.gradient(loss, self.trainable_weights)
        self._save(step, [gradient for gradient in gradients if gradient is not None])
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self._results(step)

    def test_step(self, data: Any) -> Any:
        step = self._forward(data, training=False)
        self._loss_of(step, training=False)
        self._save(step, ())
        return self._results(step)

    def predict_step(self, data: Any) -> Any:
        step = self._forward(data, training=False)
        self._save(step, ())
        return step.outputs

    def get_config(self) -> dict[str, Any]:
        return {"network": keras.saving.serialize_keras_object(self.network)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> StatefulModel:
        network = keras.saving.deserialize_keras_object(config["network"], custom_objects)
        return cls(network)

    def _results(self, step: _Step) -> Any:
        return self.compute_metrics(step.x, step.y, step.outputs, sample_weight=step.weights)

    def _forward(self, data: Any, training: bool) -> _Step:
        step = _Step(data)
        result = self((step.x, step.ticket["state"]), training=training)
        if not isinstance(result, Sequence) or len(result) != 2:
            raise ValueError(f"the network must return (outputs, states), not {result!r:.200}")
        step.outputs, step.states = result
        if step.y is not None and step.weights is None:
            check = functools.partial(_check_steps, step.ticket["weights"])
            step.weights = tf.nest.map_structure(check, step.outputs)
        return step

    def _loss_of(self, step: _Step, training: bool) -> Any:
        loss = self.compute_loss(step.x, step.y, step.outputs, step.weights, training=training)
        tracker = next(metric for metric in self.metrics if metric.name == "loss")
        tracker.update_state(loss, sample_weight=tf.shape(step.ticket["weights"])[0])
        return loss

    def _save(self, step: _Step, after: Sequence[Any]) -> None:
        """Save the new states, after other tensors are there."""
        declared, states = step.ticket["state"], step.states
        if not isinstance(states, Mapping) or set(states) != set(declared):
            got = sorted(states) if isinstance(states, Mapping) else type(states).__name__
            raise ValueError(
                f"the network must return new states as a dict of {sorted(declared)}, not {got}"
            )
        names = sorted(declared)
        values = [_as_declared(states[name], declared[name].dtype) for name in names]
        with tf.control_dependencies(after), tf.device("CPU:0"):
            arguments = [step.ticket["feed"], step.ticket["token"], *values]
            tf.py_function(functools.partial(_save_in_feed, names), arguments, [])


class _Step:
    """The inputs of one step, and its results."""

    def __init__(self, data: Any) -> None:
        if not isinstance(data, tuple) or len(data) < 2 or not isinstance(data[0], dict):
            raise ValueError("a StatefulModel needs the dataset of headrace.keras.batches(feed, …)")
        self.ticket, self.x, self.y, self.weights = (*data, None, None)[:4]
        self.outputs: Any = None
        self.states: Any = None


def _save_in_feed(names: list[str], number: Any, token: Any, *values: Any) -> None:
    feed = _FEEDS.get(int(number))
    if feed is None:
        raise RuntimeError("the feed of this batch is gone: its states can not be saved")
    feed.save_states(int(token), dict(zip(names, values, strict=True)))


def _as_declared(value: Any, dtype: Any) -> Any:
    """Return a state in its declared dtype: mixed precision computes it in another."""
    value = tf.convert_to_tensor(value)
    return tf.cast(value, dtype) if value.dtype.is_floating and dtype.is_floating else value


def _weights(length: Any, steps: int, left: int = 0) -> Any:
    """Return weights by row and step, by which Keras' mean over all steps is that of the data.

    Padding and context have weight 0; ``left`` steps of context come before the segment's own.
    """
    data = tf.pad(tf.sequence_mask(length, steps - left, tf.float32), [[0, 0], [left, 0]])
    return data * tf.math.divide_no_nan(tf.cast(tf.size(data), tf.float32), tf.reduce_sum(data))


def _check_steps(weights: Any, output: Any) -> Any:
    """Return the weights; ValueError where the output has no value for each step."""
    steps = weights.shape[1]
    if output.shape.rank is None or output.shape.rank < 3 or output.shape[1] != steps:
        raise ValueError(
            f"an output of {output.shape} is not of every step, [batch, {steps}, …]: padding can "
            "not be told from data; let split return (x, y, weights)"
        )
    return weights


class CommitTrained(keras.callbacks.Callback):  # type: ignore[misc]
    """Commit each batch of ``feed.as_dataset()`` when ``fit`` has trained on it.

    So a snapshot by a later callback has exactly the trained batches.  Batches that TensorFlow has
    fetched ahead go back when the next ``fit`` begins, or the feed is left.  The callback counts
    batches: ``map`` and ``prefetch`` between ``as_dataset()`` and ``fit`` are fine, but nothing may
    merge, split, drop or reorder elements.
    """

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        if feed.states:
            raise ValueError(
                f"CommitTrained: batches of the feed {feed.name!r} are committed by their states"
            )
        if not feed._by_name:
            raise ValueError(
                f"CommitTrained: the feed {feed.name!r} commits a batch when the next one is asked "
                'for; connect with commit="explicit"'
            )
        self._feed = feed
        self._first = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._feed._commit_oldest(batch - self._first + 1)  # more than 1: steps_per_execution


class LogFeed(keras.callbacks.Callback):  # type: ignore[misc]
    """Add what ``feed.log_to`` logs to the logs of each epoch.

    The history has them, and later callbacks of ``fit``, such as ``TensorBoard``, log them.
    """

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._feed._numbers()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs.update(self._feed._numbers())
