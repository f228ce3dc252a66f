"""W1 shared by several trainers: processes that take, each batch to one of them.

files ─► worker × 2 ─► trainer × n ─► board ─► the number of the trainer, for each batch taken
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.scale.board import Board

from .processes import helper, last_line
from .steps import LOADED, READY, Contestant, Steps

__all__ = ["crowd"]

_LOOK_S = 0.002
_HOW = json.dumps({"framework": "tf"})


def crowd(trainers: int) -> Contestant:
    """So many of them, in TensorFlow, with default settings."""

    def steps(directory: Path) -> Steps:
        yield LOADED
        with (
            helper("servers", "headrace-w1-two", str(directory)) as server,
            tempfile.TemporaryDirectory(prefix="board-") as scratch,
        ):
            address = last_line(server)
            yield READY
            file = str(Path(scratch) / "board")
            board = Board(file, trainers)
            with _trainers(address, file, trainers) as processes:
                while not board.all_here:
                    _look(processes)
                board.start()
                before = board.batches
                while True:
                    _look(processes)
                    now = board.batches
                    for slot, (seen, taken) in enumerate(zip(before, now, strict=True)):
                        for _ in range(taken - seen):
                            yield slot + 1
                    before = now

    return steps


@contextlib.contextmanager
def _trainers(address: str, file: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "tests.scale.trainer", address, file]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes += [subprocess.Popen([*command, str(slot), _HOW]) for slot in range(count)]
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _look(processes: list[subprocess.Popen[bytes]]) -> None:
    time.sleep(_LOOK_S)
    if any(process.poll() is not None for process in processes):
        raise RuntimeError("a trainer has ended")
