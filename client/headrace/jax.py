"""JAX: batches as arrays, without a copy where JAX allows it, and states on their device."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace_proto.layout import ALIGNMENT

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError('framework="jax" needs JAX: pip install "headrace[jax]"') from error

from .batch import Batch
from .framework import no_pinned_memory

__all__ = ["Jax"]

#: Types that numpy exports by DLPack and JAX takes in.  (The kind of a dtype does not tell: that of
#: ml_dtypes' float8_e5m2 is "f".)
_EXPORTED = frozenset(
    f"{kind}{bits}"
    for kind, sizes in (
        ("int", (8, 16, 32, 64)),
        ("uint", (8, 16, 32, 64)),
        ("float", (16, 32, 64)),
    )
    for bits in sizes
)


class Jax:
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

    def state_in(self, value: Any, dtype: str) -> np.ndarray:
        if isinstance(value, jax.core.Tracer):
            raise ValueError("it is traced by a jax transformation; save what the function returns")
        return np.asarray(value)

    def kept(self, value: Any) -> Any:
        return value

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        return jnp.zeros(shape, dtype)

    def merged(
        self, value: Any, source: np.ndarray | None, rows: np.ndarray, initial: np.ndarray
    ) -> Any:
        return (value if source is None else value[source]).at[rows].set(initial)

    def moved(self, value: Any, device: Any, non_blocking: bool) -> Any:
        return jax.device_put(value, jax.devices(device)[0] if isinstance(device, str) else device)

    def pinned(self, value: Any) -> Any:
        raise no_pinned_memory(self.name)


def _leaves(batch: Batch) -> tuple[list[Any], tuple[str, ...]]:
    names = tuple(batch)
    return [batch[name] for name in names], names


# Transformations return a dict: only a server makes batches.
jax.tree_util.register_pytree_node(
    Batch, _leaves, lambda names, leaves: dict(zip(names, leaves, strict=True))
)
