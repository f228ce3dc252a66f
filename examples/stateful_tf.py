"""Training through time in TensorFlow: an LSTM whose states the feed carries between segments.

python examples/stateful_tf.py
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from recall import RATE, STEPS, UNITS, Report, recall

import headrace
import headrace_server as hs


class Model:
    def __init__(self) -> None:
        self.lstm = tf.keras.layers.LSTM(UNITS, return_sequences=True, return_state=True)
        self.out = tf.keras.layers.Dense(1)
        self.optimizer = tf.keras.optimizers.Adam(RATE)

    @tf.function(reduce_retracing=True)  # batches get smaller when the data ends
    def step(self, x: tf.Tensor, bit: tf.Tensor, length: tf.Tensor, state: list) -> tuple:
        """Learn from one segment of each row; the loss, and the states after it."""
        mask = tf.sequence_mask(length, STEPS, tf.float32)
        with tf.GradientTape() as tape:
            steps, h, c = self.lstm(x, initial_state=state)
            logits = self.out(steps)[:, :, 0]
            wanted = tf.repeat(bit[:, None], STEPS, axis=1)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(wanted, logits)
            loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
        weights = self.lstm.trainable_weights + self.out.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss, h, c


def main() -> None:
    tf.keras.utils.set_random_seed(1)
    model, report = Model(), Report()
    with (
        hs.run(recall(states=("h", "c"))) as server,
        headrace.connect(server.address, framework="tf") as feed,
    ):
        for batch in feed:
            loss, h, c = model.step(
                batch.sequences["x"],
                batch.context["bit"],
                batch.length,
                [batch.state("h"), batch.state("c")],
            )
            batch.save_state("h", h)
            batch.save_state("c", c)
            report.add(float(loss))
    report.end()


if __name__ == "__main__":
    main()
