"""The quarantine of one server, and what of it outlives the server.

    state directory: feeds/NAME/quarantine.json ◄──► Quarantine ──► marks for the next life

Where positions are kept on disk, rows that are left out must be too: a server that reads such a row
again would count all that follow it differently.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from headrace_proto.errors import ServerError

from ..feed.durable_file import write_durably
from .config import RunConfig
from .diary import Entry
from .quarantine import Quarantine, Verdict

__all__ = ["Casualties", "kills_for_memory"]

logger = logging.getLogger("headrace.server")

_LONGEST_WORDS = 3000


class Casualties:
    """Judges deaths, and keeps the rows that are out."""

    def __init__(self, config: RunConfig) -> None:
        state = config.state_directory
        self._files = {
            feed.name: None if state is None else Path(state, "feeds", feed.name, "quarantine.json")
            for feed in config.feeds
        }
        policies = {feed.name: feed.declaration.policy.on_bad_example for feed in config.feeds}
        self._quarantine = Quarantine(
            {feed: policy == "skip" for feed, policy in policies.items()},
            {feed: _read(file) for feed, file in self._files.items()},
        )

    def died(self, entry: Entry, words: str) -> Verdict:
        """A worker died; with its diary and its last words."""
        if len(words) > _LONGEST_WORDS:
            words = f"{words[:_LONGEST_WORDS]} …"
        verdict = self._quarantine.died(entry, words)
        file = self._files.get(entry.feed)
        if verdict.quarantined and file is not None:
            rows = sorted(self._quarantine.out(entry.feed).items())
            try:
                write_durably(file, json.dumps(rows, indent=1))
            except OSError as error:
                text = f"{verdict.quarantined}\nIt can not be skipped: {file}: {error}."
                return Verdict(expected=True, failure=(entry.feed, text))
        return verdict

    def passed(self, feed: str, rows: list[int]) -> None:
        """A worker has worked through these rows."""
        self._quarantine.passed(feed, rows)

    def marks(self) -> dict[str, Any]:
        """What a new life has to know."""
        return self._quarantine.marks()


def _read(file: Path | None) -> dict[int, str]:
    if file is None or not file.exists():
        return {}
    try:
        return {int(row): str(text) for row, text in json.loads(file.read_text())}
    except (ValueError, TypeError) as error:
        raise ServerError(
            f"{file} is damaged: {error}.  It lists rows that are left out as [number, text]: "
            "mend it, or resume from a snapshot"
        ) from None


def kills_for_memory() -> int:
    """How many processes the kernel of this machine has killed because memory had run out."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0
