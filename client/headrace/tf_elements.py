"""How batches are elements of a ``tf.data.Dataset``: their spec, their arrays and their tensors.

schema, facts ──► spec                            of plain batches a dict of columns,
batch ──► arrays, flat, in the order of the spec  of segments a dict of dicts
batch ──► tensors, in the form of the spec
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from headrace_proto.dtypes import BYTES
from headrace_proto.schema import OFFSETS, RESERVED, Field
from headrace_proto.segment_layout import GROUPS

from .segments import FLAGS, SEGMENT_FACTS

if TYPE_CHECKING:
    from .batch import Batch
    from .feed import Feed
    from .segments import SegmentBatch


class Elements(NamedTuple):
    """The form of a feed's batches in a dataset."""

    spec: dict[str, Any]
    #: The arrays of a batch, as TensorFlow takes them: aligned ones without a copy.
    arrays: Callable[[Any], list[Any]]
    #: The tensors of a batch.
    tensors: Callable[[Any], dict[str, Any]]
    #: Whether a ragged column is two tensors of the spec, its values and its offsets.
    ragged: bool = False


def elements_of(feed: Feed, facts: Sequence[str], tokens: bool) -> Elements:
    """Return the form of a feed's batches; ``facts`` and ``tokens`` are those of ``as_dataset``."""
    return _of_segments(feed) if feed._of_segments else _of_rows(feed, facts, tokens)


def _spec(schema: Mapping[str, Field]) -> dict[str, Any]:
    """Return the TensorSpecs of the columns of a batch as they lie in memory."""
    return {
        name: tf.TensorSpec(field.shape, tf.string if field.dtype == BYTES else field.dtype, name)
        for name, field in schema.items()
    }


def _of_rows(feed: Feed, facts: Sequence[str], tokens: bool) -> Elements:
    flat = [*feed.schema]
    layout = feed._layout
    offsets = [OFFSETS + name for name, field in feed.schema.items() if field.ragged]
    columns = {name: name for name in flat}
    columns |= {name: RESERVED + name for name in facts} | {name: name for name in offsets}
    spec = _spec({name: layout[column] for name, column in columns.items()})
    if tokens:
        spec |= _spec({"token": Field("int64")})
    in_order = [columns.get(name) for name in sorted(spec)]  # as tf.nest flattens a dict

    def arrays(batch: Batch) -> list[Any]:
        return [np.int64(batch.token) if name is None else batch.array(name) for name in in_order]

    def tensors(batch: Batch) -> dict[str, Any]:
        found = {name: batch[name] for name in flat}
        found |= {name: getattr(batch, name) for name in facts}
        return found | {"token": tf.constant(batch.token, tf.int64)} if tokens else found

    return Elements(spec, arrays, tensors, bool(offsets))


def _of_segments(feed: Feed) -> Elements:
    layout = feed.facts
    rows = layout["sequence"].shape[0]
    facts = {name: layout[name] for name in SEGMENT_FACTS if name in layout}
    groups: dict[str, dict[str, Field]] = {group: {} for group in GROUPS}
    for name, field in feed.schema.items():
        group, _, inner = name.partition(":")
        groups[group][inner] = field
    spec = _spec({"token": Field("int64"), **facts})
    spec.update(dict.fromkeys(FLAGS, tf.TensorSpec((rows,), tf.bool)))
    spec.update({group: _spec(fields) for group, fields in groups.items()})

    def arrays(batch: SegmentBatch) -> list[Any]:
        flat: list[Any] = tf.nest.flatten(batch.arrays())
        return flat

    def tensors(batch: SegmentBatch) -> dict[str, Any]:
        found = {"token": tf.constant(batch.token, tf.int64)}
        found |= {name: getattr(batch, name) for name in [*facts, *FLAGS]}
        return found | {
            group: {name: batch._column(f"{group}:{name}") for name in fields}
            for group, fields in groups.items()
        }

    return Elements(spec, arrays, tensors)
