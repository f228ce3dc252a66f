"""The part of the builder that sorts examples into buckets.

Names, order and defaults of arguments are those of the TensorFlow functions, less those that named
graph nodes, counted threads or declared shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

from .padding_options import PadTo
from .row_steps import RowSteps
from .selectors import Value, checked_value
from .signatures import checking


class Bucketing(RowSteps):
    """Shapes that group examples by bucket."""

    @checking
    def bucket(
        self,
        which_bucket: Value,
        batch_size: int | Sequence[int] | None,
        num_buckets: int,
        capacity: int = 32,
        bucket_capacities: Sequence[int] | None = None,
        dynamic_pad: bool = False,
        allow_smaller_final_batch: bool = False,
        keep_input: Value | None = True,
        *,
        input_length: Value | None = None,
        max_padded_elements: int | None = None,
        max_examples_in_flight: int | None = None,
        cost: Value | None = None,
        pad_to_multiple: int | None = None,
        pad_to: PadTo | None = None,
        ragged: bool = False,
    ) -> Self:
        """Return batches of examples of one bucket each, whose number is ``batch.bucket``.

        ``which_bucket`` gives 0 … ``num_buckets``-1 for each example; another number is a
        DataError.  Examples for which ``keep_input`` is not true are dropped before, and counted.
        Inside a bucket the order stays; batches come in the order in which they became full; with
        ``allow_smaller_final_batch`` the remaining rows come at the end, by ascending bucket.

        ``batch_size`` is one for all or one per bucket.  With ``max_padded_elements`` and
        ``input_length`` a batch is also full when its longest length times its rows would exceed
        that budget; ``batch_size=None`` leaves it to the budget alone.  ``cost`` (a column or a
        function) replaces the length there: with the square of the length it is a budget for
        attention.

        ``pad_to_multiple``, ``pad_to`` and ``ragged`` are those of ``batch``.  A budget of lengths
        counts what is padded so; of ragged rows it is the sum of their lengths.

        A partition makes ``capacity`` batches ahead of the trainers, at most 64 MiB of them (2 MiB
        for each batch of a capacity beyond 32).  Beside the batch that it gathers, a bucket holds
        at most its number of ``bucket_capacities`` rows; a partition holds at most
        ``max_examples_in_flight`` rows that are in no batch.
        """
        return self._bucketed(vars())

    @checking
    def bucket_by_sequence_length(
        self,
        input_length: Value,
        batch_size: int | Sequence[int] | None,
        bucket_boundaries: Sequence[int],
        capacity: int = 32,
        bucket_capacities: Sequence[int] | None = None,
        dynamic_pad: bool = False,
        allow_smaller_final_batch: bool = False,
        keep_input: Value | None = True,
        *,
        max_padded_elements: int | None = None,
        max_examples_in_flight: int | None = None,
        cost: Value | None = None,
        pad_to_multiple: int | None = None,
        pad_to_boundary: bool = False,
        pad_to: PadTo | None = None,
        ragged: bool = False,
    ) -> Self:
        """Return batches of examples of similar length; ``batch.length`` holds the lengths.

        ``input_length`` is a column of integers, a sequence whose length counts, or a function.
        Bucket 0 takes lengths below the first boundary, bucket k those from boundary k-1 to below
        boundary k, the last one the rest.  All else is as in ``bucket``.

        With ``pad_to_boundary`` batches are padded to the upper boundary of their bucket, so each
        bucket has one shape; those of the last one are padded to their longest.
        """
        return self._bucketed(vars())

    def _bucketed(self, given: dict[str, Any]) -> Self:
        """Return the pipeline with a shape of buckets, declared by the arguments of either call."""
        kept = self._kept(given.pop("keep_input"))
        boundaries = given["boundaries"] = given.pop("bucket_boundaries", None)
        count = given.pop("num_buckets", 0) or len(_ascending(boundaries)) + 1
        budget, most = given["max_padded_elements"], given["max_examples_in_flight"]
        given["bucket"] = given.pop("which_bucket", None)
        given["length"] = given.pop("input_length")
        size = given.pop("batch_size")
        if size is None and budget is None:
            raise ValueError(
                "batch_size=None needs max_padded_elements: something must fill a batch"
            )
        sizes = given["batch_sizes"] = size if isinstance(size, list) else [size] * count
        per_bucket = {"batch_size": sizes, "bucket_capacities": given["bucket_capacities"]}
        for name, listed in per_bucket.items():
            if listed is not None and len(listed) != count:
                raise ValueError(f"{name} has {len(listed)} entries; it must have exactly {count}")
        if most is not None:
            # Fewer, and buckets that wait for their last row could fill it up: nothing would move.
            least = sum((size or budget) - 1 for size in sizes) + 1
            if most < least:
                raise ValueError(
                    f"max_examples_in_flight={most} is too small: {count} buckets that each lack "
                    f"one row of a batch hold {least - 1}, so the least is {least}"
                )
        cost = given.pop("cost")
        if cost is not None:
            given["cost"] = cost
            if budget is None:
                raise ValueError(
                    f"cost={cost[1]!r:.80} needs max_padded_elements, the budget that it counts in"
                )
        elif budget is not None and given["length"] is None:
            raise ValueError(
                f"max_padded_elements={budget} needs input_length, or cost: a budget counts padded "
                "steps"
            )
        return kept._with_shape("bucket", given)

    def _kept(self, keep_input: Value | None) -> Self:
        """Return the pipeline with a stage that drops the examples that are not to be kept."""
        if keep_input is None or keep_input is True:
            return self
        selector = checked_value("keep_input", keep_input, self.fields, constant=(0, 1))
        if selector[0] == "constant" and selector[1] not in (0, 1):
            raise ValueError(f"keep_input={keep_input!r} is neither true nor false")
        return self._with_stage("keep", keep=selector)


def _ascending(boundaries: list[int]) -> list[int]:
    if not boundaries:
        raise ValueError("bucket_boundaries is empty: one boundary makes two buckets")
    for i, (one, following) in enumerate(pairwise(boundaries), 1):
        if following <= one:
            raise ValueError(
                f"bucket_boundaries[{i}]={following} does not exceed the one before, {one}: "
                "boundaries ascend"
            )
    return boundaries
