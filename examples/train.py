"""A trainer: a stateful LSTM in plain TensorFlow, by truncated back-propagation through time.

    python examples/train.py tcp://127.0.0.1:5557
    python examples/train.py tcp://127.0.0.1:5557 --forget       without the carried state

    segment i-1 ──► LSTM ──► state ─ save_state ─► server ─ state ─► LSTM ◄── segment i
                      ▲                                                ▲
                      └── gradients end at the borders of segments ────┘

Each batch is one segment of each of some sequences, with the states that were saved after the
segments before.  With ``--json`` it is steered by the demo: jobs come as lines on standard input,
news and reports go out as lines.
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

SYMBOLS = 4
UNITS = 32


class Model:
    """An LSTM, and at each step a guess which symbol its sequence began with."""

    def __init__(self) -> None:
        self.lstm = tf.keras.layers.LSTM(UNITS, return_sequences=True, return_state=True)
        self.out = tf.keras.layers.Dense(SYMBOLS)
        self.lstm.build((None, None, SYMBOLS))
        self.out.build((None, None, UNITS))
        self.weights = self.lstm.trainable_weights + self.out.trainable_weights
        self.optimizer = tf.keras.optimizers.Adam(0.01)
        self.optimizer.build(self.weights)
        self.start = [(v, v.numpy()) for v in (*self.weights, *self.optimizer.variables)]
        # Traced once, for any number of rows, before the first batch is there.
        state = tf.TensorSpec((None, UNITS))
        signature = [tf.TensorSpec((None, None, SYMBOLS)), tf.TensorSpec((None,), tf.int32)]
        signature += [tf.TensorSpec((None,), tf.int64), state, state]
        self.step = tf.function(self._step, input_signature=signature)
        nothing = tf.zeros((2, UNITS))
        self.step(tf.zeros((2, 4, SYMBOLS)), [4, 4], tf.zeros(2, tf.int64), nothing, nothing)
        self.reset()

    def reset(self) -> None:
        """Unlearn everything."""
        for variable, value in self.start:
            variable.assign(value)

    def _step(
        self, steps: tf.Tensor, length: tf.Tensor, symbol: tf.Tensor, h: tf.Tensor, c: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Learn from one batch; the loss of each row, and the states after it."""
        real = tf.sequence_mask(length, tf.shape(steps)[1])
        with tf.GradientTape() as tape:
            outputs, h, c = self.lstm(steps, mask=real, initial_state=[h, c])
            logits = self.out(outputs)
            asked = tf.broadcast_to(symbol[:, None], tf.shape(real))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(asked, logits)
            losses *= tf.cast(real, tf.float32)
            loss = tf.reduce_sum(losses) / tf.cast(tf.reduce_sum(length), tf.float32)
        gradients = tape.gradient(loss, self.weights)
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))
        return tf.reduce_sum(losses, axis=1) / tf.cast(length, tf.float32), h, c


def train(
    model: Model, address: str, feed_name: str | None, forget: bool, say: Callable[..., None]
) -> dict[str, Any]:
    """Train until the feed ends; which segments were trained, and how it went.

    With ``forget`` the model begins each segment with zeros.  Its states are saved all the same:
    that is what commits a batch.
    """
    later: list[float] = []  # losses where nothing but the state can tell the symbol
    keys: list[str] = []
    started = said = time.monotonic()
    waited_s = 0.0
    with headrace.connect(address, feed=feed_name, framework="tf") as feed:
        asked = time.monotonic()
        for batch in feed:
            waited_s += time.monotonic() - asked
            h, c = batch.state("h"), batch.state("c")
            if forget:
                h, c = tf.zeros_like(h), tf.zeros_like(c)
            losses, h, c = model.step(
                batch.sequences["steps"], batch.length, batch.context["symbol"], h, c
            )
            batch.save_state("h", h)
            batch.save_state("c", c)
            rows = losses.numpy()[batch.sequence.numpy() > 0]
            if len(rows):
                later.append(float(rows.mean()))
            keys += [key.decode() for key in batch.key.numpy()]
            if time.monotonic() - said > 1:
                said = time.monotonic()
                say(segments=len(keys), loss=_end_of(later))
            asked = time.monotonic()
        waited_s += time.monotonic() - asked
    total_s = time.monotonic() - started
    return {"losses": later, "keys": keys, "waited_s": waited_s, "total_s": total_s}


def _end_of(losses: list[float]) -> float | None:
    return sum(losses[-20:]) / len(losses[-20:]) if losses else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small LSTM from a headrace feed.")
    parser.add_argument("address", nargs="?", help="of the server; with --json from stdin")
    parser.add_argument("--forget", action="store_true", help="begin each segment with zeros")
    parser.add_argument("--json", action="store_true", help="take jobs from stdin, print JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the model's weights")
    options = parser.parse_args()
    if bool(options.address) == options.json:
        parser.error("give an address, or --json and jobs on standard input")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(options.seed)
    model = Model()
    if not options.json:
        report = train(model, options.address, None, options.forget, _print)
        loss = _end_of(report["losses"])
        after = "" if loss is None else f", loss after the first of each sequence {loss:.3f}"
        print(f"{len(report['keys'])} segments{after}")
        return

    def say(**news: Any) -> None:
        print(json.dumps(news), flush=True)

    say(ready=True)
    for line in sys.stdin:
        job = json.loads(line)
        model.reset()
        say(report=train(model, job["address"], job["feed"], job["forget"], say))


def _print(segments: int, loss: float | None) -> None:
    print(f"{segments:6} segments  loss {loss or float('nan'):.3f}", flush=True)


if __name__ == "__main__":
    main()
