"""A process of a group that trains one model: the first one has the feed.

    torch_group.py ADDRESS MEETING RANK WORLD FEED …

For each feed it prints one JSON line for each batch, and one for the end or the error.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

import headrace
from headrace.torch import broadcast


def tell(**event: object) -> None:
    os.write(1, f"{json.dumps(event)}\n".encode())


def follow(feed: headrace.Feed | None, name: str) -> None:
    for batch in broadcast(feed):
        if name == "lanes" or name == "arrival":
            state = batch.state("sum")
            shown = [[key.decode() for key in batch.key], state.tolist(), batch.last.tolist()]
            batch.save_state("sum", state + batch.sequences["x"].sum(1))
        else:
            x = batch["x"]
            shown = [batch["i"].tolist(), x.values().tolist(), x.offsets().tolist()]
            shown.append([text.decode() for text in batch["s"]])
            batch.commit()
        tell(event="batch", feed=name, shown=shown, number=batch.number, epoch=batch.epoch)
        dist.all_reduce(torch.ones(1))  # they go on in step


address, meeting, rank, world, *names = sys.argv[1:]
group = {"rank": int(rank), "world_size": int(world)}
dist.init_process_group("gloo", init_method=f"file://{meeting}", **group)
for name in names:
    feed = headrace.connect(address, feed=name, framework="torch") if rank == "0" else None
    try:
        follow(feed, name)
        tell(event="end", feed=name)
    except headrace.HeadraceError as error:
        tell(event="error", feed=name, text=str(error), kind=type(error).__name__)
    if feed is not None:
        feed.close()
dist.destroy_process_group()
