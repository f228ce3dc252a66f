"""A GRU in TensorFlow on packed lanes, which begins anew at each reset, beside unpacked lanes.

python examples/packed_tf.py
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from recall import EPOCHS, RATE, STEPS, UNITS, Report, packed_lanes

import headrace
import headrace_server as hs


def losses_of(cell: Any, out: Any, batch: Any, packed: bool) -> Any:
    """Return the loss of each real step; save the states."""
    h, steps, bit = batch.state("h"), [], batch.context["bit"]
    for step in range(STEPS):
        if packed:
            h = tf.where(batch.resets[:, step, None], batch.initial_state("h"), h)
        h, _ = cell(batch.sequences["x"][:, step], h)
        steps.append(h)
    batch.save_state("h", h)
    if packed:
        real = batch.segment_ids > 0
        wanted = tf.gather(bit, tf.maximum(batch.segment_ids - 1, 0), batch_dims=1)
    else:
        real = tf.range(STEPS) < batch.length[:, None]
        wanted = tf.repeat(bit[:, None], STEPS, axis=1)
    logits = out(tf.stack(steps, 1))[:, :, 0]
    losses = tf.nn.sigmoid_cross_entropy_with_logits(wanted, logits)
    return tf.boolean_mask(losses, real)


def train(packed: bool) -> None:
    tf.keras.utils.set_random_seed(1)
    cell, out, report = tf.keras.layers.GRUCell(UNITS), tf.keras.layers.Dense(1), Report()
    cell.build((None, 2))
    out.build((None, UNITS))
    optimizer = tf.keras.optimizers.Adam(RATE)
    weights = cell.trainable_variables + out.trainable_variables

    @tf.function(reduce_retracing=True)  # batches get smaller when the data ends
    def losses(batch: Any) -> Any:
        return losses_of(cell, out, batch, packed)

    @tf.function(reduce_retracing=True)
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses_of(cell, out, batch, packed))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    feeds = {name: packed_lanes(("h",), packed, n) for name, n in EPOCHS.items()}
    with hs.run(feeds) as server:
        with headrace.connect(server.address, feed="once", framework="tf") as feed:
            untrained = [losses(batch).numpy() for batch in feed]
        with headrace.connect(server.address, feed="train", framework="tf") as feed:
            for batch in feed:
                report.add(float(step(batch)))
    report.compared(float(np.concatenate(untrained).mean()), packed)


if __name__ == "__main__":
    train(packed=False)
    train(packed=True)
