"""Which row kills the workers that have it at hand, decided from the diaries of dead workers.

    a death ─► rows at hand that the death before had, too: one more death
                 one, two    the next life reads them one by one, so that the diary names one row
                 three       the feed fails, and its error names the row

Three deaths in a row count: of the workers of one partition, over the same rows of one epoch.  Rows
are the reader's numbers of examples, so limits and workers change nothing in what is known of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..process.worker_diary import Entry
from ..reading.chunk import ORDINAL_BITS

#: Deaths in a row that convict rows.
_GUILTY = 3
_LONGEST_WORDS = 3000


class _Suspects(NamedTuple):
    """The rows that the last deaths of a partition's workers share."""

    epoch: int
    rows: set[int]
    deaths: int
    where: str


def _same(before: set[int], rows: set[int]) -> set[int]:
    """Return the rows of two deaths that are the same, or may be.

    -1 - s stands for rows of stream s whose numbers are not known, since a life has only begun it.
    """
    if same := before & rows:
        return same
    both = before | rows
    return rows if any(-1 - (row >> ORDINAL_BITS) in both for row in both if row >= 0) else set()


class DeadlyRows:
    """The deaths over rows of all feeds."""

    def __init__(self, feeds: Iterable[str]) -> None:
        self._suspects: dict[str, dict[int, _Suspects]] = {feed: {} for feed in feeds}

    def died(self, entry: Entry, words: str) -> str | None:
        """Judge the death of a worker by its diary; ``words`` are its last.

        Return why the feed can not go on, "" where the death adds evidence on rows (it is no fault
        of the server), and None where its cause is unknown.
        """
        suspects = self._suspects.get(entry.feed)
        if suspects is None or not entry.rows:
            return None
        rows, deaths, where = {*entry.rows}, 1, entry.where
        before = suspects.pop(entry.partition, None)
        if before and before.epoch == entry.epoch and (same := _same(before.rows, rows)):
            rows, deaths = same, before.deaths + 1
            if min(entry.rows) < 0:
                where = before.where
        if deaths < _GUILTY:
            suspects[entry.partition] = _Suspects(entry.epoch, rows, deaths, where)
            return "" if deaths > 1 else None
        if len(words) > _LONGEST_WORDS:
            words = f"{words[:_LONGEST_WORDS]} …"
        doing = f"in `{entry.inside}`" if entry.inside else "while reading it"
        return (
            f"{where}: its worker died {deaths} times {doing}: {words}\nMend what kills it, or "
            "leave the row out by a .filter() before the stage that kills"
        )

    def suspects(self) -> dict[str, dict[int, set[int]]]:
        """Return by feed and partition the rows that a new life reads one by one."""
        return {
            feed: {partition: those.rows for partition, those in suspects.items()}
            for feed, suspects in self._suspects.items()
        }
