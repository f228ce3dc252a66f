"""The facts of each row of a batch of segments: its key and number, and how many steps are data.

@length, @sequence … columns of the batch ─► batch.length, batch.sequence …
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from headrace_proto.schema import FACTS, RESERVED

if TYPE_CHECKING:
    from headrace_proto.segment_layout import SegmentLayout

#: Flags of the rows.
FLAGS = ("first", "last", "valid")
#: Facts of the rows in an element of ``as_dataset``, beside the flags.
SEGMENT_FACTS = (
    *("key", "sequence", "sequence_count", "length", "total_length", "insertion_index"),
    *("left_length", "right_length"),  # only where there is context
    "lane",  # only with order="lanes"
    *(name for name in FACTS if name != "length"),  # only where a stage adds them
)


class SegmentRows:
    """The properties of a batch of segments, read from its columns."""

    __slots__ = ()

    _layout: SegmentLayout

    @abstractmethod
    def _column(self, name: str) -> Any:
        """Return a column of the batch, by its name on the wire."""

    @abstractmethod
    def _strings(self, name: str) -> Any:
        """Return the keys of the segments, or of the following ones."""

    @abstractmethod
    def _flags(self, name: str) -> Any:
        """Return one of ``FLAGS``."""

    @property
    def key(self) -> Any:
        """Each row's own name: which segment, of how many, of which example."""
        return self._strings("key")

    @property
    def next_key(self) -> Any:
        """The key of the segment after each row; ``STOP:`` and the example's where it ends."""
        return self._strings("next_key")

    @property
    def original_key(self) -> Any:
        """The example's own key, as the source has it: ``key`` without the segment's number."""
        return self._column("@key")

    @property
    def sequence(self) -> Any:
        """Which segment of its example each row is, from 0."""
        return self._column("@sequence")

    @property
    def sequence_count(self) -> Any:
        """How many segments each row's example has."""
        return self._column("@sequence_count")

    @property
    def length(self) -> Any:
        """How many of each segment's ``num_unroll`` steps are data and not padding."""
        return self._column("@length")

    @property
    def left_length(self) -> Any:
        """How many steps of the context before each segment are data.  They end where it begins."""
        return self._context_fact("left_length")

    @property
    def right_length(self) -> Any:
        """How many steps of the context after each segment are data."""
        return self._context_fact("right_length")

    def _context_fact(self, name: str) -> Any:
        if RESERVED + name not in self._layout.schema:  # declared with left=0, or right=0
            return self.sequence * 0
        return self._column(RESERVED + name)

    @property
    def total_length(self) -> Any:
        """How many steps each row's whole example has."""
        return self._column("@total_length")

    @property
    def insertion_index(self) -> Any:
        """When each row's example came in: smaller is earlier, in one partition."""
        return self._column("@insertion_index")

    @property
    def lane(self) -> Any:
        """The number of each row's lane, of ``feed.lanes``: a sequence keeps it to its end.

        AttributeError in the order of arrival.
        """
        if not self._layout.lanes:
            raise AttributeError(
                "batch.lane: rows of this feed have no place, it is declared with order='arrival'"
            )
        return self._column("@lane")

    @property
    def first(self) -> Any:
        """Whether each row is the first segment of its example."""
        return self._flags("first")

    @property
    def last(self) -> Any:
        """Whether each row is the last segment of its example."""
        return self._flags("last")

    @property
    def valid(self) -> Any:
        """Whether each row holds a segment.

        All do but the empty rows of ranks in step: these have length 0, key ``b""`` and zeros, and
        a state that is saved for one is ignored.  A masked loss counts the others alone.
        """
        return self._flags("valid")
