"""The file of a feed's left-out rows: feeds/NAME/quarantine.json.

    [number, text]            the row killed its workers, see quarantine.py
    [number, text, epoch]     an operator left it out from that epoch on, see skipping.py

A row may be there for both reasons.  The file is replaced whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files.durable_file import read_json, whole, write_durably


def quarantine_file(state: str | Path, feed: str) -> Path:
    """Return the path of a feed's list."""
    return Path(state) / "feeds" / feed / "quarantine.json"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why an operator has left a row out, and from which epoch on."""

    reason: str
    since: int


@dataclass(slots=True)
class LeftOutFile:
    """Left-out rows, by the reader's number of the example."""

    deadly: dict[int, str] = field(default_factory=dict)
    skipped: dict[int, Skipped] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path | None) -> LeftOutFile:
        """Read a list; an empty one where there is no file."""
        remedy = (
            "It lists rows that are left out as [number, text] or [number, text, epoch]: mend it, "
            "or resume from a snapshot"
        )
        return (file and read_json(file, cls._parsed, remedy)) or cls()

    @classmethod
    def _parsed(cls, listed: Any) -> LeftOutFile:
        found = cls()
        for row, text, *since in listed:
            if since:
                found.skip(whole(row), Skipped(str(text), *map(whole, since)))
            else:
                found.deadly[whole(row)] = str(text)
        return found

    def skip(self, row: int, skipped: Skipped) -> None:
        """Leave one more row out, from the earlier of two epochs on."""
        known = self.skipped.get(row)
        if known is None or skipped.since < known.since:
            self.skipped[row] = skipped

    def add(self, others: LeftOutFile) -> None:
        """Leave the rows of another list out, too."""
        self.deadly.update(others.deadly)
        for row, skipped in others.skipped.items():
            self.skip(row, skipped)

    def write(self, file: Path) -> None:
        """Write the list, if it is not empty; OSError where that fails."""
        rows: list[tuple[int, str] | tuple[int, str, int]] = sorted(self.deadly.items())
        rows += [(row, s.reason, s.since) for row, s in sorted(self.skipped.items())]
        if rows:
            write_durably(file, json.dumps(rows, indent=1))
