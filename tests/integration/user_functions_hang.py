"""User functions that kill or hold up the worker that calls them, importable by workers."""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Example = dict[str, Any]


def loop_at_500(example: Example) -> Example:
    while example["i"] == 500:
        pass
    return example


def exit_at_500(example: Example) -> Example:
    if example["i"] == 500:
        os._exit(7)
    return example


def is_not_500(example: Example) -> bool:
    return bool(example["i"] != 500)


def numbers(n: int) -> Any:
    """A generator that can not get past one number."""
    for i in range(n):
        if i == 500:
            ctypes.string_at(0)
        yield {"i": i}


def two_thousand() -> Any:
    return numbers(2000)


def devour_at_500(example: Example) -> Example:
    if example["i"] == 500:
        bytearray(4 << 30)
    return example


def forked_at_500(example: Example) -> Example:
    """Fork a child that returns like its parent; put its number in the example."""
    forks = example["i"] == 500
    return {**example, "child": os.fork() if forks else -1, "pid": os.getpid()}


def passes_the_gate(example: Example) -> bool:
    """Say that a function waits here, and wait until somebody opens the gate."""
    if example["n"] == 5:
        place = Path(example["place"].decode())
        (place / "inside").touch()
        while not (place / "open").exists():
            time.sleep(0.01)
    return True


def holds_the_interpreter(example: Example) -> bool:
    """Wait for the lock of a file in C, so that no other thread of this process runs."""
    if example["n"] == 5:
        place = Path(example["place"].decode())
        with (place / "lock").open("rb") as file:
            (place / "inside").touch()
            ctypes.PyDLL(None).flock(file.fileno(), fcntl.LOCK_EX)
    return True


def crash_with_500(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """Crash on all rows that it gets together, if one of them is 500."""
    if 500 in columns["i"]:
        ctypes.string_at(0)
    return columns
