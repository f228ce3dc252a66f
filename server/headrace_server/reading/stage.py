"""A stage is one class, which makes of a chunk of examples the chunk that goes on.

    declared   Stage(**options)       the facts below, and ``fields_after``: no user code is called
    at work    open() ─► apply(chunk) ─► apply(chunk) …      one object for each partition
    resumed    state() ─► … ─► restore(state)

Each kind has a file of its own in ``stages``; ``pipeline.stage("module:Class", …)`` names others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ..pipeline.declaration import Plain
from ..shaping.row_copies import copy_ordinals
from .chunk import BadRecords, Chunk

Fields = Mapping[str, Field]
#: Rows of one chunk: as many weigh 128 MiB as row numbers alone.
_MOST_ROWS: Final = 2**24


class Stage:
    """A step between the source and the shape of a pipeline, for ``pipeline.stage``.

    Define ``apply``, and ``__init__`` for the options of the stage, which are plain data.  The
    object is made when the pipeline is declared, so a bad option is refused there, and once more
    for each partition, where it sees all chunks of that partition in their order.  How many rows a
    chunk has depends on the machine: the result of a row must not depend on that.

    Facts that a class may set: ``keeps_count``, whether as many rows leave as come, so that the
    number of batches is known beforehand; ``repeatable``, whether it makes the same of an example
    in every epoch, so that files can hold the result; ``group``, the number of the source's
    examples that are read at once, where neighbours count (0: any; None: its option ``group`` is
    set with the shape).

    Set before ``open``: its ``name`` for people; its ``number``, which keeps the chance of two
    stages apart; ``announces``, whether this partition is the one that writes to the log;
    ``counts`` of rows dropped on purpose, by reason.  Set before ``apply``: the ``epoch`` of the
    chunk.
    """

    keeps_count = False
    repeatable = False
    group: int | None = 0
    name = ""
    number = 0
    announces = True
    counts: Counter[str]
    epoch = 0

    def fields_after(self, before: Fields | None) -> Fields | None:
        """Return the columns after this stage, given those before; None while not known.

        It is called before ``apply`` and after it.
        """
        return before

    def fact_fields(self, before: Fields | None) -> dict[str, Field]:
        """Return the facts that it adds to batches (``chunk.with_fact``), such as ``label``."""
        return {}

    def usual_group(self, batch_sizes: Sequence[int | None], bound: int | None) -> int | None:
        """Return the `group` of a stage whose option is None; None: that of others, or any.

        ``batch_sizes`` are those of the shape, and ``bound`` the most that it lets in.
        """
        return None

    @property
    def goes_with_source(self) -> bool:
        """Whether a source of a mix may have it: a row of each example, the same at any time."""
        same = self.keeps_count and self.repeatable and not self.group
        return same and type(self).state is Stage.state and not self.fact_fields(None)

    def open(self) -> None:
        """Prepare for the first chunk: load functions, say."""

    def begin(self, chunk: Chunk) -> Chunk:
        """Return a chunk as it was read, before all stages, with facts of the source."""
        return chunk

    def apply(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        """Return the rows that go on, at least one came.  ``bad.report`` takes bad examples."""
        return chunk

    def state(self) -> Plain:
        """Return what the stage remembers of earlier rows, as small plain data; None: nothing."""
        return None

    def restore(self, state: Any) -> None:
        """Go on from a result of ``state``."""

    # For ``apply``

    def kept(self, chunk: Chunk, mask: np.ndarray, reason: str) -> Chunk:
        """Return the rows for which a mask is true; count the others under ``reason``."""
        rows = np.flatnonzero(mask)
        if len(rows) == len(chunk):
            return chunk
        self.counts[reason] += len(chunk) - len(rows)
        return chunk.take(rows)

    def repeated(self, chunk: Chunk, counts: np.ndarray) -> Chunk:
        """Return each row as often as ``counts`` says, copies side by side.

        The first copy keeps the row's ordinal, and the others have a hash of it, of this stage and
        of their number: so chance that is keyed by ordinals differs between copies.
        """
        if counts.sum(dtype=np.float64) > _MOST_ROWS:  # a sum in int64 could wrap around
            row, rows = int(counts.argmax()), counts.sum(dtype=np.float64)
            raise DataError(
                f"{chunk.origin.describe(row)}: {self.name} makes {rows:.0f} rows of {len(chunk)} "
                f"examples, and {counts[row]} of this one; at most {_MOST_ROWS} can be at once"
            )
        taken = chunk.take(np.repeat(np.arange(len(chunk)), counts))
        return replace(taken, ordinals=copy_ordinals(chunk.ordinals, counts, self.number))
