"""The children and threads of a process: those that there are, and the end of any."""

from __future__ import annotations

import os
import select
from pathlib import Path

from tests.patience import PATIENCE_S

__all__ = ["children_of", "gone"]


def gone(pid: int, timeout_s: float = PATIENCE_S) -> bool:
    """Return whether a process, which need not be a child, ends in time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    ended = bool(poller.poll(int(1000 * timeout_s)))
    os.close(fd)
    return ended


def children_of(pid: int) -> list[int]:
    """Return the direct children of all its threads, including unreaped ones."""
    while True:
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
        except FileNotFoundError:  # the process itself has ended
            return []
        try:
            return [
                int(child) for task in tasks for child in (task / "children").read_text().split()
            ]
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread ended meanwhile: its children are another thread's now
