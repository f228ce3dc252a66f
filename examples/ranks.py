"""Starts one function in several processes of this machine, as torchrun does."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.distributed.nn  # before there is a group, which it would keep for ever
import torch.multiprocessing


def run(function: Callable[..., None], world: int, *arguments: Any) -> None:
    """Call a function in ``world`` processes, each a rank of one group."""
    with tempfile.TemporaryDirectory() as directory:
        meeting = f"file://{os.path.join(directory, 'group')}"
        given = (function, world, meeting, *arguments)
        torch.multiprocessing.spawn(_run, given, nprocs=world)


def _run(
    rank: int, function: Callable[..., None], world: int, meeting: str, *arguments: Any
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    function(*arguments)
    dist.destroy_process_group()
