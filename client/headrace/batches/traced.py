"""Batches of segments inside a ``tf.function``, and saves of states as operations of its graph.

    TracedBatch ── sequences, context, state(name) ─► tensors of the graph
         │
         └── save_state(name, value) ─► an operation ─► Saving.save_token(token, …)   in each call

The operation has side effects: TensorFlow runs it once per call of the function, after the
operations before it that have some, whether or not its result is used.  A value is checked while
the function is traced; any other fault is an error of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import tensorflow as tf

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import FeedClosed
from headrace_proto.segment_layout import STARTS, SegmentLayout, State

from ..connection.state_block import unknown_state
from .segments import SegmentBatch


def flattened(batch: Any) -> tuple[SegmentLayout, tuple[Any, ...]]:
    """Return the layout that all batches of the feed share, then token and columns of this one.

    A function is traced again for another feed.  The layout does not keep the feed alive: functions
    that were traced with it live longer.
    """
    names = _columns_of(batch._layout)
    if isinstance(batch, TracedBatch):
        return batch._layout, (batch.token, *(batch._cache[name] for name in names))
    framework = batch._framework.name
    if framework not in ("tf", "numpy"):
        raise TypeError(
            f"a batch of a feed with framework={framework!r} is no argument of a tf.function: "
            'connect with framework="tf"'
        )
    columns = (batch.lane if name == "@lane" else batch._column(name) for name in names)
    return batch._layout, (np.array(batch.token, np.int64), *columns)


def _columns_of(layout: SegmentLayout) -> list[str]:
    return [name for name in layout.schema if name not in STARTS]


class TracedBatch(SegmentBatch):
    """A batch inside a ``tf.function``: tensors in place of arrays, else as ``SegmentBatch``."""

    def __init__(self, layout: SegmentLayout, components: tuple[Any, ...]) -> None:
        self._layout = layout
        self.token, *columns = components
        self._cache = self._slots = dict(zip(_columns_of(layout), columns, strict=True))

    def save_state(self, name: str, value: Any) -> Any:
        if not isinstance(name, str):
            raise unknown_state(name, self._layout.states)
        return save_op(self._layout, self.token, {name: value}, self._cache["@key"].shape[:1])

    def array(self, name: str) -> np.ndarray:
        raise TypeError(
            "inside a tf.function a batch has no arrays: use its tensors (batch.sequences, "
            "batch.context, batch.state(name), batch.length …)"
        )

    def _changed(self, change: Any) -> Self:
        raise TypeError("inside a tf.function a batch stays where it is: move its tensors")

    def _strings(self, name: str) -> Any:
        own = self.original_key
        ahead = 1 if name == "next_key" else 0
        number, count = (
            tf.strings.as_string(n, width=5, fill="0")
            for n in (self.sequence + ahead, self.sequence_count)
        )
        keys = tf.strings.join([number, "_of_", count, ":", own])
        return tf.where(self.last, tf.strings.join(["STOP:", own]), keys) if ahead else keys

    def _derived(self, name: str) -> Any:
        return self._cache["@lane"] if name == "lane" else self._flags(name, self._column)

    def __getattr__(self, name: str) -> Any:
        if name == "rows":
            keys = self._cache["@key"]
            return tf.shape(keys)[0] if keys.shape[0] is None else keys.shape[0]
        raise AttributeError(
            f"batch.{name}: a batch inside a tf.function has its rows' tensors and no more"
        )

    def __repr__(self) -> str:
        groups = (f"{name}: {value.shape}" for name, value in self._cache.items())
        return f"<TracedBatch {'; '.join(groups)}>"


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
