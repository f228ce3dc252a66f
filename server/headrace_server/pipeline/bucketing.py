"""The part of the builder that sorts examples into buckets.

Names, order and defaults of arguments are those of the TensorFlow functions, less those that named
graph nodes, counted threads or declared shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from headrace_proto.schema import Field

from .argument_checks import MAX_BATCH_SIZE, MAX_COUNT, check_kind, checked, checked_int
from .declaration import Shape, Stage
from .former import former
from .padding_options import PadTo, padding_options
from .row_steps import RowSteps
from .selectors import Value, checked_value


class Bucketing(RowSteps):
    """Shapes that group examples by bucket."""

    @former("num_buckets", tensors=0)
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
        """Batches of examples of one bucket each, whose number is ``batch.bucket``.

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
        known = self.fields
        options = {
            "bucket": checked_value("which_bucket", which_bucket, known, integer=True),
            "boundaries": None,
            "length": None if input_length is None else _length(input_length, known),
            **_checked_buckets(
                checked(num_buckets=num_buckets)["num_buckets"],
                batch_size,
                bucket_capacities,
                capacity=capacity,
                max_padded_elements=max_padded_elements,
                max_examples_in_flight=max_examples_in_flight,
                dynamic_pad=dynamic_pad,
                allow_smaller_final_batch=allow_smaller_final_batch,
            ),
            **_cost(cost, known, max_padded_elements),
            **padding_options(dynamic_pad, known, pad_to_multiple, pad_to, ragged=ragged),
        }
        if max_padded_elements is not None and input_length is None and cost is None:
            raise ValueError(
                f"max_padded_elements={max_padded_elements} needs input_length, or cost: a budget "
                "counts padded steps"
            )
        return self._kept(keep_input)._with_shape(Shape("bucket", options))

    @former("bucket_boundaries", tensors=1)
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
        """Batches of examples of similar length; ``batch.length`` holds the lengths.

        ``input_length`` is a column of integers, a sequence whose length counts, or a function.
        Bucket 0 takes lengths below the first boundary, bucket k those from boundary k-1 to below
        boundary k, the last one the rest.  All else is as in ``bucket``.

        With ``pad_to_boundary`` batches are padded to the upper boundary of their bucket, so each
        bucket has one shape; those of the last one are padded to their longest.
        """
        known = self.fields
        boundaries = _boundaries(bucket_boundaries)
        options = {
            "bucket": None,
            "boundaries": boundaries,
            "length": _length(input_length, known),
            **_checked_buckets(
                len(boundaries) + 1,
                batch_size,
                bucket_capacities,
                capacity=capacity,
                max_padded_elements=max_padded_elements,
                max_examples_in_flight=max_examples_in_flight,
                dynamic_pad=dynamic_pad,
                allow_smaller_final_batch=allow_smaller_final_batch,
            ),
            **_cost(cost, known, max_padded_elements),
            **padding_options(dynamic_pad, known, pad_to_multiple, pad_to, pad_to_boundary, ragged),
        }
        return self._kept(keep_input)._with_shape(Shape("bucket", options))

    def _kept(self, keep_input: Value | None) -> Self:
        """The pipeline with a stage that drops the examples that are not to be kept."""
        if keep_input is None or keep_input is True:
            return self
        selector = checked_value("keep_input", keep_input, self.fields, constant=(0, 1))
        if selector[0] == "constant" and selector[1] not in (0, 1):
            raise ValueError(f"keep_input={keep_input!r} is neither true nor false")
        return self._with_stage(Stage("keep", {"keep": selector}))


def _length(input_length: Value, known: Mapping[str, Field] | None) -> list[Any]:
    return checked_value("input_length", input_length, known, sequence=True, integer=True)


def _cost(
    cost: Value | None, known: Mapping[str, Field] | None, budget: int | None
) -> dict[str, Any]:
    if cost is None:
        return {}
    if budget is None:
        raise ValueError(
            f"cost={cost!r:.80} needs max_padded_elements, the budget that it counts in"
        )
    return {"cost": checked_value("cost", cost, known)}


def _checked_buckets(
    count: int, batch_size: Any, bucket_capacities: Any, capacity: Any, **common: Any
) -> dict[str, Any]:
    """The options that both forms of buckets have."""
    options = checked(**common)
    budget, most = options["max_padded_elements"], options["max_examples_in_flight"]
    sizes = _batch_sizes(batch_size, count, budget)
    bounds = None
    if bucket_capacities is not None:
        bounds = _per_bucket("bucket_capacities", bucket_capacities, count, MAX_COUNT)
    if most is not None:
        # Fewer, and buckets that wait for their last row could fill it up: nothing would move.
        least = sum((budget if size is None else size) - 1 for size in sizes) + 1
        if most < least:
            raise ValueError(
                f"max_examples_in_flight={most} is too small: {count} buckets that each lack one "
                f"row of a batch hold {least - 1}, so the least is {least}"
            )
    options["batch_sizes"] = sizes
    options["bucket_capacities"] = bounds
    options["capacity"] = checked_int("capacity", capacity, 1, 65_536)
    return options


def _batch_sizes(value: Any, count: int, budget: int | None) -> list[int | None]:
    if value is None:
        if budget is None:
            raise ValueError(
                "batch_size=None needs max_padded_elements: something must fill a batch"
            )
        return [None] * count
    if _is_several(value):
        return list(_per_bucket("batch_size", value, count, MAX_BATCH_SIZE))
    return [checked(batch_size=value)["batch_size"]] * count


def _is_several(value: Any) -> bool:
    """Whether a value is a sequence of numbers: a list, a range, an array of one dimension."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _per_bucket(argument: str, value: Any, count: int, most: int) -> list[int]:
    if not _is_several(value):
        raise TypeError(f"{argument}={value!r:.80} is a {type(value).__name__}; it is a list")
    if len(value) != count:
        raise ValueError(f"{argument} has {len(value)} entries; it must have exactly {count}")
    return [checked_int(f"{argument}[{i}]", entry, 1, most) for i, entry in enumerate(value)]


def _boundaries(value: Any) -> list[int]:
    check_kind("bucket_boundaries", value, (list, tuple), "a list of ints")
    if not value:
        raise ValueError("bucket_boundaries is empty: one boundary makes two buckets")
    boundaries = [
        checked_int(f"bucket_boundaries[{i}]", entry, -(2**63), 2**63 - 1)
        for i, entry in enumerate(value)
    ]
    for i in range(1, len(boundaries)):
        if boundaries[i] <= boundaries[i - 1]:
            raise ValueError(
                f"bucket_boundaries[{i}]={boundaries[i]} does not exceed the one before, "
                f"{boundaries[i - 1]}: boundaries ascend"
            )
    return boundaries
