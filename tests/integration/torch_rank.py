"""A rank of torchrun.  Rank 0 is killed amid its third step in the first attempt.

    torchrun … torch_rank.py ADDRESS

It prints one JSON line for each batch that all ranks have trained.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch.distributed as dist

import headrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with headrace.connect(sys.argv[1], framework="torch", rank=rank, world_size=world) as feed:
    for step, batch in enumerate(feed):
        rows = batch["i"].tolist()
        if attempt == rank == 0 and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(batch["i"].sum())  # the others wait here for the one that is dead
        told = {"event": "batch", "attempt": attempt, "step": step, "rows": rows}
        os.write(1, f"{json.dumps(told)}\n".encode())  # whole, though both ranks have one pipe
dist.destroy_process_group()
