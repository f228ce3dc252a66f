"""``bucket`` and ``bucket_by_sequence_length``: batches of rows that are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace_proto.schema import Field

from ...pipeline.argument_checks import Selector
from ...reading.chunk import BadRecords, Chunk
from ...reading.row_values import COST, LENGTH, Values, as_int64
from ...shaping import chance
from ...shaping.bucket import NO_PADDING, Buckets, bucket_of
from ..shape import Fields, PaddedRows, RowFacts, noted, numbered, split


class Bucket(PaddedRows):
    """Batches of one bucket each, by ``bucket`` or by ``length`` and ``boundaries``."""

    def __init__(
        self,
        batch_sizes: list[int | None],
        bucket: Selector | None = None,
        length: Selector | None = None,
        boundaries: Sequence[int] | None = None,
        capacity: int | None = 32,
        bucket_capacities: Sequence[int] | None = None,
        max_padded_elements: int | None = None,
        max_examples_in_flight: int | None = None,
        cost: Selector | None = None,
        pad_to_boundary: bool = False,
        sources: int = 0,
        balance: Selector | None = None,
        balance_batches: int = 0,
        num_buckets: int | None = None,
        shuffle_batches: int = 0,
        shuffle_seed: int = 0,
        **padding: Any,
    ) -> None:
        """``num_buckets``: those whose boundaries are not found yet; see ``bucket_sample``.

        ``sources``: the number of those whose rows have buckets of their own; 0: none has."""
        kind, name = length or ("", "")
        self._sources = sources
        super().__init__(
            **padding,
            length_column=name if kind == "column" else None,
            boundaries=self._of_sources(boundaries or ()) if pad_to_boundary else (),
        )
        self.batch_sizes, self.capacity = self._of_sources(batch_sizes), capacity
        self._boundaries = None if boundaries is None else np.array(boundaries, np.int64)
        self._capacities, self._budget = bucket_capacities, max_padded_elements
        self._in_flight = max_examples_in_flight
        self._balance, self._window = balance, balance_batches
        self._together, self._seed = shuffle_batches, shuffle_seed
        self._selectors = {
            name: (argument, selector)
            for name, argument, selector in (
                ("bucket", "which_bucket", bucket),
                ("length", "input_length", length),
                ("cost", "cost", cost),
            )
            if selector is not None
        }

    def _of_sources(self, values: Sequence[Any]) -> list[Any]:
        """Return values of buckets for those of each source: bucket after bucket."""
        return [value for value in values for _ in range(self._sources or 1)]

    def read_bound(self, batch_sizes: Sequence[int | None] | None = None) -> int | None:
        bounds = list(self._capacities or [])
        if self._in_flight is not None:
            sizes = [size or self._budget or 0 for size in batch_sizes or self.batch_sizes]
            bounds.append(self._in_flight - sum(size * (self._window or 1) - 1 for size in sizes))
        return min(bounds, default=None)

    def machine(self, partition: int) -> Buckets:
        padding = NO_PADDING if "cost" in self._selectors else self.padding
        return Buckets(
            self.batch_sizes,
            self.allow_smaller,
            self._budget,
            padding,
            self.ragged,
            self._window,
            self._together,
            chance.derive(self._seed, partition) if self._together else 0,
        )

    def open(self, partition: int) -> None:
        super().open(partition)
        self._values = {
            name: Values(self.kind, argument, selector, sequence=name == "length")
            for name, (argument, selector) in self._selectors.items()
        }

    @property
    def batch_size(self) -> int | None:
        sizes = set(self.batch_sizes)
        alike = len(sizes) == 1 and self._budget is None and not self.allow_smaller
        return sizes.pop() if alike else None

    def sizes_checked(self, batch_sizes: Sequence[int]) -> list[int]:
        sizes = super().sizes_checked(batch_sizes)
        least = sum(size * (self._window or 1) - 1 for size in sizes) + 1
        if self._in_flight is not None and self._in_flight < least:
            raise ValueError(
                f"max_examples_in_flight={self._in_flight} is too small: {len(sizes)} buckets that "
                f"each lack one row of such a batch hold {least - 1}"
            )
        return sizes

    def fact_fields(self, fields: Fields) -> Fields:
        return {**fields, "length": Field("int32")} if "length" in self._selectors else fields

    def facts(self, chunk: Chunk, bad: BadRecords) -> tuple[Chunk, RowFacts]:
        chunk, _ = super().facts(chunk, bad)
        values = self._values
        if "length" in values:
            chunk, lengths = values["length"].sound(chunk, bad, LENGTH)
            whole = as_int64(lengths)
            bounded = np.clip(whole, -(2**31), 2**31 - 1).astype(np.int32)
            chunk = noted(chunk, "length", whole).with_fact("length", bounded)
            if self._boundaries is not None:
                chunk = noted(chunk, "bucket", bucket_of(whole, self._boundaries))
        if "bucket" in values:
            count = len(self.batch_sizes) // (self._sources or 1)
            chunk = numbered(chunk, values["bucket"], "bucket", count, bad)
        if "cost" in values:  # in place of the length, which only a budget needs
            chunk, costs = values["cost"].sound(chunk, bad, COST)
            whole = as_int64(np.ceil(costs) if costs.dtype.kind == "f" else costs)
            chunk = noted(chunk, "length", whole)
        chunk, facts = split(self._priced(chunk, bad))
        if self._sources:
            facts["bucket"] = facts.get("bucket", 0) * self._sources + chunk.facts["source"]
        return chunk, facts
