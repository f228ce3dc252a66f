"""Callbacks of Keras for a feed: commits of trained batches, and checkpoints with the position.

    fit ── batch trained ──► CommitTrained ──► commits
     └──── every n steps ──► Checkpoint ──► variables, snapshot ──► position.json names both
     ◄──── epoch, variables, position ──────────────┘ the next fit

``fit`` of Keras 3 and of Keras 2 (``tf_keras``) call them alike.  Keras has no setting for the
epoch with which a resumed ``fit`` begins, nor for epochs of unequal length: both are set where each
version looks for them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

if TYPE_CHECKING:
    from .feed import Feed

__all__ = ["Checkpoint", "CommitTrained", "KerasCallback"]

#: The file that names the weights and has the position that belongs to them.
_POSITION = "position.json"


class KerasCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback of Keras 3 that Keras 2 calls, too."""

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    _implements_predict_batch_hooks = _implements_test_batch_hooks


class CommitTrained(KerasCallback):
    """Commit each batch of ``feed.as_dataset()`` when ``fit`` has trained on it.

    So a snapshot by a later callback has exactly the trained batches.  Batches that TensorFlow has
    fetched ahead go back when the next ``fit`` begins, or the feed is left.  The callback counts
    batches: ``map`` and ``prefetch`` between ``as_dataset()`` and ``fit`` are fine, but nothing may
    merge, split, drop or reorder elements.

    Epochs may have unequal numbers of batches, as they have where trainers share a feed; without
    this callback Keras ends all epochs after one step more than the first had.
    """

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        if feed.states:
            raise ValueError(
                f"CommitTrained: batches of the feed {feed.name!r} are committed by their states"
            )
        if not feed._commits.explicit:
            raise ValueError(
                f"CommitTrained: the feed {feed.name!r} commits a batch when the next one is asked "
                'for; connect with commit="explicit"'
            )
        self._feed = feed
        self._first = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._feed._commit_oldest(batch - self._first + 1)  # more than 1: steps_per_execution

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        _forget_length()


class Checkpoint(KerasCallback):
    """Save model, optimizer and the feed's position together, and let ``fit`` go on from them.

    ``directory`` holds the last checkpoint, which is replaced whole: at the beginning, after each
    epoch, and after every so many steps.  A ``fit`` with this callback goes on from a checkpoint
    that it finds, with the batch after the last one trained, so its losses are those of a run that
    was not interrupted.
    The model must be built, as one that begins with ``keras.Input`` is, and stand alone: with
    several ranks, commit on all of them, meet, and take one ``feed.snapshot()``.

    It commits what ``fit`` has trained, as ``CommitTrained`` does, or leaves that to the states.
    Where the feed's batches end with their epoch, ``fit`` goes on in the epoch that was under way;
    else its epochs begin anew at the step that was reached.

    Random layers of Keras 2 have a state to save only after
    ``tf_keras.backend.experimental.enable_tf_random_generator()``.
    """

    def __init__(self, feed: Feed, directory: str | os.PathLike[str], every: int = 0) -> None:
        super().__init__()
        if type(every) is not int or every < 0:
            raise ValueError(f"every={every!r} is no number of steps; 0 is after each epoch only")
        if feed._link.member.world_size > 1:
            raise ValueError(
                f"Checkpoint: the feed {feed.name!r} is shared with other ranks; commit on all of "
                "them, meet, and take one feed.snapshot()"
            )
        self._feed = feed
        self._commits = None if feed.states else CommitTrained(feed)
        self._directory = Path(directory)
        self._every = every
        self._step = self._epoch = self._first = self._saved_at = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.model.built:
            raise ValueError(
                "Checkpoint: the model is not built, so no weights can be loaded; let it begin "
                "with keras.Input, or call it on a batch"
            )
        optimizer = self.model.optimizer
        if isinstance(self.model, keras.Model):
            if not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            # Those of random layers too, which a checkpoint of the model would not keep.
            variables = [one.value for one in (*self.model.variables, *optimizer.variables)]
            self._variables = tf.train.Checkpoint(variables=variables)
        else:  # of Keras 2, which leaves the states of random layers out, too
            build = getattr(optimizer, "build", None) or optimizer._create_all_weights
            build(self.model.trainable_variables)
            chance = [getattr(layer, "_random_generator", None) for layer in self.model.submodules]
            self._variables = tf.train.Checkpoint(
                model=self.model,
                optimizer=optimizer,
                chance=[generator for generator in chance if generator is not None],
            )
        known = self._directory / _POSITION
        if not known.exists():
            self._save(0)
            return
        position = json.loads(known.read_text())
        restored = self._variables.read(str(self._directory / position["weights"]))
        restored.assert_existing_objects_matched()
        self._feed.load_state_dict(position["feed"])
        self._step = self._saved_at = position["step"]
        epochs = self.params.get("epochs") or 0
        begun = self._feed._next_epoch()
        self._begin_with(position["epoch"] if begun is None else min(begun, epochs))

    def _begin_with(self, epoch: int | None) -> None:
        """Have this ``fit`` begin with an epoch; None: let later ones begin where they name it."""
        if isinstance(self.model, keras.Model):
            self.model._initial_epoch = epoch
            return
        begin = SimpleNamespace(maybe_load_initial_counters_from_ckpt=lambda *_, **__: (epoch, 0))
        self.model._training_state = None if epoch is None else begin  # where Keras 2 looks

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin_with(None)
        self._epoch = epoch

    def on_train_end(self, logs: Any = None) -> None:
        self._begin_with(None)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._first = batch
        if self._commits is not None:
            self._commits.on_train_batch_begin(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._commits is not None:
            self._commits.on_train_batch_end(batch)
        self._step += batch - self._first + 1
        if self._every and self._step - self._saved_at >= self._every:
            self._save(self._epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        _forget_length()
        self._save(epoch + 1)

    def _save(self, epoch: int) -> None:
        self._saved_at = self._step
        self._directory.mkdir(parents=True, exist_ok=True)
        weights = f"step-{self._step}-{epoch}"  # a name of no other checkpoint
        self._variables.write(str(self._directory / weights))
        position = {
            "weights": weights,
            "step": self._step,
            "epoch": epoch,
            "feed": self._feed.snapshot(),
        }
        written = self._directory / f"{_POSITION}.new"
        written.write_text(json.dumps(position))
        written.replace(self._directory / _POSITION)
        for old in self._directory.glob("step-*"):
            if old.name.partition(".")[0] != weights:
                old.unlink()


def _forget_length() -> None:
    """Keep the calling ``fit`` from taking the length of its first epoch for that of all.

    An epoch is shorter where it was under way when ``fit`` began, or other trainers had a part of
    it.  Keras has no setting for this, and its iterator is a local variable of ``fit``.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        iterator: Any = frame.f_locals.get("epoch_iterator")
        if hasattr(iterator, "_num_batches") and not getattr(iterator, "steps_per_epoch", True):
            iterator._num_batches = iterator.data_adapter.num_batches
            return
        handler: Any = frame.f_locals.get("data_handler")
        if hasattr(handler, "_inferred_steps"):  # of Keras 2
            handler._inferred_steps = handler._steps_per_epoch
            return
