"""The quarantine of one server, and what of it outlives the server.

    state directory: feeds/NAME/quarantine.json ◄──► Quarantine ──► marks for the next life

Where positions are kept on disk, rows that are left out must be too: a server that reads such a row
again would count all that follow it differently.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ..process.config import RunConfig
from ..process.diary import Entry
from ..state.omissions import Omissions, quarantine_file
from .quarantine import Quarantine, Verdict

__all__ = ["Casualties", "kills_for_memory"]

logger = logging.getLogger("headrace.server")

_LONGEST_WORDS = 3000


class Casualties:
    """Judges deaths, and keeps the rows that are out."""

    def __init__(self, config: RunConfig) -> None:
        state = config.state_directory
        self._files = {
            feed.name: None if state is None else quarantine_file(state, feed.name)
            for feed in config.feeds
        }
        self._known = {feed: Omissions.read(file) for feed, file in self._files.items()}
        if config.replay is not None:  # what kills is known from the server whose feed it is
            recorded, feed, *_ = config.replay
            self._known[feed].deadly = Omissions.read(quarantine_file(recorded, feed)).deadly
        policies = {feed.name: feed.declaration.policy.on_bad_example for feed in config.feeds}
        self._quarantine = Quarantine(
            {feed: policy == "skip" for feed, policy in policies.items()},
            {feed: known.deadly for feed, known in self._known.items()},
        )

    def died(self, entry: Entry, words: str) -> Verdict:
        """A worker died; with its diary and its last words."""
        if len(words) > _LONGEST_WORDS:
            words = f"{words[:_LONGEST_WORDS]} …"
        verdict = self._quarantine.died(entry, words)
        file = self._files.get(entry.feed)
        if verdict.quarantined and file is not None:
            known = self._known[entry.feed]
            known.deadly = self._quarantine.out(entry.feed)
            try:
                known.write(file)
            except OSError as error:
                text = f"{verdict.quarantined}\nIt can not be skipped: {file}: {error}."
                return Verdict(expected=True, failure=(entry.feed, text))
        return verdict

    def passed(self, feed: str, rows: list[int]) -> None:
        """A worker has worked through these rows."""
        self._quarantine.passed(feed, rows)

    def out(self) -> dict[str, int]:
        """Of each feed: how many rows are left out."""
        return {feed: len(self._quarantine.out(feed)) for feed in self._files}

    def marks(self) -> dict[str, Any]:
        """What a new life has to know; with the rows that an operator has left out."""
        marks = self._quarantine.marks()
        for feed, known in self._known.items():
            if known.skipped:
                skipped = [[row, skipped.since] for row, skipped in known.skipped.items()]
                marks.setdefault(feed, {})["skipped"] = skipped
        return marks


def kills_for_memory() -> int:
    """How many processes the kernel of this machine has killed because memory had run out."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0
