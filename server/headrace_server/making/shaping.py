"""A declared shape: its machine, and the facts of a chunk on which the machine decides.

    batch                            no facts
    bucket, …_by_sequence_length     bucket, and length where it was declared
    stratified_sample_unknown_dist   label

Facts of rows that go to trainers (length, label, rate) travel as columns whose names start with
``@``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import RESERVED, Field

from ..pipeline.argument_checks import (
    MAX_BATCH_SIZE,
    checked_int,
    ragged_fault,
    size_fault,
)
from ..pipeline.declaration import Shape
from ..reading.chunk import BadRecords, Chunk, Faults, without
from ..reading.columns import Ragged, field_of
from ..reading.row_values import LENGTH, Rule, Values, as_int64, below
from ..shaping import chance
from ..shaping.bucket import NO_PADDING, Buckets, Padding, PlainBatches, bucket_of
from ..shaping.class_queues import ClassQueues

_MAX = 2**63 - 1
#: Prefix of a fact that only the machine sees; it stays with its row until all are known.
_OWN = "machine:"


def _machine(shape: Shape, partition: int) -> PlainBatches | Buckets | ClassQueues:
    options = shape.options
    if shape.kind == "batch":
        return PlainBatches(options["batch_size"], options["allow_smaller_final_batch"])
    if shape.kind == "bucket":
        return Buckets(
            options["batch_sizes"],
            options["allow_smaller_final_batch"],
            options["max_padded_elements"],
            NO_PADDING if options.get("cost") else _padding_of(shape),
            bool(options.get("ragged")),
        )
    if shape.kind == "stratified_sample_unknown_dist":
        # The machine draws by the number of the batch, so every partition has a seed of its own.
        return ClassQueues(
            len(options["probs"]),
            options["probs"],
            options["batch_size"],
            options["queue_capacity"],
            chance.derive(options["seed"], chance.CLASSES, partition),
            max_examples_in_flight=options["max_examples_in_flight"],
        )
    raise ValueError(f"unknown shape {shape.kind!r}")


def _padding_of(shape: Shape) -> Padding:
    """Return the sizes that batches are padded to."""
    options = shape.options
    sizes, multiple = options.get("pad_to"), options.get("pad_to_multiple")
    to_boundary = options.get("pad_to_boundary")
    if not (sizes or multiple or to_boundary):
        return NO_PADDING
    kind, name = options.get("length") or ("", "")
    length = (sizes or {}).get(name, [None])[0] if kind == "column" else None
    boundaries = options["boundaries"] if to_boundary else ()
    return Padding(multiple or 1, boundaries, sizes or {}, length)


class Shaping:
    """The shape of one partition."""

    def __init__(self, shape: Shape, partition: int) -> None:
        self.machine = _machine(shape, partition)
        self._options: Mapping[str, Any] = shape.options
        self._kind = shape.kind
        self.dynamic_pad = bool(shape.options["dynamic_pad"])
        self.ragged = bool(shape.options.get("ragged"))
        self._shape = shape
        self._bucket = self._values("which_bucket", "bucket")
        self._length = self._values("input_length", "length")
        self._cost = self._values("cost", "cost")
        self.padding = _padding_of(shape)
        self._pad_to: Mapping[str, list[int | None]] = shape.options.get("pad_to") or {}
        self._labels = self._values("labels", "labels")
        boundaries = shape.options.get("boundaries")
        self._boundaries = None if boundaries is None else np.array(boundaries, np.int64)

    def _values(self, argument: str, option: str) -> Values | None:
        selector = self._options.get(option)
        if selector is None:
            return None
        return Values(self._kind, argument, selector, sequence=option == "length")

    @property
    def batch_size(self) -> int | None:
        """Rows of every batch; None where they differ."""
        options = self._options
        if options["allow_smaller_final_batch"]:
            return None
        if self._kind != "bucket":
            return int(options["batch_size"])
        sizes = set(options["batch_sizes"])
        alike = len(sizes) == 1 and options["max_padded_elements"] is None
        return sizes.pop() if alike else None

    def sizes_checked(self, batch_sizes: Sequence[int]) -> list[int]:
        """Return the requested batch sizes, one for each bucket; ValueError for wrong ones."""
        wanted = len(self.machine.batch_sizes)
        sizes = [*batch_sizes] * (wanted if len(batch_sizes) == 1 else 1)
        if len(sizes) != wanted:
            of = f"{wanted} buckets" if wanted > 1 else "one size for all batches"
            raise ValueError(f"there are {len(sizes)} sizes; the feed has {of}")
        for i, size in enumerate(sizes):
            name = "batch_size" if len(batch_sizes) == 1 else f"batch_size[{i}]"
            checked_int(name, size, 1, MAX_BATCH_SIZE)
        most = self._options.get("max_examples_in_flight")
        least = sum(size - 1 for size in sizes) + 1
        if self._kind == "bucket" and most is not None and most < least:
            raise ValueError(
                f"max_examples_in_flight={most} is too small: {wanted} buckets that each lack one "
                f"row of such a batch hold {least - 1}"
            )
        return sizes

    @property
    def most_rows(self) -> int | None:
        """Number of rows to read at once, where the shape bounds it."""
        return self._shape.read_bound(self.machine.batch_sizes)

    @property
    def capacity(self) -> int | None:
        """Batches that may be made ahead of trainers, if the shape bounds them."""
        return self._options.get("capacity")

    def fields_after(self, facts: Mapping[str, Field]) -> dict[str, Field]:
        """Return the facts of a batch's rows; ``facts`` are those that stages add."""
        fields = dict(facts)
        if self._length is not None:
            fields["length"] = Field("int32")
        if self._labels is not None:
            fields["label"] = Field("int32")
        return fields

    def padded_fields(self, fields: Mapping[str, Field]) -> Mapping[str, Field]:
        """Return the fields with the sizes that ``pad_to`` gives."""
        if not self._pad_to:
            return fields
        padded = dict(fields)
        for name, sizes in self._pad_to.items():
            if name in fields:
                dims = fields[name].shape
                given = (*sizes, *(None for _ in dims[len(sizes) :]))
                shape = tuple(d if s is None else s for d, s in zip(dims, given, strict=True))
                padded[name] = Field(fields[name].dtype, shape)
        return padded

    def facts(self, chunk: Chunk, bad: BadRecords) -> tuple[Chunk, Mapping[str, np.ndarray]]:
        """Return the rows that fit the shape, and their facts; report others."""
        if self.ragged and len(chunk):
            fault = ragged_fault({name: field_of(one) for name, one in chunk.columns.items()})
            if fault:
                raise DataError(f"{self._kind}: ragged=True: {fault}")
        for name, sizes in self._pad_to.items():
            chunk = self._fitting(chunk, name, sizes, bad)
        if self._length is not None:
            chunk, lengths = self._length.sound(chunk, bad, LENGTH)
            whole = as_int64(lengths)
            chunk = chunk.with_fact(_OWN + "length", whole)
            bounded = np.clip(whole, -(2**31), 2**31 - 1).astype(np.int32)
            chunk = chunk.with_fact("length", bounded)
        if self._boundaries is not None:
            buckets = bucket_of(chunk.facts[_OWN + "length"], self._boundaries)
            chunk = chunk.with_fact(_OWN + "bucket", buckets)
        elif self._bucket is not None:
            count = len(self._options["batch_sizes"])
            chunk = _placed(chunk, self._bucket, "bucket", count, bad)
        if self._labels is not None:
            chunk = _placed(chunk, self._labels, "label", len(self._options["probs"]), bad)
            chunk = chunk.with_fact("label", chunk.facts[_OWN + "label"].astype(np.int32))
        if self._cost is not None:
            chunk = _priced(chunk, self._cost, bad)
        facts = {n.removeprefix(_OWN): f for n, f in chunk.facts.items() if n.startswith(_OWN)}
        for name in facts:
            chunk = chunk.without_fact(_OWN + name)
        return chunk, facts

    def _fitting(self, chunk: Chunk, name: str, sizes: list[int | None], bad: BadRecords) -> Chunk:
        """Return the rows that fit ``pad_to``; report others."""
        if not len(chunk):
            return chunk
        column = chunk.columns.get(name)
        if column is None or (fault := size_fault(field_of(column), sizes)):
            why = f"there is no such column, only {', '.join(chunk.columns)}"
            raise DataError(f"{self._kind}: pad_to[{name!r}]: {why if column is None else fault}")
        assert isinstance(column, Ragged)
        most = np.array([_MAX if size is None else size for size in sizes])
        long = (column.extents[:, : len(sizes)] > most).any(axis=1)
        faults: Faults = {}
        for row in np.flatnonzero(long).tolist():
            shape = [*column.extents[row].tolist(), *column.inner]
            text = f"column {name!r}: it has the shape {shape}; pad_to gives room for {sizes}"
            faults[row] = "too_long", text
        return without(chunk, faults, bad, ", ")


def _priced(chunk: Chunk, values: Values, bad: BadRecords) -> Chunk:
    """Replace the length of each row, which only a budget needs, by its cost."""
    chunk, costs = values.sound(chunk, bad, Rule("a cost is finite and 0 or more"))
    whole = as_int64(np.ceil(costs) if costs.dtype.kind == "f" else costs)
    return chunk.with_fact(_OWN + "length", whole)


def _placed(chunk: Chunk, values: Values, name: str, count: int, bad: BadRecords) -> Chunk:
    """Add a fact to each row: a number in 0 … count-1."""
    chunk, numbers = values.sound(chunk, bad, below(count, f"{name}_out_of_range"))
    return chunk.with_fact(_OWN + name, numbers.astype(np.int64))


def with_facts(chunk: Chunk) -> Chunk:
    """Return the chunk with its facts as columns, as on the wire."""
    if not chunk.facts:
        return chunk
    named = {RESERVED + name: fact for name, fact in chunk.facts.items()}
    return chunk.with_columns({**chunk.columns, **named})
