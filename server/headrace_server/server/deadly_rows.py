"""Which rows kill the workers that have them at hand, decided from the diaries of dead workers.

    a death ─► rows at hand that the death before had, too: one more death
                 one, two    the next life reads them one by one, so that the diary names one row
                 three       the rows are left out, or the feed fails

Three deaths in a row count: of the workers of one partition, over the same rows of one epoch.  Rows
are the reader's numbers of examples, so limits and workers change nothing in what is known of them.
Where positions are stored on disk, the rows that are left out must be too: a server that reads such
a row again would count all that follow it differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..journal.left_out_file import LeftOutRows, left_out_file, left_out_rows, write_left_out
from ..pipeline.declaration import Plain
from ..process.config import FeedConfig, RunConfig
from ..process.worker_diary import FIXED, Entry
from ..reading.chunk import ORDINAL_BITS

#: Deaths in a row that convict rows.
_GUILTY = 3
_LONGEST_WORDS = 3000


@dataclass(frozen=True, slots=True)
class DeathVerdict:
    """The meaning of a death."""

    expected: bool = False  # it adds evidence on rows: no fault of the server
    left_out: str = ""  # why rows are left out from now on
    failure: tuple[str, str] | None = None  # a feed that can not go on, and why


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
    """The deaths over rows of all feeds, and the rows that are left out."""

    def __init__(self, config: RunConfig) -> None:
        self._state = config.state_directory
        self._feeds: dict[str, FeedConfig] = {feed.name: feed for feed in config.feeds}
        self._left_out: dict[str, LeftOutRows] = {
            name: {} if self._state is None else left_out_rows(left_out_file(self._state, name))
            for name in self._feeds
        }
        self._suspects: dict[tuple[str, int], _Suspects] = {}  # by feed and partition

    def died(self, entry: Entry, words: str) -> DeathVerdict:
        """Judge the death of a worker by its diary; ``words`` are its last."""
        if entry.feed not in self._feeds or not entry.rows:
            return DeathVerdict()
        name, rows, deaths, where = (entry.feed, entry.partition), {*entry.rows}, 1, entry.where
        before = self._suspects.get(name)
        if before and before.epoch == entry.epoch and (same := _same(before.rows, rows)):
            rows, deaths = same, before.deaths + 1
            if min(entry.rows) < 0:
                where = before.where
        self._suspects[name] = _Suspects(entry.epoch, rows, deaths, where)
        if deaths < _GUILTY:
            return DeathVerdict(expected=deaths > 1)
        del self._suspects[name]
        if len(words) > _LONGEST_WORDS:
            words = f"{words[:_LONGEST_WORDS]} …"
        text = f"{where}: its worker died {deaths} times while reading it: {words}"
        if self._feeds[entry.feed].declaration.policy.on_bad_example != "skip":
            return DeathVerdict(expected=True, failure=(entry.feed, text))
        if entry.fixed:
            text += f"\nIt can not be left out: {FIXED[entry.fixed]}."
            return DeathVerdict(expected=True, failure=(entry.feed, text))
        left_out = self._left_out[entry.feed]
        left_out |= dict.fromkeys(sorted(rows - left_out.keys()), (entry.epoch, text))
        if self._state is not None:
            file = left_out_file(self._state, entry.feed)
            try:
                write_left_out(file, left_out)
            except OSError as error:
                text += f"\nIt can not be left out: {file}: {error}."
                return DeathVerdict(expected=True, failure=(entry.feed, text))
        return DeathVerdict(expected=True, left_out=f"{len(rows)} rows: {text}")

    def marks(self) -> dict[str, Plain]:
        """Return by feed, as plain data, the rows that a new life has to know."""
        return {
            feed: {
                "left_out": [[row, *why] for row, why in left_out.items()],
                "suspects": [
                    [partition, sorted(suspects.rows)]
                    for (of, partition), suspects in self._suspects.items()
                    if of == feed
                ],
            }
            for feed, left_out in self._left_out.items()
        }
