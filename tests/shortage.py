"""A process that can open nothing more, and a disk that is full soon, as long as a block lasts."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def no_descriptors(free: int = 0) -> Iterator[None]:
    """Let every open, accept and socket fail with EMFILE after ``free`` successes."""
    gc.collect()  # what goes within the block would make room
    gc.disable()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(free + 1)]
    for number in opened:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(opened), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        gc.enable()


@contextlib.contextmanager
def small_disk(at: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory; skip the test where this user may not."""
    at.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)]
    if (mounted := subprocess.run(command, capture_output=True)).returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)
