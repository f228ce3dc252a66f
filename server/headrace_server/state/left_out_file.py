"""The file of a feed's left-out rows, which killed their workers: feeds/NAME/quarantine.json.

It lists [number, text], by the reader's number of the example, and is replaced whole.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..files.durable_file import read_json, whole, write_durably


def quarantine_file(state: str | Path, feed: str) -> Path:
    """Return the path of a feed's list."""
    return Path(state) / "feeds" / feed / "quarantine.json"


def left_out_rows(file: Path | None) -> dict[int, str]:
    """Read a list: the reason by row; empty where there is no file."""
    remedy = "It lists rows that are left out as [number, text]: mend it, or resume from a snapshot"
    return (file and read_json(file, _parsed, remedy)) or {}


def _parsed(listed: Any) -> dict[int, str]:
    return {whole(row): str(text) for row, text in listed}


def write_left_out(file: Path, rows: dict[int, str]) -> None:
    """Write the list, if it is not empty; OSError where that fails."""
    if rows:
        write_durably(file, json.dumps(sorted(rows.items()), indent=1))
