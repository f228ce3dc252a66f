"""Files that are there whole, or as they were, after a loss of power."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["put_in_place", "sync_directory", "write_durably"]


def write_durably(file: Path, text: str) -> None:
    """Replace a small file so that after a power cut either the old or the new one is there."""
    part = file.with_name(file.name + ".part")
    part.write_text(text)
    put_in_place(part, file)


def put_in_place(part: Path, file: Path) -> None:
    """Give a file that was written its name, once its bytes are on the disk."""
    written = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(written)
    finally:
        os.close(written)
    os.replace(part, file)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """What was made or renamed in a directory stays so after a power cut."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
