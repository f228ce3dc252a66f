"""Keras' ``fit`` on segments in several workers of a MultiWorkerMirroredStrategy, each a rank.

    batches of each worker ──► strategy.run(train_step) ──► results [1] ──► mean over workers

Keras 3 pulls a batch before it trains, and reduces it by replica, which fails for a batch of many
parts; a batch that is pulled and not trained would also hold up all ranks.  So a model is built by
the spec of its data.  And Keras takes the mean of results over their first axis, so results have
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def workers() -> int:
    """Return the number of workers of the current strategy, 1 without one.

    ValueError for a strategy that deals the batches of one feed to several devices.
    """
    strategy = tf.distribute.get_strategy()
    replicas = int(strategy.num_replicas_in_sync)
    if replicas == 1:
        return 1
    of_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if not of_workers or len(strategy.extended.worker_devices) > 1:
        raise ValueError(
            f"a strategy of {replicas} replicas would tear batches from their states; start a "
            "process for each device: without a strategy they share the feed, and as workers of "
            "MultiWorkerMirroredStrategy they are its ranks"
        )
    return replicas


class _Symbolic(keras.Operation):  # type: ignore[misc]
    """Calls a function with symbolic tensors."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def call(self, data: Any) -> Any:
        return self._function(data)


def build_by_spec(model: Any, iterator: Any, step: Callable[[Any], Any]) -> None:
    """Build the variables of a model, of its metrics and of its optimizer, by a symbolic step.

    ``iterator`` is that of Keras over a distributed dataset.
    """
    spec = iterator._distributed_dataset.element_spec
    with model.distribute_strategy.scope():
        _Symbolic(step).compute_output_spec(tf.nest.map_structure(_symbolic, spec))
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)


def _symbolic(spec: Any) -> Any:
    by_replica = getattr(spec, "_value_specs", None)
    one = spec if by_replica is None else by_replica[0]
    return keras.KerasTensor(tuple(one.shape), one.dtype.name)


def weights_of_round(weights: Any) -> Any:
    """Return weights of steps so that the mean over workers is that over all steps with data."""
    data = tf.cast(weights > 0, weights.dtype)
    size = tf.cast(tf.size(data), data.dtype)
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return weights
    whole = context.all_reduce("SUM", tf.reduce_sum(data))
    return data * tf.math.divide_no_nan(size * context.num_replicas_in_sync, whole)
