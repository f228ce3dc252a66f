"""Batches of segments whose sizes the trainer names: a part of ``Feed``.

    feed.take(batch_size=n) ─► Take(rows) ─► the owner whose turn it is ─► one batch of n rows
                                                 └─ it has none now: the next owner, too

The size is of that batch alone; ``next(feed)`` has the declared one.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from typing import Any

import numpy as np

from headrace_proto.errors import LimitExceeded, kind_of

from .epochs import EpochLoops


class Sizing(EpochLoops):
    """The method ``take`` that a ``Feed`` inherits: the next batch, of another size."""

    _takes_sizes = False  # whether the schema leaves the number of rows open

    @abstractmethod
    def _leave_rows_open(self) -> None:
        """Let the schema allow any number of rows."""

    def take(self, batch_size: int) -> Any:
        """Return the next batch, with ``batch_size`` rows: for segments in the order of arrival.

        ``batch_size`` lies in 1 … ``capacity`` and is an int, or an array or tensor of one.  The
        call waits until there are so many segments that no trainer has, and takes the first of
        them.  When the source has ended the last batch is smaller if ``allow_small_batch`` is set,
        and then the call raises StopIteration, as ``next(feed)`` does.  ``next(feed)`` uses the
        declared size.

        From the first call on nothing is prefetched, and prefetched batches go back.  ``schema``
        leaves the number of rows open.
        """
        self._link.check_usable()
        rows = size_of("batch_size", batch_size, "an int of 1 or more")
        self._check_rows(rows)
        if not self._takes_sizes:
            self._leave_rows_open()
            self._takes_sizes = True
        with self._link.sized(rows):
            return self.__next__()

    def _check_rows(self, rows: int) -> None:
        """Raise ValueError where this trainer can get no batch of ``rows`` rows."""
        _ = self.schema
        known, why = self._link.properties, ""
        if known.get("shape") != "sequences":
            why = "its batches are not of segments; feed.set_batch_size(n) changes their size"
        elif known.get("order") != "arrival":
            why = 'with order="lanes" a row stays with its sequence; declare order="arrival"'
        elif self._link.session.rank >= 0:
            why = "ranks get equally many rows in each round; connect without rank="
        elif "most_rows" not in known:
            why = "it is a replay, whose batches are those that were recorded; use next(feed)"
        if why:
            name = "" if self._link.session.welcome is None else self._link.session.welcome.feed
            raise ValueError(f"take(batch_size={rows}): feed {name!r}: {why}")
        capacity, most = known.get("capacity"), known["most_rows"]
        if capacity is not None and rows > capacity:
            raise ValueError(
                f"batch_size={rows} is more than capacity={capacity}, the number of examples that "
                "a partition has in flight"
            )
        if rows > most:
            raise LimitExceeded(
                f"batch_size={rows} is more than {most}: a larger batch does not fit the slab of a "
                "worker (slab_bytes)"
            )


def size_of(name: str, value: Any, kind: str) -> int:
    """Return the size as an integer; TypeError or ValueError where no batch can have it."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        rows = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r:.80} is {kind_of(value)}; it is {kind}") from None
    if rows < 1:
        raise ValueError(f"{name}={rows} is too small: the least is 1")
    return rows
