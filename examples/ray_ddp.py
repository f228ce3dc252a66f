"""Segments on a Ray cluster: servers as actors, and DDP in Ray Train that goes on after a loss.

python examples/ray_ddp.py [--storage DIRECTORY] [--servers 2]

The checkpoint holds the model and the token of a snapshot of the feed.  Where a node is lost its
partitions go back to their last snapshot, the workers get ``FeedRewound``, and Ray Train starts
them again from their checkpoint, whose token takes all partitions back.  ``--storage`` is a
directory that all nodes see.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import numpy as np
import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from torch import nn

import headrace
import headrace_server as hs

WALKS, STEPS, UNITS, BATCH, EVERY = 96, 8, 16, 4, 10
SEGMENTS = sum(-(-(20 + i % 30) // STEPS) for i in range(WALKS))


def walks() -> hs.Pipeline:
    """Random walks; a model is to tell from one segment and its state how a walk drifts."""
    chance = np.random.default_rng(1)
    examples = []
    for i in range(WALKS):
        drift = chance.choice([-0.5, 0.5])
        steps = chance.normal(drift, 1.0, (20 + i % 30, 1)).astype(np.float32)
        examples.append({"name": f"walk{i}", "steps": steps, "up": np.float32(drift > 0)})
    features = {
        "name": hs.scalar("string"),
        "steps": hs.sequence("float32", (1,)),
        "up": hs.scalar("float32"),
    }
    return (
        hs.from_examples(examples, features)
        .shuffle(seed=2)
        .batch_sequences_with_states(
            input_key="name",
            input_sequences=["steps"],
            input_context=["up"],
            input_length=None,
            initial_states={"h": hs.zeros((UNITS,), "float32")},
            num_unroll=STEPS,
            batch_size=BATCH,
            capacity=8 * BATCH,
            pad=True,
        )
    )


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, UNITS, batch_first=True)
        self.out = nn.Linear(UNITS, 1)

    def forward(self, steps: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _, last = self.gru(steps, h[None])
        return self.out(last[0])[:, 0], last[0]


def train(config: dict[str, Any]) -> None:
    """The work of one rank."""
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    torch.manual_seed(3)
    model = ray.train.torch.prepare_model(Model())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    cross_entropy = nn.BCEWithLogitsLoss(reduction="none")
    token, done, rounds = None, 0, 0
    begun = ray.train.get_checkpoint()
    if begun is not None:
        with begun.as_directory() as directory:
            state = torch.load(os.path.join(directory, "state.pt"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        token, done, rounds = state["feed"], state["segments"], state["rounds"]

    def report(feed: headrace.Feed, loss: float) -> None:
        feed.commit()  # all saves of this rank are stored; the reduction waits for the others
        metrics = {"loss": loss, "segments": done, "rounds": rounds}
        torch.distributed.barrier()
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = None
            if rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state |= metrics | {"feed": feed.snapshot()}
                torch.save(state, os.path.join(directory, "state.pt"))
                checkpoint = Checkpoint.from_directory(directory)
            ray.train.report(metrics, checkpoint=checkpoint)  # waits for all ranks

    address = config["address"]
    begin = {"restart": True} if token is None else {"resume": token}
    with headrace.connect(address, framework="torch", rank=rank, world_size=world, **begin) as feed:
        for batch in feed:
            logits, h = model(batch.sequences["steps"], batch.state("h"))
            losses = cross_entropy(logits, batch.context["up"]) * batch.valid
            rows = batch.valid.sum()
            torch.distributed.all_reduce(rows)
            loss = losses.sum() * world / rows
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batch.save_state("h", h.detach())
            done, rounds = done + int(rows), rounds + 1
            if rounds % EVERY == 0:
                report(feed, loss.item())
        report(feed, loss.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", help="a directory that all nodes see")
    parser.add_argument("--servers", type=int, default=2)
    options = parser.parse_args()
    ray.init(runtime_env={"working_dir": os.path.dirname(os.path.abspath(__file__))})
    with tempfile.TemporaryDirectory() as temporary:
        storage = os.path.abspath(options.storage or temporary)
        with hs.on_ray(
            {"walks": walks()},
            servers=options.servers,
            partitions=4,
            resources={"CPU": 0.5},
            snapshots=os.path.join(storage, "snapshots"),
        ) as servers:
            result = ray.train.torch.TorchTrainer(
                train,
                train_loop_config={"address": servers.address},
                scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
                run_config=RunConfig(
                    storage_path=storage, failure_config=FailureConfig(max_failures=3)
                ),
            ).fit()
    segments, rounds = result.metrics["segments"], result.metrics["rounds"]
    print(f"{segments} segments in {rounds} rounds of two ranks, each segment once")
    assert segments == SEGMENTS
    ray.shutdown()


if __name__ == "__main__":
    main()
