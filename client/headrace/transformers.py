"""Hugging Face: a ``Trainer`` that trains on a feed, whose checkpoints contain the feed's position.

    train_dataset = FeedDataset(address) ──► batches, as they are, on the trainer's device
    optimizer step     ─► its batches are committed
    save_checkpoint    ─► trainer_state.json: "FeedPosition", the position after that step
    train(resume_from_checkpoint=…)  ─► the feed is taken back to it

The feed has batches: ``per_device_train_batch_size``, the collator and the workers of ``Trainer``
have no part in them.  Columns are the arguments of the model's ``forward``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(
        "headrace.transformers needs transformers and accelerate: "
        "pip install transformers accelerate"
    ) from error

from .batches.segments import SegmentBatch
from .torch import FeedDataset

__all__ = ["FeedTrainer"]


class FeedTrainer(Trainer):  # type: ignore[misc]
    """A ``Trainer`` whose datasets may be ``headrace.torch.FeedDataset``.

    It needs ``TrainingArguments(ignore_data_skip=True)``: the feed goes on by itself.  A batch of
    segments comes as ``{"batch": batch}``, for a ``compute_loss`` of yours that saves its states.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        begin = super().__init__
        given = inspect.signature(begin).bind(*arguments, **options).arguments
        dataset = given.get("train_dataset")
        if isinstance(dataset, FeedDataset):
            _check(given.get("args"))
            dataset.commit_explicitly()
        begin(*arguments, **options)  # reads the length of the dataset, which connects
        if isinstance(dataset, FeedDataset):
            self.add_callback(FeedPosition())

    def get_train_dataloader(self) -> Any:
        dataset = self.train_dataset
        if not isinstance(dataset, FeedDataset):
            return super().get_train_dataloader()
        ahead = self.args.gradient_accumulation_steps
        if ahead > 1 and dataset.feed.states:
            raise ValueError(
                f"gradient_accumulation_steps={ahead}: Trainer takes so many batches before it "
                "trains one, and a batch of segments needs the states of the one before; use 1"
            )
        return _TrainLoader(dataset, self.args.device)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        if isinstance(dataset, FeedDataset):
            return _Loader(dataset, self.args.device)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        if isinstance(test_dataset, FeedDataset):
            return _Loader(test_dataset, self.args.device)
        return super().get_test_dataloader(test_dataset)

    def log(self, logs: dict[str, float], *more: Any, **options: Any) -> None:
        """Log what ``feed.log_to`` logs beside the loss."""
        if isinstance(self.train_dataset, FeedDataset) and "loss" in logs:
            logs = {**logs, **self.train_dataset.feed._numbers()}
        super().log(logs, *more, **options)

    def _save_checkpoint(self, *arguments: Any) -> None:
        if isinstance(self.train_dataset, FeedDataset):
            token = self.train_dataset.state_dict()  # on all ranks; one of them writes it
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, FeedPosition):
                    callback.token = token
        super()._save_checkpoint(*arguments)


def _check(args: Any) -> None:
    """Refuse arguments that a feed can not follow."""
    if args is None or not args.ignore_data_skip:
        raise ValueError(
            "ignore_data_skip=False: a resumed Trainer would skip batches that the feed does not "
            "hand out again; use TrainingArguments(ignore_data_skip=True)"
        )
    if args.dataloader_num_workers:
        raise ValueError(
            f"dataloader_num_workers={args.dataloader_num_workers}: the server of the feed has the "
            "workers; use 0"
        )


class _Loader:
    """A feed as a loader of ``Trainer``."""

    batch_size = None  # each batch has its own

    def __init__(self, dataset: FeedDataset, device: Any) -> None:
        self.feed_dataset = dataset
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        for batch in self.feed_dataset:
            segments = isinstance(batch, SegmentBatch)  # Trainer expects mappings, and moves them
            yield {"batch": batch.to(self._device)} if segments else batch


class _TrainLoader(_Loader):
    """The loader of training: ``Trainer`` plans its epochs and schedules by the length."""

    def __len__(self) -> int:
        return len(self.feed_dataset)


class FeedPosition(TrainerCallback, ExportableState):  # type: ignore[misc]
    """The part of ``trainer_state.json`` that has the position."""

    def __init__(self) -> None:
        self.token: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        token, self.token = self.token, None
        return {"args": {}, "attributes": {"token": token}}

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **others: Any
    ) -> None:
        known = state.stateful_callbacks.get(type(self).__name__, {})
        token = known.get("attributes", {}).get("token")
        if token is not None:
            train_dataloader.feed_dataset.load_state_dict(token)
        train_dataloader.feed_dataset.feed._numbers()  # counted from here on

    def on_step_end(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **others: Any
    ) -> None:
        train_dataloader.feed_dataset.trained()
