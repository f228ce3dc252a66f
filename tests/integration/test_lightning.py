"""Lightning trains on feeds: epochs, validation, segments, ends.

How it goes on after it was killed is in test_torch.py, with the other loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.waiting import waits_end_with

from .serving import connect, dataset_of, in_segments, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tools,
    pytest.mark.filterwarnings("ignore"),  # of Lightning, and what it imports
]


def plain(rows: int = 12) -> hs.Pipeline:
    return hs.from_examples([{"i": np.float32(i)} for i in range(rows)]).batch(2)


def segments() -> hs.Pipeline:
    rows = [{"key": b"%d" % i, "x": np.ones(1 + 3 * i, np.float32)} for i in range(5)]
    states = {"sum": hs.zeros(())}
    return in_segments(hs.from_examples(rows), num_unroll=3, capacity=4, initial_states=states)


@pytest.fixture(scope="module")
def lightning() -> Any:
    pytest.importorskip("torch")
    return pytest.importorskip("lightning")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[hs.Server]:
    feeds = {"plain": plain(), "val": plain(8), "segments": segments(), "val-segments": segments()}
    with serving(feeds, state_dir=tmp_path / "state") as server:
        yield server


def module_of(lightning: Any) -> Any:
    import torch

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen: list[Any] = []
            self.validated: list[Any] = []

        def look(self, batch: Any, seen: list[Any]) -> Any:
            if not hasattr(batch, "save_state"):
                seen.append(batch["i"].tolist())
                return batch["i"].mean()
            seen.append([key.decode() for key in batch.key])
            batch.save_state("sum", batch.state("sum") + batch.sequences["x"].sum(1))
            return batch.state("sum").mean()

        def training_step(self, batch: Any, number: int) -> Any:
            return self.weight * self.look(batch, self.seen)

        def validation_step(self, batch: Any, number: int) -> None:
            self.look(batch, self.validated)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    return Module()


def trainer_of(lightning: Any, directory: Path, **options: Any) -> Any:
    return lightning.Trainer(
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=directory,
        **{"logger": False, "enable_checkpointing": False, "max_epochs": 1, **options},
    )


ROWS = [[float(i), float(i + 1)] for i in range(0, 12, 2)]


def test_a_pass_over_plain_feeds_is_exact_and_ends_with_a_validation(lightning, server, tmp_path):
    from headrace.lightning import FeedDataModule

    logger = lightning.pytorch.loggers.CSVLogger(tmp_path)
    options = {"logger": logger, "log_every_n_steps": 2}
    module, trainer = module_of(lightning), trainer_of(lightning, tmp_path, **options)
    data = FeedDataModule(dataset_of(server, "plain"), val=dataset_of(server, "val"))
    trainer.fit(module, datamodule=data)
    assert module.seen == ROWS
    lines = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    assert "feed/rows_per_s" in lines[0] and len(lines) == 1 + 2  # after 4 and 6 steps
    # Two batches of the sanity check come again.
    assert module.validated == ROWS[:2] + ROWS[:4]
    assert server.stats()["plain"]["batches"] == 6 and server.stats()["val"]["batches"] == 4


def test_schedules_know_the_length_and_a_shorter_pass_is_validated_too(lightning, server, tmp_path):
    import torch

    from headrace.lightning import FeedDataModule

    module = module_of(lightning)
    lengths = []

    def configure_optimizers() -> Any:
        optimizer = torch.optim.SGD(module.parameters(), 0.01)
        lengths.append(module.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=lengths[0])
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    module.configure_optimizers = configure_optimizers
    with connect(server, feed="plain") as feed:  # another trainer had two batches of the pass
        for _ in range(2):
            next(feed).commit()
    trainer = trainer_of(lightning, tmp_path, num_sanity_val_steps=0, max_epochs=2)
    data = FeedDataModule(dataset_of(server, "plain"), val=dataset_of(server, "val"))
    with pytest.warns(UserWarning, match="has no batch"):
        trainer.fit(module, datamodule=data)
    assert lengths == [2 * 6] and trainer.num_training_batches == 6
    assert module.seen == ROWS[2:] and module.validated == ROWS[:4]


def test_a_pass_over_segments_waits_for_no_state_that_its_own_loop_holds(
    lightning, server, tmp_path
):
    from headrace.lightning import FeedDataModule

    module, trainer = module_of(lightning), trainer_of(lightning, tmp_path)
    data = FeedDataModule(dataset_of(server, "segments"), val=dataset_of(server, "val-segments"))
    trainer.fit(module, datamodule=data)
    keys = sorted(key for batch in module.seen for key in batch)
    assert len(keys) == len(set(keys)) == 1 + 2 + 3 + 4 + 5
    assert sorted(key for batch in module.validated for key in batch) == keys
    assert trainer.fit_loop.epoch_loop.batch_progress.is_last_batch


def test_a_feed_of_segments_without_the_data_module_ends_with_the_remedy(
    lightning, server, tmp_path
):
    """Lightning asks for the second batch before the step on the first one."""
    module, trainer = module_of(lightning), trainer_of(lightning, tmp_path)
    remedy = r"headrace\.lightning\.FeedDataModule"
    with connect(server, feed="segments", framework="torch") as feed, waits_end_with(remedy):
        with pytest.raises(headrace.DeadlineExceeded, match=remedy):
            trainer.fit(module, feed)


def test_a_feed_that_has_ended_ends_the_training(lightning, server, tmp_path):
    from headrace.lightning import FeedDataModule

    module, trainer = module_of(lightning), trainer_of(lightning, tmp_path, max_epochs=-1)
    with pytest.warns(UserWarning, match="has no batch: the feed has ended.  Declare it"):
        trainer.fit(module, datamodule=FeedDataModule(dataset_of(server, "plain")))
    assert module.seen == ROWS


def test_what_is_no_dataset_of_a_feed_is_refused(lightning):
    from headrace.lightning import FeedDataModule
    from headrace.torch import FeedDataset

    with pytest.raises(ValueError, match="at least one of train, val, test and predict"):
        FeedDataModule()
    with pytest.raises(TypeError, match=r"val=\[\] is no headrace.torch.FeedDataset"):
        FeedDataModule(val=[])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="commit='on_next': this loop fetches ahead"):
        FeedDataModule(FeedDataset("tcp://127.0.0.1:1", commit="on_next"))
