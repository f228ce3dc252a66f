"""Names that are gone, and what takes the place of each.

hs.replay               AttributeError: hs.replay is gone: …
connect(…, group=2)     TypeError: connect(group=) is gone: …
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from .errors import near

F = TypeVar("F", bound=Callable[..., Any])

_RECORDS = (
    ".with_origin() names the rows of a batch (batch.origin), and "
    "`headrace preview FEED --partition P --batch N` makes a plain batch again"
)

#: ``owner.attribute``, ``call(argument=)`` or ``headrace command``, and the remedy.
GONE: Final[Mapping[str, str]] = {
    "hs.replay": _RECORDS,
    "run(record=)": _RECORDS,
    "run(record_bytes=)": _RECORDS,
    "headrace flight": _RECORDS,
    "headrace replay": _RECORDS,
    "headrace skip": _RECORDS,
    "hs.final_state": "an initial state is a constant array or a column's name",
    "hs.from_pool": "an initial state is a constant array or a column's name",
    "hs.by_source": "functions of notebooks and of __main__ are sent as they are",
    "hs.SequenceQueueingStateSaver": "the method sequence_queueing_state_saver takes its arguments",
    "Pipeline.cache": "`headrace convert` writes Arrow files, which hs.read_arrow maps",
    "read_csv(group_by=)": "hs.from_function reads rows by the csv module and yields their groups",
    "read_tfrecord(compression=)": "each file shows it by its first bytes",
    "read_tfrecord(record=)": "records of both kinds are read; leave it out",
    "read_tfrecord(verify=)": "checksums are always checked, once for each record; leave it out",
    "from_function(batched=)": (
        "a class of hs.StreamSource gives columns, see hs.read; .unbatch() makes rows of arrays"
    ),
    "Feed.take": "feed.set_batch_size(n) changes the size of the batches to come",
    "connect(group=)": "broadcast the batches of one trainer to the others of its group",
    "connect(placement=)": "order='any' takes each batch as soon as it is ready",
    "connect(members=)": "broadcast the batches of one trainer to the others of its group",
    "headrace top": "`headrace status --watch` shows the status again each second",
}

#: Arguments of tf.contrib.training that no function has here.
CONTRIB_ARGUMENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("tensors", "inputs"), "a batch holds all columns; .select(names) chooses among them"
    ),
    **dict.fromkeys(
        ("num_threads", "threads_per_queue", "queue_threads", "prebatch_threads"),
        "hs.run(workers=…, partitions=…) takes its place",
    ),
    **dict.fromkeys(
        ("name", "scope", "shared_name"), "a feed has a name: hs.run({name: pipeline})"
    ),
    "shapes": "the features of the source declare them, or map(…, schema=…)",
    "accept_prob_fn": "it is accept_prob, a column or a function of the columns",
    **dict.fromkeys(
        ("queue_capacity", "prebatch_capacity", "runtime_checks", "back_prop"),
        "there is none to set",
    ),
}
#: Functions of tf.contrib.training that are methods of a pipeline.
CONTRIB_FUNCTIONS: Final = (
    "batch_sequences_with_states",
    "bucket",
    "bucket_by_sequence_length",
    "rejection_sample",
    "resample_at_rate",
    "stratified_sample",
    "stratified_sample_unknown_dist",
    "weighted_resample",
)
_PAGE: Final = "docs/coming-from-contrib.md"


def absent(owner: str, name: str) -> AttributeError:
    """Return the error for an attribute that the owner has not, or has no longer."""
    if remedy := GONE.get(f"{owner}.{name}"):
        return AttributeError(f"{owner}.{name} is gone: {remedy}")
    if owner == "hs" and name in CONTRIB_FUNCTIONS:
        return AttributeError(f"hs.{name} is a method: hs.read_arrow(…).{name}(…), see {_PAGE}")
    return AttributeError(f"{owner} has no attribute {name!r}")


def absent_argument(call: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for an argument that a call of a pipeline, with ``known`` ones, has not."""
    if remedy := GONE.get(f"{call}({name}=)"):
        return TypeError(f"{call}({name}=) is gone: {remedy}")
    remedy = CONTRIB_ARGUMENTS.get(name)
    hint = f": {remedy}, see {_PAGE}" if remedy else near(name, known)
    return TypeError(f"{call}() has no argument {name}{hint}")


def refusing_gone(function: F) -> F:
    """Let a call refuse its arguments that are gone, with what takes their place."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        for name in named:
            if remedy := GONE.get(f"{function.__name__}({name}=)"):
                raise TypeError(f"{function.__name__}({name}=) is gone: {remedy}")
        return function(*args, **named)

    return call  # type: ignore[return-value]
