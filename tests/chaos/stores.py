"""What a store holds at the end, read by none of the server's code."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

__all__ = ["tokens_of"]


def tokens_of(path: Path) -> list[int]:
    """The tokens of all commits, in their order."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        found = db.execute("PRAGMA integrity_check").fetchone()[0]
        if found != "ok":
            raise ValueError(f"{path}: {found}")
        return [token for (token,) in db.execute("SELECT token FROM token ORDER BY place")]
