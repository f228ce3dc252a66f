"""A trainer: a small recurrent model in plain TensorFlow, fed by headrace.

    python examples/train.py tcp://127.0.0.1:5557

Without an address it is read from standard input once the model is built, which is how the demo
lets its trainers start together.  Prints one line every second, as JSON with ``--json``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

import headrace

CHANNELS = 4


class Model:
    """A GRU over the steps, and one number out of its last state."""

    def __init__(self) -> None:
        self.gru = tf.keras.layers.GRU(16)
        self.out = tf.keras.layers.Dense(1)
        self.optimizer = tf.keras.optimizers.Adam(0.01)
        # Traced once, for any batch size and any length, before the first batch is there.
        shapes = (None, None, CHANNELS), (None,), (None,)
        dtypes = tf.float32, tf.int32, tf.float32
        signature = [tf.TensorSpec(*spec) for spec in zip(shapes, dtypes, strict=True)]
        self.step = tf.function(self._step, input_signature=signature)
        self.step(tf.zeros((2, 3, CHANNELS)), tf.constant([3, 2]), tf.zeros(2))

    def _step(self, steps: tf.Tensor, length: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        """Learn from one batch; its loss."""
        with tf.GradientTape() as tape:
            state = self.gru(steps, mask=tf.sequence_mask(length, tf.shape(steps)[1]))
            logits = tf.squeeze(self.out(state), 1)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, logits))
        weights = self.gru.trainable_weights + self.out.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss


def train(model: Model, address: str, say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Train until the feed ends; what was trained, and how long it took."""
    losses: list[float] = []
    ids: list[int] = []
    started = said = time.monotonic()
    waited_s = 0.0
    with headrace.connect(address, framework="tf") as feed:
        asked = time.monotonic()
        for batch in feed:
            waited_s += time.monotonic() - asked
            loss = model.step(batch["steps"], batch["length"], batch["label"])
            losses.append(float(loss))
            ids += batch["id"].numpy().tolist()
            if time.monotonic() - said > 1:
                said = time.monotonic()
                say({"batches": len(losses), "rows": len(ids), "loss": losses[-1]})
            asked = time.monotonic()
        waited_s += time.monotonic() - asked
    total_s = time.monotonic() - started
    return {"losses": losses, "ids": ids, "waited_s": waited_s, "total_s": total_s}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small model from a headrace feed.")
    parser.add_argument("address", nargs="?", help="of the server; default: read from stdin")
    parser.add_argument("--json", action="store_true", help="print JSON, a report at the end")
    parser.add_argument("--seed", type=int, default=0, help="of the model's weights")
    options = parser.parse_args()

    def say(news: dict[str, Any]) -> None:
        if options.json:
            print(json.dumps(news), flush=True)
        else:
            print(f"batch {news['batches']:5}  loss {news['loss']:.3f}", flush=True)

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(options.seed)
    model = Model()
    if options.json:
        print(json.dumps({"ready": True}), flush=True)
    report = train(model, options.address or sys.stdin.readline().strip(), say)
    if options.json:
        print(json.dumps(report), flush=True)
    else:
        print(f"{len(report['losses'])} batches, {len(report['ids'])} rows")


if __name__ == "__main__":
    main()
