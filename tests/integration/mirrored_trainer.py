"""A worker of MultiWorkerMirroredStrategy, which trains on a feed as its rank.

    python mirrored_trainer.py ADDRESS FEED [STEP]    with TF_CONFIG in the environment

Prints a JSON line: its steps in each epoch, what it trained on, and all weights at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import headrace

EPOCHS, UNROLL = 3, 4
RANK = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
#: The step at which worker 1 holds its batch for ever in ``segments``; 0: none.
HOLD = int(sys.argv[3]) if len(sys.argv) > 3 else 0

#: Keys and segments of the trained rows.
TRAINED: list[Any] = []
STEPS: list[int] = []


def segments(strategy: Any, feed: Any) -> list[Any]:
    """Train on segments, whose states are saved after the step, by replica."""
    with strategy.scope():
        gru = keras.layers.GRU(3, return_sequences=True, return_state=True)
        dense = keras.layers.Dense(1)
        gru.build((None, UNROLL, 1))
        dense.build((None, UNROLL, 3))
        weights = gru.trainable_variables + dense.trainable_variables
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(weights)

    def train(batch: dict[str, Any]) -> Any:
        mask = tf.sequence_mask(batch["length"], UNROLL, tf.float32)
        with tf.GradientTape() as tape:
            steps, after = gru(batch["sequences"]["x"], initial_state=batch["state"]["h"])
            errors = tf.square(dense(steps)[..., 0] - 1) * mask
            loss = tf.reduce_sum(errors) / 16 / strategy.num_replicas_in_sync
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return after

    @tf.function(reduce_retracing=True)
    def step(batch: dict[str, Any]) -> Any:
        return strategy.run(train, (batch,))

    data = strategy.distribute_datasets_from_function(lambda _: feed.as_dataset())
    for _ in range(EPOCHS):
        STEPS.append(0)
        for batch in data:
            if sum(STEPS) + 1 == HOLD and RANK == 1:
                print(json.dumps({"event": "holding"}), flush=True)
                signal.pause()
            after = step(batch)
            feed.save_states(batch["token"], {"h": after})
            (local,) = strategy.experimental_local_results(batch)
            rows = zip(local["key"].numpy(), local["valid"].numpy(), strict=True)
            TRAINED.extend(key.decode() for key, valid in rows if valid)
            STEPS[-1] += 1
    return [weight.numpy() for weight in weights]


def main() -> None:
    address, name = sys.argv[1:3]
    keras.utils.set_random_seed(5)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    ranks = {"rank": RANK, "world_size": strategy.num_replicas_in_sync}
    with headrace.connect(address, feed=name, framework="tf", timeout=240, **ranks) as feed:
        weights = segments(strategy, feed)
    flat = [np.asarray(weight, np.float32).tobytes().hex() for weight in weights]
    print(
        json.dumps({"event": "trained", "steps": STEPS, "trained": TRAINED, "weights": flat}),
        flush=True,
    )


if __name__ == "__main__":
    main()
