"""Sequences and steps as a log has them, for tests whose steps have two columns of fixed width."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace_server.logs.ledger import Ledger
from headrace_server.logs.log import Log
from headrace_server.logs.words import RECALLED, Extent

__all__ = ["WIDTHS", "Standing", "pieces", "standing"]

#: Bytes of a step in each column.
WIDTHS = 8, 4


class Standing(NamedTuple):
    """A sequence that is open, or that a feed has not finished."""

    key: bytes
    closed_at: int  # position, or NEVER
    close: int
    extents: list[Extent]  # those that a feed may need


def standing(ledger: Ledger, of: int) -> Standing | None:
    """Return a sequence as it stands in memory, None where it is not there."""
    s = ledger.sequences
    if (row := s.row.get(of)) < 0:
        return None
    extents = [s.extent(at) for at in s.chain(row)]
    return Standing(s.keys[row], s.closed_at[row], s.state[row] & ~RECALLED, extents)


def pieces(log: Log, of: int, column: int, first: int, after: int) -> Iterator[memoryview]:
    """Yield the steps [first, after) of a sequence in a column, in order.

    LookupError where the log has not all of them any more.
    """
    width, before, s = WIDTHS[column], sum(WIDTHS[:column]), log.ledger.sequences
    for at in s.chain(s.row.get(of)):
        upto, begin = s.upto[at], s.first[at]
        if upto > first < after and begin <= first:
            end, column_at = min(after, upto), before * (upto - begin)
            data = log.data(at)[column_at : column_at + width * (upto - begin)]
            yield data[(first - begin) * width : (end - begin) * width]
            first = end
    if first < after:
        raise LookupError(f"steps {first} to {after} of sequence {of} are not in the log")
