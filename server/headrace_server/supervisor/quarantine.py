"""Which rows kill the workers that read them, decided from what dead workers had in hand.

    a death ─► its rows have one death more, until a life has worked through them: passed()
                 two    the next life tries each of them alone before it takes them together
                 three  alone: the row is out, or the feed fails    together: the feed fails

Rows are the reader's numbers of examples, so limits, partitions and workers change nothing in what
is known of them.  A stream that can not be read on counts as a row of its own.  Nothing here waits
or looks at a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..process.diary import Entry

__all__ = ["MOST_ROWS", "Quarantine", "Verdict"]

#: Deaths that make a row suspect, and that convict it.
_SUSPECT = 2
_GUILTY = 3
#: When so many rows of a feed have killed workers it is not the rows.
MOST_ROWS = 100


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a death means."""

    expected: bool = False  # it adds to what is known of rows: no fault of the server's
    quarantined: str = ""  # what was said of a row that is left out from now on
    failure: tuple[str, str] | None = None  # a feed that can not go on, and why


class Quarantine:
    """Of all feeds.  ``skip``: whether a feed goes on without its bad examples."""

    def __init__(
        self, skip: Mapping[str, bool], known: Mapping[str, Mapping[int, str]] | None = None
    ) -> None:
        self._skip = dict(skip)
        self._deaths: dict[str, dict[int, int]] = {feed: {} for feed in skip}
        self._reached: dict[str, dict[int, int]] = {feed: {} for feed in skip}  # of streams
        self._out = {feed: dict((known or {}).get(feed, {})) for feed in skip}

    def died(self, entry: Entry, words: str) -> Verdict:
        """A worker died; its diary, and its last words."""
        if entry.feed not in self._skip or not entry.rows:
            return Verdict()
        if not self._out[entry.feed].keys().isdisjoint(entry.rows):
            return Verdict(expected=True)  # it had started before one of them was found out
        deaths = self._deaths[entry.feed]
        for row in entry.rows:
            deaths[row] = deaths.get(row, 0) + 1
            if row < 0:
                reached = self._reached[entry.feed]
                reached[row] = max(reached.get(row, 0), entry.upto)
        most = max(deaths[row] for row in entry.rows)
        if most < _GUILTY:
            return Verdict(expected=most >= _SUSPECT)
        text = f"{entry.where}: its worker died {most} times while reading it"
        if entry.alone:
            return self._convict(entry, f"{text}: {words}")
        text += (
            " together, and not when it took the rows one by one; more time (worker_timeout_s) or "
            f"memory may be what it lacks: {words}"
        )
        return Verdict(expected=True, failure=(entry.feed, text))

    def _convict(self, entry: Entry, text: str) -> Verdict:
        feed, row = entry.feed, entry.rows[0]
        if not self._skip[feed]:
            return Verdict(expected=True, failure=(feed, text))
        if row < 0 or entry.needed:
            why = "the source can not be read past it" if row < 0 else "others depend on its place"
            return Verdict(expected=True, failure=(feed, f"{text}\nIt can not be skipped: {why}."))
        if len(self._out[feed]) == MOST_ROWS:
            many = f"\nIt is not skipped: {MOST_ROWS} examples of this feed have done so before."
            return Verdict(expected=True, failure=(feed, text + many))
        self._out[feed][row] = text
        del self._deaths[feed][row]
        return Verdict(expected=True, quarantined=text)

    def passed(self, feed: str, rows: Iterable[int]) -> None:
        """A worker has worked through these rows, and lives."""
        for row in rows:
            self._deaths[feed].pop(row, None)
            self._reached[feed].pop(row, None)

    def out(self, feed: str) -> dict[int, str]:
        """Rows that are left out, and what was said of them."""
        return dict(self._out[feed])

    def marks(self) -> dict[str, Any]:
        """What a new life has to know, as plain data: by feed, rows out, suspect and watched.

        A stream has passed once it is read up to where dead workers were reading it: ``reached``.
        """
        return {
            feed: {
                "out": [[row, text] for row, text in self._out[feed].items()],
                "suspect": [row for row, n in deaths.items() if n >= _SUSPECT],
                "watched": list(deaths),
                **self._told_reached(feed),
            }
            for feed, deaths in self._deaths.items()
            if deaths or self._out[feed]
        }

    def _told_reached(self, feed: str) -> dict[str, Any]:
        reached = self._reached[feed]
        return {"reached": [[row, n] for row, n in reached.items()]} if reached else {}
