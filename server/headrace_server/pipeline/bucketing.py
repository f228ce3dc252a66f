"""The part of the builder that sorts examples into buckets.

Names, order and defaults of arguments are those of the TensorFlow functions, less those that named
graph nodes, counted threads or said shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headrace_proto.schema import Field

from .checks import checked_flag, checked_int
from .declaration import Shape, Stage
from .former import former
from .selectors import Value, checked_value

__all__ = ["MAX_BATCH_SIZE", "Bucketing", "read_bound"]

#: A batch of more rows than this is a mistake in a unit, and its indices alone weigh 8 MiB.
MAX_BATCH_SIZE = 2**20
#: Each bucket costs a queue in every partition.
_MAX_BUCKETS = 65_536
_MAX_COUNT = 2**62

P = TypeVar("P", bound="Bucketing")


class Bucketing:
    """Shapes that group examples by bucket."""

    if TYPE_CHECKING:  # what Pipeline brings

        @property
        def fields(self) -> dict[str, Field] | None: ...

        def _open(self, method: str) -> None: ...

        def _with_stage(self: P, stage: Stage) -> P: ...

        def _with_shape(self: P, shape: Shape) -> P: ...

    @former("num_buckets", tensors=0)
    def bucket(
        self: P,
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
    ) -> P:
        """Batches of examples of one bucket each; ``batch.bucket`` tells which.

        ``which_bucket`` gives 0 … ``num_buckets``-1 for each example; another number is a
        DataError.  Examples for which ``keep_input`` is not true are dropped before, and counted.
        Inside a bucket the order stays; batches come in the order in which they became full; what
        remains in the end comes by ascending bucket if ``allow_smaller_final_batch``.

        ``batch_size`` is one for all or one per bucket.  With ``max_padded_elements`` and
        ``input_length`` a batch is also full when its longest length times its rows would
        exceed that budget; ``batch_size=None`` leaves it to the budget alone.

        A partition makes ``capacity`` batches ahead of the trainers, as far as 64 MiB of them (for
        each 32 of a larger capacity), and its memory, reach.  It takes in at most
        ``bucket_capacities`` rows at a time for a bucket, which then holds at most so many beside
        the batch that it gathers; and holds at most ``max_examples_in_flight`` rows that are in no
        batch.
        """
        self._open("bucket")
        known = self.fields
        count = checked_int("num_buckets", num_buckets, 1, _MAX_BUCKETS)
        options: dict[str, Any] = {
            "bucket": checked_value("which_bucket", which_bucket, known, integer=True),
            "boundaries": None,
            "length": None if input_length is None else _length(input_length, known),
        }
        options.update(
            _shared(
                count,
                batch_size,
                capacity,
                bucket_capacities,
                max_padded_elements,
                max_examples_in_flight,
                dynamic_pad,
                allow_smaller_final_batch,
            )
        )
        if max_padded_elements is not None and input_length is None:
            raise ValueError(
                f"max_padded_elements={max_padded_elements} needs input_length: a budget counts "
                "padded steps"
            )
        return _kept(self, keep_input, known)._with_shape(Shape("bucket", options))

    @former("bucket_boundaries", tensors=1)
    def bucket_by_sequence_length(
        self: P,
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
    ) -> P:
        """Batches of examples of like length; ``batch.length`` holds the lengths.

        ``input_length`` is a column of integers, a sequence whose length counts, or a function.
        Bucket 0 takes lengths below the first boundary, bucket k those from boundary k-1 to below
        boundary k, the last one the rest.  All else is as in ``bucket``.
        """
        self._open("bucket_by_sequence_length")
        known = self.fields
        boundaries = _boundaries(bucket_boundaries)
        options: dict[str, Any] = {
            "bucket": None,
            "boundaries": boundaries,
            "length": _length(input_length, known),
        }
        options.update(
            _shared(
                len(boundaries) + 1,
                batch_size,
                capacity,
                bucket_capacities,
                max_padded_elements,
                max_examples_in_flight,
                dynamic_pad,
                allow_smaller_final_batch,
            )
        )
        return _kept(self, keep_input, known)._with_shape(Shape("bucket", options))


def _length(input_length: Value, known: Mapping[str, Field] | None) -> list[Any]:
    return checked_value("input_length", input_length, known, sequence=True, integer=True)


def read_bound(options: Mapping[str, Any]) -> int | None:
    """Rows that may be read at once, where a shape bounds what a partition holds."""
    bounds = list(options.get("bucket_capacities") or [])
    most = options.get("max_examples_in_flight")
    if most is not None and "batch_sizes" in options:
        budget = options["max_padded_elements"]
        held = sum((budget if size is None else size) - 1 for size in options["batch_sizes"])
        bounds.append(most - held)
    return min(bounds, default=None)


def _kept(pipeline: P, keep_input: Value | None, known: Mapping[str, Field] | None) -> P:
    if keep_input is None or keep_input is True:
        return pipeline
    selector = checked_value("keep_input", keep_input, known, constant=(0, 1))
    if selector[0] == "constant" and selector[1] not in (0, 1):
        raise ValueError(f"keep_input={keep_input!r} is neither true nor false")
    return pipeline._with_stage(Stage("keep", {"keep": selector}))


def _shared(
    count: int,
    batch_size: Any,
    capacity: Any,
    bucket_capacities: Any,
    max_padded_elements: Any,
    max_examples_in_flight: Any,
    dynamic_pad: Any,
    allow_smaller_final_batch: Any,
) -> dict[str, Any]:
    """What both forms of buckets have in common, checked."""
    budget = checked_int("max_padded_elements", max_padded_elements, 1, _MAX_COUNT, or_none=True)
    sizes = _batch_sizes(batch_size, count, budget)
    bounds = None
    if bucket_capacities is not None:
        bounds = _per_bucket("bucket_capacities", bucket_capacities, count)
    most = checked_int(
        "max_examples_in_flight", max_examples_in_flight, 1, _MAX_COUNT, or_none=True
    )
    if most is not None:
        # Fewer, and buckets that wait for their last row could fill it up: nothing would move.
        least = sum((budget if size is None else size) - 1 for size in sizes) + 1
        if most < least:
            raise ValueError(
                f"max_examples_in_flight={most} is too small: {count} buckets that each lack one "
                f"row of a batch hold {least - 1}, so the least is {least}"
            )
    return {
        "batch_sizes": sizes,
        "capacity": checked_int("capacity", capacity, 1, 65_536),
        "bucket_capacities": bounds,
        "max_padded_elements": budget,
        "max_examples_in_flight": most,
        "dynamic_pad": checked_flag("dynamic_pad", dynamic_pad),
        "allow_smaller_final_batch": checked_flag(
            "allow_smaller_final_batch", allow_smaller_final_batch
        ),
    }


def _batch_sizes(value: Any, count: int, budget: int | None) -> list[int | None]:
    if value is None:
        if budget is None:
            raise ValueError(
                "batch_size=None needs max_padded_elements: something must fill a batch"
            )
        return [None] * count
    if isinstance(value, (list, tuple)):
        return [
            checked_int(f"batch_size[{i}]", size, 1, MAX_BATCH_SIZE)
            for i, size in enumerate(_exactly("batch_size", value, count))
        ]
    return [checked_int("batch_size", value, 1, MAX_BATCH_SIZE)] * count


def _per_bucket(argument: str, value: Any, count: int) -> list[int]:
    return [
        checked_int(f"{argument}[{i}]", entry, 1, _MAX_COUNT)
        for i, entry in enumerate(_exactly(argument, value, count))
    ]


def _exactly(argument: str, value: Any, count: int) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{argument}={value!r:.80} is a {type(value).__name__}; it is a list")
    if len(value) != count:
        raise ValueError(f"{argument} has {len(value)} entries; it must have exactly {count}")
    return value


def _boundaries(value: Any) -> list[int]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(
            f"bucket_boundaries={value!r:.80} is a {type(value).__name__}; it is a list of ints"
        )
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
