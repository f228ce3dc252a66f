"""The file of a feed's left-out rows, which killed their workers: feeds/NAME/left_out.json.

It lists [number, epoch, text]: the reader's number of the example, the epoch from which on it is
left out, and why.  It is replaced whole.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..files.durable_file import read_json, whole, write_durably
from ..pipeline.declaration import Plain

LEFT_OUT = "left_out.json"
#: By row the first epoch without it, and the reason.
LeftOutRows = dict[int, tuple[int, str]]


def left_out_file(state: str | Path, feed: str) -> Path:
    """Return the path of a feed's list."""
    return Path(state) / "feeds" / feed / LEFT_OUT


def left_out_rows(file: Path) -> LeftOutRows:
    """Read a list; empty where there is no file."""
    remedy = (
        "It lists rows that are left out as [number, epoch, text]: mend it, or resume from a "
        "snapshot"
    )
    return read_json(file, _parsed, remedy) or {}


def _parsed(listed: Plain) -> LeftOutRows:
    return {whole(row): (whole(epoch), str(text)) for row, epoch, text in listed}


def write_left_out(file: Path, rows: LeftOutRows) -> None:
    """Write the list, if it is not empty; OSError where that fails."""
    if rows:
        write_durably(
            file, json.dumps([[row, *why] for row, why in sorted(rows.items())], indent=1)
        )
