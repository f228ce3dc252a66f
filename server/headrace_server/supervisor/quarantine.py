"""Which rows kill the workers that read them, decided from the rows that dead workers had in hand.

    a death ─► its rows have one death more, until a life has worked through them: passed()
                 two    the next life tries each of them alone before it takes them together
                 three  alone: the row is out, or the feed fails    together: the feed fails

Rows are the reader's numbers of examples, so limits, partitions and workers change nothing in what
is known of them.  A stream that can not be read on counts as a row of its own.

    state directory: feeds/NAME/quarantine.json ◄──► Quarantine ──► marks for the next life

Where positions are stored on disk, rows that are left out must be too: a server that reads such a
row again would count all that follow it differently.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..process.config import FeedConfig, RunConfig
from ..process.worker_diary import Entry
from ..state.left_out_file import left_out_rows, quarantine_file, write_left_out

#: Deaths that make a row suspect, and that convict it.
_SUSPECT = 2
_GUILTY = 3
#: Maximum number of rows of a feed that are left out: beyond it the rows are not the cause.
MOST_ROWS = 100
_LONGEST_WORDS = 3000


@dataclass(frozen=True, slots=True)
class DeathVerdict:
    """The meaning of a death."""

    expected: bool = False  # it adds evidence on rows: no fault of the server
    quarantined: str = ""  # why a row is left out from now on
    failure: tuple[str, str] | None = None  # a feed that can not go on, and why


@dataclass(slots=True)
class _Case:
    """One feed."""

    skips: bool  # whether it goes on without its bad examples
    file: Path | None
    left_out: dict[int, str]  # row and reason
    deaths: dict[int, int] = field(default_factory=dict)  # by row
    reached: dict[int, int] = field(default_factory=dict)  # by stream: rows that it was read up to


class Quarantine:
    """The quarantine of all feeds."""

    def __init__(self, config: RunConfig) -> None:
        self._cases = {feed.name: _case(config, feed) for feed in config.feeds}

    def died(self, entry: Entry, words: str) -> DeathVerdict:
        """Judge the death of a worker by its diary; ``words`` are its last."""
        case = self._cases.get(entry.feed)
        if case is None or not entry.rows:
            return DeathVerdict()
        if not case.left_out.keys().isdisjoint(entry.rows):
            return DeathVerdict(expected=True)  # it had started before one of them was found out
        for row in entry.rows:
            case.deaths[row] = case.deaths.get(row, 0) + 1
            if row < 0:
                case.reached[row] = max(case.reached.get(row, 0), entry.upto)
        most = max(case.deaths[row] for row in entry.rows)
        if most < _GUILTY:
            return DeathVerdict(expected=most >= _SUSPECT)
        if len(words) > _LONGEST_WORDS:
            words = f"{words[:_LONGEST_WORDS]} …"
        text = f"{entry.where}: its worker died {most} times while reading it"
        if entry.alone:
            return _convict(case, entry, f"{text}: {words}")
        text += (
            " together, and not when it took the rows one by one; it may need more memory, or more "
            f"time (worker_timeout_s): {words}"
        )
        return DeathVerdict(expected=True, failure=(entry.feed, text))

    def passed(self, feed: str, rows: Iterable[int]) -> None:
        """Forget the deaths of rows that a worker has worked through, and lives."""
        case = self._cases[feed]
        for row in rows:
            case.deaths.pop(row, None)
            case.reached.pop(row, None)

    def left_out(self, feed: str) -> dict[int, str]:
        """Return the rows that are left out, each with the reason."""
        return dict(self._cases[feed].left_out)

    def marks(self) -> dict[str, Any]:
        """Return by feed, as plain data, the rows that a new life has to know.

        A stream has passed once it is read up to where dead workers were reading it: ``reached``.
        """
        marks: dict[str, Any] = {}
        for feed, case in self._cases.items():
            found: dict[str, list[Any]] = {
                "out": [*case.left_out.items()],
                "suspect": [row for row, n in case.deaths.items() if n >= _SUSPECT],
                "watched": [*case.deaths],
                "reached": [*case.reached.items()],
            }
            marks[feed] = {name: rows for name, rows in found.items() if rows}
        return marks


def _case(config: RunConfig, feed: FeedConfig) -> _Case:
    state = config.state_directory
    file = None if state is None else quarantine_file(state, feed.name)
    left_out = left_out_rows(file)
    return _Case(feed.declaration.policy.on_bad_example == "skip", file, left_out)


def _convict(case: _Case, entry: Entry, text: str) -> DeathVerdict:
    """Leave a row out, or fail the feed where that can not be."""
    feed, row, deadly = entry.feed, entry.rows[0], case.left_out
    fault = ""
    if row < 0:
        fault = "\nIt can not be skipped: the source can not be read past it."
    elif entry.needed:
        fault = "\nIt can not be skipped: others depend on its place."
    elif len(deadly) == MOST_ROWS:
        fault = f"\nIt is not skipped: {MOST_ROWS} examples of this feed have done so before."
    if fault or not case.skips:
        return DeathVerdict(expected=True, failure=(feed, text + (fault if case.skips else "")))
    deadly[row] = text
    del case.deaths[row]
    if case.file is not None:
        try:
            write_left_out(case.file, deadly)
        except OSError as error:
            text += f"\nIt can not be skipped: {case.file}: {error}."
            return DeathVerdict(expected=True, failure=(feed, text))
    return DeathVerdict(expected=True, quarantined=text)
