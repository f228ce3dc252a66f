"""TensorFlow: batches as tensors without a copy, and as a ``tf.data.Dataset``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.layout import ALIGNMENT
from headrace_proto.schema import RESERVED, Field

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError('framework="tf" needs TensorFlow: pip install "headrace[tf]"') from error

if TYPE_CHECKING:
    from .feed import Feed

__all__ = ["TensorFlow", "dataset", "element_spec"]

#: numpy cannot export it: it travels as an unsigned integer and is reinterpreted.
_BITCAST = {"bfloat16": np.uint16}
#: numpy cannot export these, and TensorFlow's bitcast does not know them: they are copied.
_COPIED = frozenset(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"))


def _dtype(name: str) -> Any:
    return tf.string if name == BYTES else tf.dtypes.as_dtype(name)


class TensorFlow:
    """Tensors on the memory of a batch."""

    name = "tf"

    def numbers(self, array: np.ndarray, dtype: str) -> Any:
        carrier = _BITCAST.get(dtype)
        if carrier is not None:
            return tf.bitcast(
                self.numbers(array.view(carrier), np.dtype(carrier).name), _dtype(dtype)
            )
        # TensorFlow aborts the process on memory that is not aligned, and may on none at all.
        if array.size == 0 or dtype in _COPIED or array.ctypes.data % ALIGNMENT:
            return tf.convert_to_tensor(array)
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def strings(self, array: np.ndarray) -> Any:
        return tf.constant(array, tf.string, shape=array.shape)


def element_spec(schema: Mapping[str, Field]) -> dict[str, Any]:
    """The TensorSpecs of a batch."""
    return {name: tf.TensorSpec(f.shape, _dtype(f.dtype), name) for name, f in schema.items()}


def dataset(feed: Feed, facts: Sequence[str]) -> Any:
    """A ``tf.data.Dataset`` of the rest of a feed.

    It is fed with arrays, not with tensors: TensorFlow takes aligned arrays without a copy, but
    makes arrays of tensors first.
    """
    told = {name: feed.facts[name] for name in facts}
    spec = element_spec({**feed.schema, **told})

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for batch in feed:
            columns = {name: batch.array(name) for name in batch}
            yield {**columns, **{name: batch.array(RESERVED + name) for name in facts}}

    return tf.data.Dataset.from_generator(batches, output_signature=spec)
