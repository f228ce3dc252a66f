"""Operations in the graph of a ``tf.function`` that has batches of segments.

    TracedBatch ── key, next_key ─► tensors of the graph
         │
         └── save_state(name, value) ─► an operation ─► Saving.save_token(token, …)   in each call

The save has side effects: TensorFlow runs it once per call of the function, after the
operations before it that have some, whether or not its result is used.  A value is checked while
the function is traced; any other fault is an error of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import FeedClosed
from headrace_proto.segment_layout import SegmentLayout, State

from ..connection.state_block import unknown_state


def keys(own: Any, number: Any, count: Any) -> Any:
    """Return the keys of segments."""
    first, second = (tf.strings.as_string(n, width=5, fill="0") for n in (number, count))
    return tf.strings.join([first, "_of_", second, ":", own])


def next_keys(own: Any, number: Any, count: Any) -> Any:
    """Return the keys of the segments after those."""
    ends = tf.strings.join(["STOP:", own])
    return tf.where(number + 1 == count, ends, keys(own, number + 1, count))


def rows_of(column: Any) -> Any:
    """Return the number of rows of a column, as a tensor where the graph does not know it."""
    return tf.shape(column)[0] if column.shape[0] is None else column.shape[0]


def save_op(layout: SegmentLayout, token: Any, values: Mapping[str, Any], rows: Any = None) -> Any:
    """Return the operation that saves states of the batch with this token.

    KeyError and ValueError where the values can never be right.
    """
    names = list(values)
    tensors = [_checked(layout.states, name, value, rows) for name, value in values.items()]

    def save(number: Any, *arrays: Any) -> None:
        saving = layout.saving()
        if saving is None:
            raise FeedClosed("the feed of this batch is gone; connect again")
        saving.save_token(number, dict(zip(names, arrays, strict=True)))

    return tf.py_function(save, [token, *tensors], [], name="save_state")


def _checked(states: Mapping[str, State], name: str, value: Any, rows: Any) -> Any:
    state = states.get(name)
    if state is None:
        raise unknown_state(name, states)
    dtype = tf.string if state.dtype == BYTES else tf.dtypes.as_dtype(state.dtype)
    if not tf.is_tensor(value):
        value = tf.convert_to_tensor(value, dtype)
    wanted = tf.TensorShape(rows or (None,)).concatenate(state.dims)
    if value.dtype != dtype or not value.shape.is_compatible_with(wanted):
        raise ValueError(
            f"state {name!r}: got {value.dtype.name}{value.shape}, wanted {dtype.name}{wanted}"
        )
    return value
