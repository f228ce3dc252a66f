"""A trainer that keeps checkpoints in Keras' fit and dies at a step.

    python keras_trainer.py ADDRESS FEED DIRECTORY DIES_AT

Prints a JSON line for each step: its number and its loss, to the last bit.  At the end one with all
weights.  It dies by SIGKILL when it has trained on step ``DIES_AT``, before a checkpoint of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from typing import Any

import keras
import numpy as np

import headrace
import headrace.keras

EPOCHS, EVERY, UNROLL = 3, 3, 4


def plain(feed: Any) -> tuple[Any, Any]:
    layers = [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    return model, feed.as_dataset().map(lambda batch: (batch["x"], batch["y"])).prefetch(2)


def segments(feed: Any) -> tuple[Any, Any]:
    x, h = keras.Input((UNROLL, 1)), keras.Input((3,))
    steps, after = keras.layers.GRU(3, return_sequences=True, return_state=True)(x, h)
    network = keras.Model((x, {"h": h}), (keras.layers.Dense(1)(steps), {"h": after}))

    def split(batch: dict[str, Any]) -> tuple[Any, Any]:
        return batch["sequences"]["x"], batch["sequences"]["x"]

    return headrace.keras.StatefulModel(network), headrace.keras.batches(feed, split)


def main() -> None:
    address, name, directory, dies_at = sys.argv[1:]
    warnings.filterwarnings("ignore", message="Your input ran out of data")
    keras.utils.set_random_seed(5)
    kind = {"plain": plain, "segments": segments}[name.partition("-")[0]]
    options = {"prefetch": 0} if kind is segments else {"commit": "explicit"}
    with headrace.connect(address, feed=name, framework="tf", timeout=60, **options) as feed:
        model, data = kind(feed)
        model.compile("adam", "mse")
        checkpoint = headrace.keras.Checkpoint(feed, directory, EVERY)

        class Steps(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                step = checkpoint._step + 1
                print(json.dumps({"step": step, "loss": float(logs["loss"]).hex()}), flush=True)
                if step == int(dies_at):
                    os.kill(os.getpid(), signal.SIGKILL)
                model.reset_metrics()

        model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[Steps(), checkpoint])
    weights = [np.asarray(one, np.float32).tobytes().hex() for one in model.get_weights()]
    print(json.dumps({"weights": weights}), flush=True)


if __name__ == "__main__":
    main()
