"""Training through time by Keras' fit: a GRU whose state the feed carries between segments.

python examples/stateful_keras.py
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf
from recall import GUESSING, RATE, STEPS, UNITS, recall

import headrace
import headrace_server as hs
from headrace.keras import StatefulModel, batches


def network() -> keras.Model:
    """A Keras model of (x, states) that returns (outputs, states)."""
    x, h = keras.Input((STEPS, 2)), keras.Input((UNITS,))
    gru = keras.layers.GRU(UNITS, return_sequences=True, return_state=True)
    steps, after = gru(x, initial_state=h)
    return keras.Model((x, {"h": h}), (keras.layers.Dense(1)(steps), {"h": after}))


def split(batch: dict) -> tuple[tf.Tensor, tf.Tensor]:
    """Inputs and wanted outputs of a batch; that padding does not count goes without saying."""
    wanted = tf.repeat(batch["context"]["bit"][:, None, None], STEPS, axis=1)
    return batch["sequences"]["x"], wanted


def main() -> None:
    keras.utils.set_random_seed(1)
    model = StatefulModel(network())
    model.compile(keras.optimizers.Adam(RATE), keras.losses.BinaryCrossentropy(from_logits=True))
    with (
        hs.run(recall(states=("h",))) as server,
        headrace.connect(server.address, framework="tf") as feed,
    ):
        data = batches(feed, split)
        history = model.fit(data, epochs=8, steps_per_epoch=50, shuffle=False, verbose=2)
    print(f"at the end {history.history['loss'][-1]:.3f}; guessing gives more than {GUESSING}")


if __name__ == "__main__":
    main()
