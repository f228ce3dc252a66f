"""The loops of Keras and Lightning on W1: their models have one layer, so that data takes the time.

A step is timed by the thread that trains: the one that counts would tell how long it waited for a
core, which others have while they make the next batches.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

from .steps import Steps

__all__ = ["fit_steps", "lightning_steps"]


def _trained(fit: Callable[[Callable[[], bool]], object]) -> Steps:
    """The seconds of each step of a loop in a thread of its own.

    It calls the function that it gets after each step, and ends when that returns True.
    """
    done: queue.SimpleQueue[float | BaseException] = queue.SimpleQueue()
    stops, before = threading.Event(), perf_counter()

    def ended() -> bool:
        nonlocal before
        now = perf_counter()
        done.put(now - before)
        before = now
        return stops.is_set()

    def run() -> None:
        try:
            fit(ended)
        except BaseException as error:
            done.put(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while True:
            step = done.get()
            if isinstance(step, BaseException):
                raise step
            yield step
    finally:
        stops.set()
        thread.join()


def fit_steps(dataset: Any, callbacks: Any = ()) -> Steps:
    """The seconds of each step that Keras' ``fit`` has trained."""
    import keras

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def fit(ended: Callable[[], bool]) -> object:
        class Ends(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.model.stop_training = ended()

        return model.fit(
            dataset.map(lambda batch: (batch["x"], batch["label"])),
            steps_per_epoch=1 << 30,
            shuffle=False,
            verbose=0,
            callbacks=[*callbacks, Ends()],
        )

    return _trained(fit)


def lightning_steps(batches: Any) -> Steps:
    """The seconds of each step of Lightning's loop, over tensors of torch."""
    import lightning
    import torch

    def fit(ended: Callable[[], bool]) -> None:
        class Model(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(64, 1)

            def training_step(self, batch: Any, number: int) -> Any:
                return torch.nn.functional.mse_loss(self.layer(batch["x"])[:, 0], batch["label"])

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.01)

            def on_train_batch_end(self, *step: Any) -> None:
                self.trainer.should_stop = ended()

        silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, enable_checkpointing=False, **silent
        )
        trainer.fit(Model(), batches)

    return _trained(fit)
