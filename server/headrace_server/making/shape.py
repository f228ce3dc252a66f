"""A shape is one class, the end of a pipeline: it decides which rows make a batch, and writes them.

    declared   Shape(**options)     the facts below: no file is opened and no user code is called
    at work    open(partition) ─► facts(chunk) ─► offer() … next_draft() by its machine ─► assembly
                                                  pure: it sees facts of rows, never payload

One object works for each partition.  Each kind has a file of its own in ``shapes``;
``pipeline.shape("module:Class", …)`` names others.  Segments with states are not of these: their
examples stay between batches (``segment_run.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from headrace_proto.errors import DataError, rewording
from headrace_proto.schema import RESERVED, Field

from ..pipeline.argument_checks import (
    MASK,
    MAX_BATCH_SIZE,
    PaddingValues,
    Selector,
    check_padding,
    checked_int,
    ragged_fault,
    size_fault,
    varying,
)
from ..reading.chunk import BadRecords, Chunk, Faults, without
from ..reading.columns import Ragged, field_of
from ..reading.row_values import COST, Values, below
from ..shaping.bucket import NO_PADDING, Padding
from ..shaping.plan import Draft, RowShaper
from .assemble import Assembly, Parts, RaggedAssembly, batch_schema, ragged_schema

_MAX = 2**63 - 1
#: Prefix of a fact that only the machine sees; it stays with its row until all are known.
_OWN = "machine:"
Fields = Mapping[str, Field]
#: Facts of the rows of a chunk, for the machine alone: an array by name.
RowFacts = dict[str, np.ndarray]


class Shape(ABC):
    """The end of a pipeline, for ``pipeline.shape``.

    Define ``__init__`` for the options of the shape, which are plain data, and ``machine``, which
    makes the ``RowShaper`` of a partition: the rules by which rows become batches.  Define
    ``facts`` for what these rules look at, and ``assembly`` with ``schema`` where a batch is more
    than its rows, one after the other.  The object is made when the pipeline is declared, so a bad
    option is refused there, and once more for each partition.

    Facts that a class may set: ``counted``, whether every ``batch_size`` examples are a batch, so
    that the number of batches is known beforehand; ``capacity``, how many batches a partition makes
    ahead of trainers (None: the server decides); ``batch_sizes``, the declared ones, one for each
    bucket.

    Set before ``open``: its ``kind`` for people.
    """

    counted = False
    capacity: int | None = None
    batch_sizes: Sequence[int | None] = ()
    kind = ""
    shaper: RowShaper  # once it is open
    _balance: Selector | None = None  # the cost of a row, where batches of a round cost the same
    _costs: Values | None = None

    # Declared

    def read_bound(self, batch_sizes: Sequence[int | None] | None = None) -> int | None:
        """Return the number of rows to read at once, where it bounds the rows of a partition.

        ``batch_sizes`` take the place of those that are declared.
        """
        return None

    @abstractmethod
    def machine(self, partition: int) -> RowShaper:
        """Return the rules of a partition."""

    # At work

    def open(self, partition: int) -> None:
        """Prepare for the first chunk: load functions, say."""
        self.shaper = self.machine(partition)
        if self._balance is not None:
            self._costs = Values(self.kind, "balance", self._balance, sequence=True)

    def facts(self, chunk: Chunk, bad: BadRecords) -> tuple[Chunk, RowFacts]:
        """Return the rows that fit, and the facts of them that the machine looks at.

        ``bad.report`` takes the others.  ``chunk.with_fact`` adds a fact that trainers get.
        """
        return chunk, {}

    def _priced(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        """Note the cost of each row, where batches are balanced; report rows that have none."""
        if self._costs is None:
            return chunk
        chunk, values = self._costs.sound(chunk, bad, COST)
        return noted(chunk, "cost", values.astype(np.float64))

    def fact_fields(self, fields: Fields) -> Fields:
        """Return the facts of the rows of a batch, given those that stages add."""
        return fields

    @property
    def batch_size(self) -> int | None:
        """Rows of every batch; None where they differ."""
        return None

    def schema(self, fields: Fields) -> Fields:
        """Return the columns of a batch, given those of a row; names of facts begin with ``@``."""
        return batch_schema(fields, self.batch_size)

    def assembly(self, parts: Parts, fields: Fields, draft: Draft) -> Assembly:
        """Return the batch of these rows, about to be written: chunks, with the rows of each."""
        return Assembly(parts, fields, dynamic_pad=True)

    def sizes_checked(self, batch_sizes: Sequence[int]) -> list[int]:
        """Return the requested batch sizes, one for each bucket; ValueError for wrong ones."""
        wanted = len(self.shaper.batch_sizes)
        sizes = [*batch_sizes] * (wanted if len(batch_sizes) == 1 else 1)
        if len(sizes) != wanted or not sizes:
            of = f"{wanted} buckets" if wanted > 1 else "one size for all batches"
            raise ValueError(f"there are {len(sizes)} sizes; the feed has {of}")
        for i, size in enumerate(sizes):
            name = "batch_size" if len(batch_sizes) == 1 else f"batch_size[{i}]"
            checked_int(name, size, 1, MAX_BATCH_SIZE)
        return sizes


class PaddedRows(Shape):
    """A shape whose batches are rows, padded to one another or ragged."""

    def __init__(
        self,
        allow_smaller_final_batch: bool,
        dynamic_pad: bool,
        pad_to_multiple: int | None = None,
        pad_to: Mapping[str, list[int | None]] | None = None,
        padding_values: PaddingValues | None = None,
        mask: bool = False,
        ragged: bool = False,
        length_column: str | None = None,
        boundaries: Sequence[int] = (),
    ) -> None:
        """``length_column`` is the one whose length counts in a budget, ``boundaries`` those that
        batches of a bucket are padded to."""
        self.allow_smaller = allow_smaller_final_batch
        self.dynamic_pad, self.ragged = dynamic_pad, ragged
        self._pad_to = pad_to or {}
        self.padding = NO_PADDING
        if pad_to or pad_to_multiple or boundaries or padding_values or mask:
            length = self._pad_to.get(length_column or "", [None])[0]
            self.padding = Padding(
                pad_to_multiple or 1, boundaries, self._pad_to, length, padding_values or {}, mask
            )

    def facts(self, chunk: Chunk, bad: BadRecords) -> tuple[Chunk, RowFacts]:
        if not len(chunk):
            return chunk, {}
        if self.ragged or self.padding.values or self.padding.mask:
            fields = {name: field_of(one) for name, one in chunk.columns.items()}
            with rewording(DataError, f"{self.kind}: ", ValueError):
                if self.ragged and (fault := ragged_fault(fields)):
                    raise ValueError(f"ragged=True: {fault}")
                check_padding(self.padding.values, self.padding.mask, varying(fields), fields)
        for name, sizes in self._pad_to.items():
            chunk = self._fitting(chunk, name, sizes, bad)
        return chunk, {}

    def _fitting(self, chunk: Chunk, name: str, sizes: list[int | None], bad: BadRecords) -> Chunk:
        """Return the rows that fit ``pad_to``; report others."""
        column = chunk.columns.get(name)
        if column is None or (fault := size_fault(field_of(column), sizes)):
            why = f"there is no such column, only {', '.join(chunk.columns)}"
            raise DataError(f"{self.kind}: pad_to[{name!r}]: {why if column is None else fault}")
        assert isinstance(column, Ragged)
        most = np.array([_MAX if size is None else size for size in sizes])
        long = (column.extents[:, : len(sizes)] > most).any(axis=1)
        faults: Faults = {}
        for row in np.flatnonzero(long).tolist():
            shape = [*column.extents[row].tolist(), *column.inner]
            text = f"column {name!r}: it has the shape {shape}; pad_to gives room for {sizes}"
            faults[row] = "too_long", text
        return without(chunk, faults, bad, ", ")

    def schema(self, fields: Fields) -> Fields:
        if self.ragged:
            return ragged_schema(fields, self.batch_size)
        padded = dict(fields)
        for name, sizes in self._pad_to.items():
            if name in fields and not size_fault(fields[name], sizes):  # ``facts`` refuses others
                padded[name] = Field(fields[name].dtype, padded_shape(fields[name], sizes))
        schema = batch_schema(padded, self.batch_size)
        for name, field in varying(fields).items() if self.padding.mask else ():
            schema[name + MASK] = Field("bool", schema[name].shape[: 1 + field.ragged_dims])
        return schema

    def assembly(self, parts: Parts, fields: Fields, draft: Draft) -> Assembly:
        if self.ragged:
            return RaggedAssembly(parts, fields, dynamic_pad=False)
        bucket = max(draft.bucket, 0)
        return Assembly(parts, fields, self.dynamic_pad, self.padding, bucket)


def padded_shape(field: Field, sizes: Sequence[int | None]) -> tuple[int | None, ...]:
    """Return the shape of a column whose first dimensions have these sizes; None: their own."""
    given = [*sizes, *(None for _ in field.shape[len(sizes) :])]
    return tuple(d if s is None else s for d, s in zip(field.shape, given, strict=True))


def noted(chunk: Chunk, name: str, values: np.ndarray) -> Chunk:
    """Return the rows with a fact for the machine alone, which ``split`` takes from them."""
    return chunk.with_fact(_OWN + name, values)


def numbered(chunk: Chunk, values: Values, name: str, count: int, bad: BadRecords) -> Chunk:
    """Note a number in 0 … count-1 for each row; report rows that have none."""
    chunk, numbers = values.sound(chunk, bad, below(count, f"{name}_out_of_range"))
    return noted(chunk, name, numbers.astype(np.int64))


def split(chunk: Chunk) -> tuple[Chunk, RowFacts]:
    """Return the rows without the facts that are for the machine alone, and these."""
    facts = {n.removeprefix(_OWN): f for n, f in chunk.facts.items() if n.startswith(_OWN)}
    for name in facts:
        chunk = chunk.without_fact(_OWN + name)
    return chunk, facts


def with_facts(chunk: Chunk) -> Chunk:
    """Return the chunk with its facts as columns, as on the wire."""
    if not chunk.facts:
        return chunk
    named = {RESERVED + name: fact for name, fact in chunk.facts.items()}
    return chunk.with_columns({**chunk.columns, **named})
