"""JAX: batches as arrays, without a copy where JAX allows it, and states on their device.

Several processes train as one: each has the batches of its rank, and all see one array.

    process 0   batch of rank 0  ──► global_arrays ──┐
    process 1   batch of rank 1  ──► global_arrays ──┴─►  rows of both  ──► jit ──► states of both
                save_state ◄── local_rows ◄─────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace_proto.layout import ALIGNMENT

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError('framework="jax" needs JAX: pip install jax') from error

from .batches.batch import Batch, RaggedBatch
from .framework import Framework, RaggedRows

__all__ = ["Jax", "global_arrays", "local_rows"]

#: Types that numpy exports by DLPack and JAX takes in.  (The kind of a dtype does not tell: that of
#: ml_dtypes' float8_e5m2 is "f".)
_EXPORTED = frozenset(
    (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
)

#: JAX without x64 has arrays of half as many bits in their place.
_WIDE = {"int64", "uint64", "float64", "complex128"}


class Jax(Framework):
    """Arrays on the memory of a batch (CPU), or copied to the default device."""

    name = "jax"

    def __init__(self) -> None:
        self._direct = jax.default_backend() == "cpu"

    def numbers(self, array: np.ndarray, dtype: str, aligned: bool = False) -> Any:
        # Without x64 JAX narrows 64-bit types, which takes a copy.
        exported = dtype in _EXPORTED and (array.itemsize < 8 or jax.config.jax_enable_x64)
        aligned = aligned or array.ctypes.data % ALIGNMENT == 0
        if self._direct and exported and array.size and aligned:
            return jnp.from_dlpack(array)
        return jnp.array(array)

    def strings(self, array: np.ndarray) -> Any:
        return array.tolist()

    def owns(self, value: Any) -> bool:
        return isinstance(value, jax.Array)

    def described(self, value: Any) -> tuple[str, tuple[int, ...]]:
        return str(value.dtype), tuple(value.shape)

    def narrowed(self, dtype: str) -> str:
        if jax.config.jax_enable_x64 or dtype not in _WIDE:
            return ""
        return (
            f".  JAX narrows {dtype}: declare a narrower state, or let JAX have 64 bits by "
            'jax.config.update("jax_enable_x64", True)'
        )

    def state_in(self, value: Any, dtype: str) -> np.ndarray:
        if isinstance(value, jax.core.Tracer):
            raise ValueError("it is traced by a jax transformation; save what the function returns")
        return np.asarray(value)

    def merged(
        self, value: Any, source: np.ndarray | None, rows: np.ndarray, initial: np.ndarray
    ) -> Any:
        return (value if source is None else value[source]).at[rows].set(initial)

    def moved(self, value: Any, device: Any, non_blocking: bool) -> Any:
        return jax.device_put(value, jax.devices(device)[0] if isinstance(device, str) else device)


def _leaves(batch: Batch) -> tuple[list[Any], tuple[str, ...]]:
    names = tuple(batch)
    return [batch[name] for name in names], names


# Transformations return a dict: only a server makes batches.
for _batch in (Batch, RaggedBatch):
    jax.tree_util.register_pytree_node(
        _batch, _leaves, lambda names, leaves: dict(zip(names, leaves, strict=True))
    )


def global_arrays(values: Any, sharding: Any) -> Any:
    """Join the arrays of all processes, row by row, to arrays that all of them compute with.

    ``values`` is a batch, or arrays in dicts, lists and tuples, of the same shapes in each process.
    ``sharding`` divides their first dimension.  Columns of strings are left out.  Connect with
    ``framework="numpy"``: the rows go to their devices from there.
    """
    if isinstance(values, Mapping):
        return {
            name: global_arrays(value, sharding)
            for name, value in values.items()
            if not _is_strings(value)
        }
    if isinstance(values, RaggedRows):
        raise ValueError(
            "global_arrays: a ragged column has other offsets in each process; declare "
            "dynamic_pad=True with pad_to=, or leave the column out"
        )
    return jax.tree.map(
        lambda value: jax.make_array_from_process_local_data(sharding, np.asarray(value)), values
    )


def _is_strings(value: Any) -> bool:
    if isinstance(value, list):
        return not value or isinstance(value[0], (bytes, list))
    return isinstance(value, np.ndarray) and value.dtype == object


def local_rows(array: Any) -> np.ndarray:
    """Return the rows of a global array that this process has, such as states to be saved.

    ValueError where the array is divided along another dimension than the first.
    """
    rows: dict[int, np.ndarray] = {}
    for shard in array.addressable_shards:
        if shard.data.shape[1:] != array.shape[1:]:
            raise ValueError(
                f"local_rows: {array.shape} is divided into {shard.data.shape}; shard it along its "
                "first dimension only"
            )
        rows[shard.index[0].start or 0] = np.asarray(shard.data)
    return np.concatenate([rows[start] for start in sorted(rows)])
