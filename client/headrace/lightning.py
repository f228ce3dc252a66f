"""Lightning: feeds as a data module, whose checkpoints contain the position of the training data.

    Trainer ── next ──► loader ──► batch k+1         fetched while batch k is in hand
       │                  ▲
       ├── training_step(batch k), save_state ─┐     a feed of segments makes batch k+1 of these
       ├── backward ──► the next batch is ◄────┘     states: the loader hands out a ticket for it,
       │                asked for here               and asks when they are saved
       ├── batch end ─► batch k is committed
       └── checkpoint ► state_dict: the position after batch k

Lightning takes the batch whose number is the length for the last one of a pass.  A pass that goes
on after a restart, or is shared, is shorter: the callback looks whether a batch follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

try:
    from lightning.pytorch import Callback, LightningDataModule
except ImportError as error:
    raise ImportError("headrace.lightning needs Lightning: pip install lightning") from error

from .torch import FeedDataset

__all__ = ["FeedDataModule"]


#: Loaders by the value of Lightning's ``RunningStage``.
_LOADERS = {
    "train": "train",
    "sanity_check": "val",
    "validate": "val",
    "test": "test",
    "predict": "predict",
}


class FeedDataModule(LightningDataModule):  # type: ignore[misc]
    """Feeds as the data of a Lightning ``Trainer``: ``headrace.torch.FeedDataset`` for each stage.

    An epoch of the trainer is an epoch of the feed, or its rest where it has no epochs.  Batches
    are committed when they are trained.  Every ``log_every_n_steps`` the trainer's loggers get what
    ``feed.log_to`` logs.  A checkpoint has the position of ``train`` after the last
    trained batch, and ``fit(ckpt_path=…)`` takes that feed back to it.
    """

    def __init__(
        self,
        train: FeedDataset | None = None,
        val: FeedDataset | None = None,
        test: FeedDataset | None = None,
        predict: FeedDataset | None = None,
    ) -> None:
        super().__init__()
        given = {"train": train, "val": val, "test": test, "predict": predict}
        self._loaders = {
            name: _Loader(name, dataset) for name, dataset in given.items() if dataset is not None
        }
        if not self._loaders:
            raise ValueError("FeedDataModule: give at least one of train, val, test and predict")
        for name, loader in self._loaders.items():
            setattr(self, f"{name}_dataloader", loader.itself)  # Lightning looks for these methods

    def setup(self, stage: str) -> None:
        callbacks = self.trainer.callbacks
        if not any(
            isinstance(each, _Steps) and each.loaders is self._loaders for each in callbacks
        ):
            callbacks.insert(0, _Steps(self._loaders))  # before those that write checkpoints

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        loader = self._loaders[_LOADERS[self.trainer.state.stage.value]]
        loader.in_hand = loader.take() if batch is _TICKET else batch
        return loader.in_hand

    def state_dict(self) -> dict[str, Any]:
        train = self._loaders.get("train")
        return {} if train is None else {"train": train.dataset.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        train = self._loaders.get("train")
        if train is not None:
            train.dataset.load_state_dict(state_dict["train"])

    def teardown(self, stage: str) -> None:
        for loader in self._loaders.values():
            loader.leave()


#: Stands for a batch that comes only after the states of the one in hand are saved.
_TICKET = object()


class _Loader:
    """The iterable of one stage.  It yields tickets."""

    def __init__(self, name: str, dataset: FeedDataset) -> None:
        if not isinstance(dataset, FeedDataset):
            raise TypeError(f"{name}={dataset!r:.120} is no headrace.torch.FeedDataset")
        dataset.commit_explicitly()
        self.dataset = dataset
        self.count = 0  # batches of this pass
        self.in_hand: Any = None
        self._batches: Iterator[Any] = iter(())
        self._next: list[Any] = []  # the batch after the one in hand, once it was asked for
        self._ended = False
        self._skips = False

    def itself(self) -> _Loader:
        return self

    def __iter__(self) -> Iterator[Any]:
        self.count, self._ended = 0, self._skips
        if not self._next:
            self._batches = iter(self.dataset)
        return iter(self._ticket, None)

    def __len__(self) -> int:
        """Return the number of batches of a whole pass.  TypeError where nobody knows it."""
        return len(self.dataset)

    def _ticket(self) -> Any:
        return None if self._ended else _TICKET

    def take(self) -> Any:
        """Return the batch of a ticket.

        StopIteration, where none is left, ends Lightning's loop.
        """
        if self.ended():
            raise StopIteration
        return self._next.pop()

    def ended(self) -> bool:
        """Return whether no batch follows the one in hand."""
        if not self._next and not self._ended:
            self._next = list(itertools.islice(self._batches, 1))
            self._ended = not self._next
            self.count += len(self._next)
        return self._ended

    def states_are_saved(self) -> bool:
        """Return whether the next batch of segments can be asked for."""
        return self.dataset.feed._states_are_saved

    def finish(self) -> None:
        """Commit the batch in hand."""
        if self.in_hand is not None:
            self.dataset.trained(self.in_hand)
            self.in_hand = None

    def rehearse(self, begins: bool) -> None:
        """Let a sanity check leave no trace: its batches come again, and it gets no segments.

        The validation would continue from states that it saved.
        """
        self._skips = begins and bool(self.dataset.feed.states)
        if not begins:
            self.leave()

    def leave(self) -> None:
        """Leave the feed: batches that are not committed go out again."""
        self.in_hand, self._next = None, []
        self.dataset.close()

    # Lightning takes a loader with these for one that resumes.  The data module has the position.

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        return


class _Steps(Callback):  # type: ignore[misc]
    """Commits what was trained, logs numbers of the feed, and finds the last batch of a pass over
    segments."""

    def __init__(self, loaders: dict[str, _Loader]) -> None:
        self.loaders = loaders

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self.loaders["train"].states_are_saved():
            self._find_end(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *step: Any) -> None:
        loader = self.loaders["train"]
        self._find_end(trainer)
        loader.finish()
        step = trainer.global_step
        if trainer.loggers and step % trainer.log_every_n_steps == 0:
            numbers = loader.dataset.feed._numbers()
            for logger in trainer.loggers if numbers else ():
                logger.log_metrics(numbers, step)

    def _find_end(self, trainer: Any) -> None:
        """Tell Lightning of the last batch before it looks whether to validate.

        By default it validates after as many batches as the length; a pass may end before.
        """
        if self.loaders["train"].ended():
            trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True
            if self._validates_at_end(trainer):
                trainer.val_check_batch = trainer.fit_loop.epoch_loop.batch_idx + 1

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._validates_at_end(trainer):
            trainer.val_check_batch = trainer.num_training_batches

    @staticmethod
    def _validates_at_end(trainer: Any) -> bool:
        return trainer.val_check_interval == 1.0 and trainer.check_val_every_n_epoch is not None

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if not self.loaders["train"].count:
            trainer.should_stop = True  # the dataset has warned

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self.loaders["val"].rehearse(True)

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        self.loaders["val"].rehearse(False)

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *step: Any) -> None:
        if not trainer.sanity_checking:
            self.loaders["val"].finish()

    def on_test_batch_end(self, trainer: Any, pl_module: Any, *step: Any) -> None:
        self.loaders["test"].finish()

    def on_predict_batch_end(self, trainer: Any, pl_module: Any, *step: Any) -> None:
        self.loaders["predict"].finish()
