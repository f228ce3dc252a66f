"""One rank of a data-parallel job over feeds of sequences or of their segments, for the tests.

    python ddp_trainer.py ADDRESS RANK WORLD STORE FEED …

Trains a small recurrent model with torch's DDP on each feed in turn.  Prints a JSON line for each:
the number of steps of each epoch, the rows of this rank, and all bits of the parameters at the end.
"""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import headrace
from tests.patience import PATIENCE_S

EPOCHS = 3


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 4, batch_first=True)
        self.out = nn.Linear(4, 1)

    def forward(self, steps: Any, state: Any) -> tuple[Any, Any]:
        hidden, last = self.gru(steps, state[None])
        return self.out(hidden.mean(1))[:, 0], last[0]


def trained(model: Any, optimizer: Any, batch: Any, world: int, seen: list[str]) -> int:
    """Take one step, with the mean over the rows of all ranks; return 1."""
    segments = hasattr(batch, "valid")
    x, y = (batch.sequences["x"], batch.context["y"]) if segments else (batch["x"], batch["y"])
    valid = batch.valid if segments else torch.ones(len(y), dtype=torch.bool)
    before = batch.state("h") if segments else torch.zeros(len(y), 4)
    outputs, after = model(x, before)
    rows = valid.sum()
    dist.all_reduce(rows)
    optimizer.zero_grad()
    (((outputs - y) ** 2 * valid).sum() * world / rows).backward()
    optimizer.step()
    if segments:
        batch.save_state("h", after.detach())
    seen.extend(key.decode() for key in (batch.key if segments else batch["k"]) if key)
    return 1


def main(address: str, rank: int, world: int, store: str, feeds: list[str]) -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=PATIENCE_S)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout
    )
    for name in feeds:
        torch.manual_seed(rank)  # DDP gives all ranks the parameters of rank 0
        model = nn.parallel.DistributedDataParallel(Model())
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        seen: list[str] = []
        with headrace.connect(
            address,
            feed=name,
            framework="torch",
            rank=rank,
            world_size=world,
            timeout=PATIENCE_S,
        ) as feed:
            steps = [
                sum(trained(model, optimizer, batch, world, seen) for batch in feed)
                for _ in range(EPOCHS)
            ]
        parameters = [p.detach().numpy().tobytes().hex() for p in model.parameters()]
        told = {"event": "trained", "feed": name, "steps": steps, "seen": seen, "p": parameters}
        print(json.dumps(told), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
