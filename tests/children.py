"""The children of a process, read while its threads come and go."""

from __future__ import annotations

from pathlib import Path

__all__ = ["children_of"]


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
