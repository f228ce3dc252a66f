"""TensorFlow: batches as tensors without a copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.layout import ALIGNMENT, aligned_bytes

from .framework import Framework

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError('framework="tf" needs TensorFlow: pip install tensorflow') from error

__all__ = ["TensorFlow"]

#: numpy cannot export these: they are passed as unsigned integers and reinterpreted.
_BITCAST = {"bfloat16": np.uint16}
#: numpy cannot export these, and TensorFlow's bitcast does not know them: they are copied.
_COPIED = frozenset(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"))
_ODD = _COPIED.union(_BITCAST)
_NO_BUFFER = _ODD.union((BYTES,))

_EagerTensor = tf.__internal__.EagerTensor

_from_dlpack = tf.experimental.dlpack.from_dlpack


def _dtype(name: str) -> Any:
    return tf.string if name == BYTES else tf.dtypes.as_dtype(name)


def _dims(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor, None where its rank is not known.

    The shape of an eager tensor comes from a private attribute, where there is one: the public one
    takes 30 calls of functions.
    """
    known = getattr(value, "_shape_tuple", None)
    if known is not None:
        shape: tuple[int, ...] | None = known()
        return shape
    return None if value.shape.rank is None else tuple(value.shape)


class TensorFlow(Framework):
    """Tensors on the memory of a batch."""

    name = "tf"

    def numbers(self, array: np.ndarray, dtype: str, aligned: bool = False) -> Any:
        # TensorFlow aborts the process on unaligned memory, and may do so on empty memory.
        if dtype not in _ODD and array.size and (aligned or array.ctypes.data % ALIGNMENT == 0):
            return _from_dlpack(array.__dlpack__())
        carrier = _BITCAST.get(dtype)
        if carrier is None:
            return tf.convert_to_tensor(array)
        bits = self.numbers(array.view(carrier), np.dtype(carrier).name, aligned)
        return tf.bitcast(bits, _dtype(dtype))

    def strings(self, array: np.ndarray) -> Any:
        # A list of strings is faster than an array of them, but has no shape where it is empty.
        return tf.constant(array.tolist() if array.size else array, tf.string)

    def ragged(self, values: Any, offsets: Any) -> Any:
        return tf.RaggedTensor.from_row_splits(values, offsets, validate=False)

    def owns(self, value: Any) -> bool:
        return isinstance(value, (tf.Tensor, tf.Variable))

    def described(self, value: Any) -> tuple[str, tuple[int, ...]]:
        dtype = value.dtype.name
        return BYTES if dtype == "string" else dtype, _dims(value) or ()

    def state_in(self, value: Any, dtype: str) -> np.ndarray:
        value = self.kept(value)
        if dtype != BYTES and dtype not in _ODD and 0 not in (_dims(value) or ()):
            # A buffer avoids the copy that numpy() makes.
            return np.asarray(memoryview(value))
        carrier = _BITCAST.get(dtype)
        if carrier is None:
            return np.asarray(value.numpy(), object if dtype == BYTES else None)
        bits = self.state_in(tf.bitcast(value, tf.dtypes.as_dtype(carrier)), "uint16")
        return bits.view(numpy_dtype(dtype))

    def on_host(self, value: Any, dtype: str, shape: tuple[int, ...]) -> np.ndarray | None:
        if type(value) is not _EagerTensor or dtype in _NO_BUFFER or 0 in shape:
            return None
        array = np.asarray(memoryview(value))
        return array if array.shape == shape and array.dtype == numpy_dtype(dtype) else None

    def kept(self, value: Any) -> Any:
        if isinstance(value, tf.Variable):  # which the next step of training writes to
            value = value.read_value()
        if not hasattr(value, "numpy"):
            raise ValueError("it is symbolic, inside a tf.function, where only tensors are read")
        return value

    def merged(
        self, value: Any, source: np.ndarray | None, rows: np.ndarray, initial: np.ndarray
    ) -> Any:
        dtype = value.dtype.name
        plain = dtype not in _ODD
        # A tenth of the time that TensorFlow takes for small tensors.
        if plain and 0 not in (_dims(value) or ()) and "CPU" in value.device:
            kept = np.asarray(memoryview(value))
            shape = (len(kept) if source is None else len(source), *kept.shape[1:])
            size = math.prod(shape) * kept.itemsize
            merged = aligned_bytes(size).view(kept.dtype).reshape(shape)
            if source is None:
                np.copyto(merged, kept)
            else:
                np.take(kept, source, axis=0, out=merged, mode="clip")
            merged[rows] = initial
            return self.numbers(merged, dtype, aligned=True)
        with tf.device(value.device):
            base = value if source is None else tf.gather(value, source)
            fresh = self.numbers(initial, value.dtype.name)
            return tf.tensor_scatter_nd_update(base, rows[:, None], fresh)

    def moved(self, value: Any, device: Any, non_blocking: bool) -> Any:
        with tf.device(device):
            return tf.identity(value)
