"""A training run in a loop of others, as a process: it takes checkpoints, and may be killed.

    python training.py LOOP ADDRESS FEED DIRECTORY [STEP]

It goes on from the last checkpoint in the directory, if there is one.  It prints a JSON line with
the loss of each step, all its bits.  At STEP it kills itself by SIGKILL, in the middle of the step:
the loss is there, and the weights are not changed yet.  A checkpoint is taken after each second
step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headrace.torch import FeedDataset

EPOCHS = 2
CHECKPOINT = 2


class Net(torch.nn.Module):
    """A model that kills its process at a step."""

    def __init__(self, kill: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())
        self.outer = torch.nn.Linear(3, 1)
        self.recurrent = torch.nn.GRU(2, 3, batch_first=True)
        self.kill = kill
        self.steps: Callable[[], int] = lambda: 0

    def forward(self, x: Any = None, labels: Any = None, batch: Any = None) -> dict[str, Any]:
        if batch is not None and not hasattr(batch, "save_state"):
            x, labels = batch["x"], batch["labels"]
        if x is not None:
            guess = self.outer(self.inner(x))[:, 0]
        else:
            steps, state = self.recurrent(batch.sequences["x"], batch.state("h")[None])
            batch.save_state("h", state[0])
            guess, labels = self.outer(steps).mean((1, 2)), batch.context["labels"]
        loss = ((guess - labels) ** 2).mean()
        step = self.steps() + 1
        line = json.dumps({"step": step, "loss": loss.item().hex()})
        print(line, flush=True)
        if step == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"loss": loss, "logits": guess}


def stateful(net: Net, dataset: FeedDataset, directory: Path) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    loader: Any = StatefulDataLoader(dataset, batch_size=None, num_workers=0)
    path, step, epoch = directory / "checkpoint", 0, 0
    net.steps = lambda: step
    if path.exists():
        saved = torch.load(path)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
        step, epoch = saved["step"], saved["epoch"]
    while epoch < EPOCHS:
        for batch in loader:
            loss = net(batch=batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % CHECKPOINT == 0:
                saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
                saved.update(data=loader.state_dict(), step=step, epoch=epoch)
                torch.save(saved, f"{path}.new")
                os.replace(f"{path}.new", path)
        epoch += 1


def accelerate(net: Net, dataset: FeedDataset, directory: Path) -> None:
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    class Progress:
        step = epoch = 0

        def state_dict(self) -> dict[str, int]:
            return {"step": self.step, "epoch": self.epoch}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.step, self.epoch = state["step"], state["epoch"]

    config = ProjectConfiguration(str(directory), automatic_checkpoint_naming=True, total_limit=1)
    accelerator = Accelerator(cpu=True, project_config=config)
    optimizer: Any = torch.optim.Adam(net.parameters(), 0.01)
    model, optimizer, batches = accelerator.prepare(net, optimizer, dataset)
    progress = Progress()
    net.steps = lambda: progress.step
    accelerator.register_for_checkpointing(batches, progress)
    if any(directory.glob("checkpoints/*")):
        accelerator.load_state()
        config.iteration = progress.step // CHECKPOINT
    while progress.epoch < EPOCHS:
        for batch in batches:
            loss = model(batch=batch.to(accelerator.device))["loss"]
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            progress.step += 1
            if progress.step % CHECKPOINT == 0:
                accelerator.save_state()
        progress.epoch += 1


def lightning(net: Net, dataset: FeedDataset, directory: Path) -> None:
    import lightning

    from headrace.lightning import FeedDataModule

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            net.steps = lambda: self.trainer.global_step

        def training_step(self, batch: Any, number: int) -> Any:
            return net(batch=batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(net.parameters(), 0.01)

    checkpoint = lightning.pytorch.callbacks.ModelCheckpoint(
        directory, filename="at", every_n_train_steps=CHECKPOINT, enable_version_counter=False
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[checkpoint],
    )
    last = directory / "at.ckpt"
    trainer.fit(
        Module(), datamodule=FeedDataModule(dataset), ckpt_path=str(last) if last.exists() else None
    )


def transformers(net: Net, dataset: FeedDataset, directory: Path) -> None:
    from transformers import TrainingArguments

    from headrace.transformers import FeedTrainer

    args = TrainingArguments(
        str(directory),
        max_steps=100,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        save_steps=CHECKPOINT,
        ignore_data_skip=True,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = FeedTrainer(net, args, train_dataset=dataset)
    net.steps = lambda: trainer.state.global_step
    trainer.train(resume_from_checkpoint=any(directory.glob("checkpoint-*")))


LOOPS = {loop.__name__: loop for loop in (stateful, accelerate, lightning, transformers)}


def main() -> None:
    loop, address, feed, directory, *kill = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # With prefetch the order of segments would depend on when states are saved.
    ahead = 0 if feed.startswith("segments") else 2
    with FeedDataset(address, feed=feed, prefetch=ahead, restart=True, timeout=60) as dataset:
        LOOPS[loop](Net(int(kill[0]) if kill else 0), dataset, Path(directory))


if __name__ == "__main__":
    main()
