"""How many batches a feed has, and how many of them are committed, by its servers' answers.

    Welcome ─► batches of each owner, of this rank,  ─┬─► len(feed): batches of one loop
               or the reason for no number            │
    Stats   ─► batches, rows, epoch of each owner ────┴─► FeedProgress

Without a length nothing is estimated: a feed that filters has counts, and no fraction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Largest number that ``len`` can return.
_LONGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """The commits of a feed by all of its trainers, since its beginning.

    ``epoch`` is the one of the first rows that are not committed, of ``epochs`` (None: for ever).
    ``fraction`` is the committed part of all batches, from 0 to 1; None where nobody knows it.
    """

    rows: int
    batches: int
    epoch: int
    epochs: int | None
    fraction: float | None

    def __str__(self) -> str:
        of = "" if self.epochs is None else f" of {self.epochs}"
        part = "" if self.fraction is None else f", {self.fraction:.0%}"
        return f"epoch {self.epoch + 1}{of}: {self.rows} rows in {self.batches} batches{part}"


def batches_of_loop(announced: Sequence[Mapping[str, Any]]) -> int | str:
    """Return the batches of one loop for one trainer, or the reason why their number is not known.

    ``announced``: the properties of the feed, by each of its owners.
    """
    total = 0
    for known in announced:
        length = known.get("length", "its server does not announce one")
        if known.get("resized") is True:
            return "its batch size was changed"
        if not isinstance(length, int):
            return str(length)
        total += length
    return total if total <= _LONGEST else f"{total} batches are more than len() can return"


def progress_of(
    counts: Mapping[str, Any], announced: Sequence[Mapping[str, Any]], world_size: int
) -> FeedProgress:
    """Return the progress of a feed, by the counts and the announcements of all its owners."""
    known = announced[0]
    epochs, batches = known.get("epochs", 1), counts["batches"]
    fraction = None if counts["open"] else 1.0
    loop = batches_of_loop(announced)
    loops = epochs if known.get("across_batches") is False else 1
    if counts["open"] and isinstance(loop, int) and loops is not None:
        whole = loop * loops * max(1, world_size)
        fraction = min(1.0, batches / whole) if whole else 0.0
    epoch = counts["epoch"] if epochs is None else min(counts["epoch"], epochs - 1)
    return FeedProgress(counts["rows"], batches, max(0, epoch), epochs, fraction)
