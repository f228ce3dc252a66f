"""File systems of a trial's own, whose disk is a file that can be copied."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from .frame import NotHere

__all__ = ["command", "image", "mounted"]


def command(*words: str) -> None:
    """Run a tool of the system, or NotHere."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except OSError as error:
        raise NotHere(f"{words[0]}: {error.strerror}") from None
    if done.returncode:
        raise NotHere(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


@contextlib.contextmanager
def mounted(at: Path, options: Sequence[str]) -> Iterator[Path]:
    """Mount, and unmount in any case."""
    at.mkdir(parents=True, exist_ok=True)
    command("mount", *options, str(at))
    try:
        yield at
    finally:
        if subprocess.run(["umount", str(at)], capture_output=True).returncode:
            command("umount", "-l", str(at))


def image(file: Path, size: int) -> None:
    """An empty disk with an ext4 file system in a file."""
    with open(file, "wb") as out:
        out.truncate(size)
    command("mkfs.ext4", "-q", "-F", str(file))
