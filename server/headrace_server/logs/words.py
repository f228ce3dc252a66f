"""The values that a log exchanges with producers and feeds."""

from __future__ import annotations

from typing import NamedTuple

from ..files.journal_file import Buffer
from .records import RECORD, Close

#: Bits of a sequence's state beside its close: a feed that lags has brought it back; there is none.
RECALLED, FREE = 4, 8


class Item(NamedTuple):
    """An opening, steps or an end; one item may be all three."""

    number: int  # 1, 2, 3, … of this producer in this partition
    key: bytes
    opens: bool = False
    first: int = 0
    steps: int = 0
    close: int = Close.GOING
    version: int = 0
    context: Buffer = b""
    data: Buffer = b""  # the columns of the steps, one after the other

    @property
    def cost(self) -> int:
        """The credit that it takes: its bytes on the disk."""
        return RECORD.size + len(self.key) + len(self.context) + len(self.data)


class Answer(NamedTuple):
    """An answer to a producer about its durable items.  Each answer has all, so any may be lost."""

    stored: int  # number of the last durable item of this name
    refused: tuple[tuple[int, str], ...]  # numbers and reasons, until the producer has heard them
    granted: int  # bytes that this connection may send in all
    places: int  # sequences that it may open
    open: dict[bytes, int] | None = None  # its open sequences, and their steps: this is a welcome


class Denied(NamedTuple):
    reason: str  # "older": a later process has this name; "full"; "forgotten"; "greet": once more


class Extent(NamedTuple):
    """The steps [first, upto) of a sequence, which lie in one record.  Its context has no steps."""

    upto: int
    first: int
    position: int
    file: int
    place: int
    nbytes: int
    version: int
    time: float
