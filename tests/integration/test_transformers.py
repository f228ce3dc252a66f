"""Hugging Face's Trainer on feeds: batches, evaluation, accumulation and refusals.

How it goes on after it was killed is in test_torch.py, with the other loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs

from .serving import dataset_of, serving
from .test_lightning import segments

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tools,
    pytest.mark.filterwarnings("ignore"),  # of transformers, and what it imports
]


def plain(rows: int) -> hs.Pipeline:
    examples = [{"x": np.float32([i]), "labels": np.float32(2 * i)} for i in range(rows)]
    return hs.from_examples(examples).batch(2)


@pytest.fixture(scope="module")
def transformers() -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    return pytest.importorskip("transformers")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[hs.Server]:
    feeds = {"train": plain(12), "eval": plain(6), "segments": segments()}
    with serving(feeds, state_dir=tmp_path / "state") as server:
        yield server


def arguments_of(transformers: Any, directory: Path, **options: Any) -> Any:
    named = {
        "max_steps": 100,
        "ignore_data_skip": True,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        **options,
    }
    return transformers.TrainingArguments(str(directory / "out"), **named)


def net_of() -> Any:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)
            self.seen: list[Any] = []

        def forward(self, x: Any = None, labels: Any = None, batch: Any = None) -> Any:
            if batch is not None:
                self.seen += [key.decode() for key in batch.key]
                batch.save_state("sum", batch.state("sum") + batch.sequences["x"].sum(1))
                return {"loss": self.linear(batch.state("sum")[:, None]).mean()}
            self.seen.append(x[:, 0].tolist())
            guess = self.linear(x)[:, 0]
            return {"loss": ((guess - labels) ** 2).mean(), "logits": guess}

    return Net()


ROWS = [[float(i), float(i + 1)] for i in range(0, 12, 2)]


def test_training_ends_with_the_feed_and_evaluation_has_all_rows(transformers, server, tmp_path):
    from headrace.transformers import FeedTrainer

    net = net_of()
    counted: list[int] = []
    trainer = FeedTrainer(
        net,
        arguments_of(
            transformers,
            tmp_path,
            gradient_accumulation_steps=2,
            logging_strategy="steps",
            logging_steps=1,
        ),
        train_dataset=dataset_of(server, "train"),
        eval_dataset={"few": dataset_of(server, "eval")},
        compute_metrics=lambda found: counted.append(len(found.predictions)) or {},
    )
    trainer.train()
    assert net.seen == ROWS and trainer.state.global_step == 3
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 3 and all(entry["feed/rows_per_s"] > 0 for entry in logged)
    assert server.stats()["train"]["batches"] == 6
    assert trainer.evaluate()["eval_few_loss"] > 0
    assert counted == [6] and net.seen == ROWS + ROWS[:3]
    trainer.train_dataset.close()
    trainer.eval_dataset["few"].close()


def test_epochs_are_planned_by_the_length_of_the_feed(transformers, tmp_path):
    from headrace.transformers import FeedTrainer

    examples = [{"x": np.float32([i]), "labels": np.float32(2 * i)} for i in range(7)]
    epochs = hs.from_examples(examples).repeat(3, across_batches=False).batch(2)
    with serving(epochs) as server:
        args = arguments_of(transformers, tmp_path, max_steps=-1, num_train_epochs=3)
        with dataset_of(server, "default") as dataset:
            assert len(dataset) == 3
            trainer = FeedTrainer(net_of(), args, train_dataset=dataset)
            assert trainer.train().global_step == trainer.state.max_steps == 9
            assert dataset.feed.progress.epoch == 2


def test_segments_come_one_by_one_with_their_states(transformers, server, tmp_path):
    from headrace.transformers import FeedTrainer

    net = net_of()
    with dataset_of(server, "segments") as dataset:
        FeedTrainer(net, arguments_of(transformers, tmp_path), train_dataset=dataset).train()
        assert len(net.seen) == len(set(net.seen)) == 15
        args = arguments_of(transformers, tmp_path, gradient_accumulation_steps=2)
        trainer = FeedTrainer(net, args, train_dataset=dataset)
        with pytest.raises(ValueError, match="gradient_accumulation_steps=2: Trainer takes so"):
            trainer.train()


def test_arguments_that_the_feed_cannot_follow_are_refused(transformers, tmp_path):
    from headrace.torch import FeedDataset
    from headrace.transformers import FeedTrainer

    for options, text in (
        ({"ignore_data_skip": False}, "use TrainingArguments.ignore_data_skip=True"),
        ({"dataloader_num_workers": 2}, "dataloader_num_workers=2: the server of the feed"),
    ):
        args = arguments_of(transformers, tmp_path, **options)
        with pytest.raises(ValueError, match=text):
            FeedTrainer(net_of(), args, train_dataset=FeedDataset("tcp://127.0.0.1:1", timeout=1))
