"""The list of a feed's rows that are left out, on disk: feeds/NAME/quarantine.json.

    [number, text]            it killed its workers, see quarantine.py
    [number, text, epoch]     an operator had it left out from that epoch on, see skipping.py

A row may be there for both reasons.  The file is replaced whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from headrace_proto.errors import ServerError

from ..files.durable_file import write_durably

__all__ = ["Omissions", "Skipped", "quarantine_file"]


def quarantine_file(state: str | Path, feed: str) -> Path:
    """Where a feed's list lies."""
    return Path(state) / "feeds" / feed / "quarantine.json"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why an operator has left a row out, and from which epoch on."""

    reason: str
    since: int


@dataclass(slots=True)
class Omissions:
    """By the reader's number of the example."""

    deadly: dict[int, str] = field(default_factory=dict)
    skipped: dict[int, Skipped] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path | None) -> Omissions:
        """What a file lists; nothing where there is none."""
        found = cls()
        if file is None or not file.exists():
            return found
        try:
            for row, text, *since in json.loads(file.read_text()):
                if since:
                    found.skip(int(row), Skipped(str(text), int(*since)))
                else:
                    found.deadly[int(row)] = str(text)
        except (ValueError, TypeError) as error:
            raise ServerError(
                f"{file} is damaged: {error}.  It lists rows that are left out as [number, text] "
                "or [number, text, epoch]: mend it, or resume from a snapshot"
            ) from None
        return found

    def skip(self, row: int, skipped: Skipped) -> None:
        """One more row is out; of two epochs the earlier one holds."""
        known = self.skipped.get(row)
        if known is None or skipped.since < known.since:
            self.skipped[row] = skipped

    def add(self, others: Omissions) -> None:
        """All of others too."""
        self.deadly.update(others.deadly)
        for row, skipped in others.skipped.items():
            self.skip(row, skipped)

    def write(self, file: Path) -> None:
        """Keep them; OSError where that can not be."""
        rows: list[tuple[int, str] | tuple[int, str, int]] = sorted(self.deadly.items())
        rows += [(row, s.reason, s.since) for row, s in sorted(self.skipped.items())]
        write_durably(file, json.dumps(rows, indent=1))
