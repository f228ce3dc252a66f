"""Errors for arguments of the TensorFlow functions that are not here.  They name the substitute.

    bucket(…, num_threads=4)       TypeError: bucket() has no argument num_threads: …
    bucket([x, y], which, 32, 5)   TypeError: bucket() takes no tensors: …
    bucket(which, 32, 5, 1, 32)    the error of the value, and from where on positions differ

Arguments are recognised by name and by kind; one number in the place of another can not be.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .signatures import F, checking

_COLUMNS = "a batch holds all columns of the pipeline; .select(names) chooses among them"
_NAMES = "nothing is named in a graph; a feed has a name: hs.run({name: pipeline})"
_SHAPES = "the schema says them: the features of the source, or map(…, schema=…)"
_QUEUE = "there is no such queue here"
_IS = "it is "
#: For all functions; "it is NAME" only where the function has an argument of that name.
_ABSENT = {
    "tensors": _COLUMNS,
    "inputs": _COLUMNS,
    **dict.fromkeys(
        ("num_threads", "threads_per_queue", "queue_threads", "prebatch_threads"),
        "hs.run(workers=…, partitions=…) takes its place (--workers, --partitions)",
    ),
    "queue_capacity": _QUEUE,
    "prebatch_capacity": _QUEUE,
    "name": _NAMES,
    "scope": _NAMES,
    "shared_name": "trainers that connect to one feed share it; hs.run({name: pipeline}) names it",
    "shapes": _SHAPES,
    "tensor_shapes": _SHAPES,
    "enqueue_many": ".unbatch() before it makes an example of each row",
    "back_prop": "there is no graph to go back through",
    "runtime_checks": "values are always checked; a wrong one is a DataError",
    "accept_prob_fn": "it is accept_prob",
    "length": "it is input_length",
    "dynamic_pad": "batches have it: give it to the shape",
    "ragged": "batches have it: give it to the shape",
    "capacity": "there is no queue to bound; slab_bytes of hs.run bounds the batches made ahead",
    "bucket_capacities": "only bucket and bucket_by_sequence_length have buckets",
    "seed": "nothing is drawn here; shuffle(seed=…) draws the order of the examples",
    "keep_input": "filter(fn) before it drops examples",
    "pad": "it is dynamic_pad",
    "allow_small_batch": "it is allow_smaller_final_batch",
    "allow_smaller_final_batch": "it is allow_small_batch",
}


def former(alike: str, tensors: int | None = None, **own: str) -> Callable[[F], F]:
    """Return a checked step whose errors help users of the TensorFlow function of its name.

    Up to ``alike`` positions are those of TensorFlow, less the tensors, which stood at ``tensors``.
    ``own`` are further absent arguments, by name.
    """

    def decorated(method: F) -> F:
        call = f"{method.__name__}()"
        known = list(inspect.signature(method).parameters)[1:]
        absent = {
            name: why
            for name, why in {**_ABSENT, **own}.items()
            if name not in known and (not why.startswith(_IS) or why.removeprefix(_IS) in known)
        }
        agree = known.index(alike) + 1
        call_checked = checking(method)

        @functools.wraps(method)
        def called(self: Any, *args: Any, **named: Any) -> Any:
            for name in named:
                if name in absent:
                    raise TypeError(f"{call} has no argument {name}: {absent[name]}")
            if tensors is not None and len(args) > tensors and _are_tensors(args[tensors]):
                raise TypeError(
                    f"{call} takes no tensors, such as {args[tensors]!r:.80}: {_COLUMNS}"
                )
            try:
                return call_checked(self, *args, **named)
            except (TypeError, ValueError) as error:
                if len(args) <= agree:
                    raise
                hint = (
                    f"After {alike} positions are not those of tf.contrib.training, whose "
                    "threads, queues and names are gone: give later arguments by name"
                )
                raise type(error)(f"{error}.  {hint}") from None

        return called  # type: ignore[return-value]

    return decorated


def _are_tensors(value: Any) -> bool:
    """Return whether a value can only be the tensors of an example, in a dict or a list."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, (list, tuple)) and any(not isinstance(v, (int, float)) for v in value)
