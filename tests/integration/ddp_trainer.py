"""One rank of a data-parallel job over feeds of segments, for the tests.

    python ddp_trainer.py ADDRESS RANK WORLD STORE FEED …

Trains a small recurrent model with torch's DDP on each feed in turn.  Prints a JSON line for each:
the number of steps, the segments of this rank, and sums of the parameters at the end.
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


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 4, batch_first=True)
        self.out = nn.Linear(4, 1)

    def forward(self, steps: Any, state: Any) -> tuple[Any, Any]:
        hidden, last = self.gru(steps, state[None])
        return self.out(hidden.mean(1))[:, 0], last[0]


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
        steps, seen = 0, []
        with headrace.connect(
            address,
            feed=name,
            framework="torch",
            rank=rank,
            world_size=world,
            timeout=PATIENCE_S,
        ) as feed:
            for batch in feed:
                outputs, state = model(batch.sequences["x"], batch.state("h"))
                losses = (outputs - batch.context["y"]) ** 2
                rows = batch.valid.sum()
                dist.all_reduce(rows)
                optimizer.zero_grad()
                ((losses * batch.valid).sum() * world / rows).backward()
                optimizer.step()
                batch.save_state("h", state.detach())
                steps += 1
                seen += [key.decode() for key in batch.key if key]
        parameters = [float(p.detach().double().sum()) for p in model.parameters()]
        told = {"event": "trained", "feed": name, "steps": steps, "seen": seen, "p": parameters}
        print(json.dumps(told), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
