"""Detection in video with a memory by lane, on two ranks, stopped and resumed exactly.

python examples/temporal_detection.py

An object moves through a clip and is hidden in most frames: the model sees where it was in its
memory, a row for each lane.  The sampler that keeps each row of the batch in its own clip, as
``InfiniteGroupEachSampleInBatchSampler`` does elsewhere, is ``order="lanes"``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import ranks
import torch
import torch.distributed as dist
from torch import nn

import headrace_server as hs
from headrace.torch import FeedDataset

RANKS, FRAMES, UNITS, STOP = 2, 4, 24, 20


def clips() -> hs.Pipeline:
    chance = np.random.default_rng(1)
    examples = []
    for i in range(48):
        t = np.arange(20 + i % 16)[:, None]
        box = chance.uniform(-1, 1, 2) + t * chance.uniform(-0.02, 0.02, 2)
        hidden = (chance.random(len(t)) < 0.7) & (t[:, 0] > 0)
        seen = np.where(hidden[:, None], 0, np.concatenate([box, t * 0 + 1], axis=1))
        examples.append({"clip": f"c{i}", "seen": seen.astype("f4"), "box": box.astype("f4")})
    return (
        hs.from_examples(examples)
        .shuffle(seed=1)
        .repeat(3)
        .batch_sequences_with_states(
            "clip", ["seen", "box"], [], None, {}, num_unroll=FRAMES, batch_size=4, order="lanes"
        )
    )


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(3, UNITS, batch_first=True)
        self.box = nn.Linear(UNITS, 2)

    def forward(self, seen: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, ...]:
        steps, after = self.memory(seen, before[None])
        return self.box(steps), after[0]


def train(address: str, name: str, directory: str, most: int | None) -> None:
    """The work of one rank, from its checkpoint on; after ``most`` rounds it writes one."""
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Detector())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    path = Path(directory, f"{name}{dist.get_rank()}.pt")
    with FeedDataset(address, feed=name) as dataset:
        losses, memory = [], None
        if path.exists():
            known = torch.load(path)
            model.load_state_dict(known["model"])
            optimizer.load_state_dict(known["optimizer"])
            dataset.load_state_dict(known["feed"])
            losses, memory = known["losses"], known["memory"]
        if memory is None:
            memory = torch.zeros(dataset.feed.lanes, UNITS)
        for batch in dataset:
            memory[batch.lane[batch.first]] = 0
            box, after = model(batch.sequences["seen"], memory[batch.lane])
            memory[batch.lane] = after.detach()
            real = torch.arange(FRAMES) < batch.length[:, None]  # none in an empty row
            error = ((box - batch.sequences["box"]) ** 2).sum(-1)
            loss = (error * real).sum() / real.sum().clamp(min=1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == most:
                break
        known = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "memory": memory}
        torch.save({**known, "losses": losses, "feed": dataset.state_dict()}, path)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        hs.run({"whole": clips(), "cut": clips()}, state_dir=f"{directory}/state") as server,
    ):
        ranks.run(train, RANKS, server.address, "whole", directory, None)
        ranks.run(train, RANKS, server.address, "cut", directory, STOP)
        ranks.run(train, RANKS, server.address, "cut", directory, None)
        whole, cut = (torch.load(f"{directory}/{n}0.pt")["losses"] for n in ("whole", "cut"))
    assert cut == whole, "a resumed run has the losses of one that was never stopped"
    print(f"{len(whole)} rounds, the same after a stop: ", end="")
    print(f"loss {np.mean(whole[:10]):.3f} at first, {np.mean(whole[-10:]):.3f} at the end")


if __name__ == "__main__":
    main()
