"""Keras' ``fit`` on a dataset of W1: its model has one layer, so that data takes the time.

A step is timed by the thread that trains: the one that counts would tell how long it waited for a
core, which others have while they make the next batches.
"""

from __future__ import annotations

import queue
import threading
from time import perf_counter
from typing import Any

from .steps import Steps

__all__ = ["fit_steps"]


def fit_steps(dataset: Any, callbacks: Any = ()) -> Steps:
    """The seconds of each step that ``fit`` has trained; it runs in a thread of its own."""
    import keras

    done: queue.SimpleQueue[float | BaseException] = queue.SimpleQueue()
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    class Steps(keras.callbacks.Callback):
        before = perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            before, self.before = self.before, perf_counter()
            done.put(self.before - before)

    def fit() -> None:
        try:
            model.fit(
                dataset.map(lambda batch: (batch["x"], batch["label"])),
                steps_per_epoch=1 << 30,
                shuffle=False,
                verbose=0,
                callbacks=[*callbacks, Steps()],
            )
        except BaseException as error:
            done.put(error)

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    try:
        while True:
            step = done.get()
            if isinstance(step, BaseException):
                raise step
            yield step
    finally:
        model.stop_training = True
        thread.join()
