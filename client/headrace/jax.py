"""JAX: batches as arrays, without a copy where JAX allows it."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace_proto.layout import ALIGNMENT

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError('framework="jax" needs JAX: pip install "headrace[jax]"') from error

__all__ = ["Jax"]


class Jax:
    """Arrays on the memory of a batch (CPU), or copied to the default device."""

    name = "jax"

    def __init__(self) -> None:
        self._direct = jax.default_backend() == "cpu"

    def numbers(self, array: np.ndarray, dtype: str) -> Any:
        # Without x64 JAX narrows 64-bit types, and it takes in others only by a copy.
        wide = (
            array.dtype.itemsize == 8
            and array.dtype.kind in "iuf"
            and not jax.config.jax_enable_x64
        )
        plain = array.dtype.kind in "iuf" and array.dtype.isnative and not wide
        if self._direct and plain and array.size and array.ctypes.data % ALIGNMENT == 0:
            return jnp.from_dlpack(array)
        return jnp.array(array)

    def strings(self, array: np.ndarray) -> Any:
        return array.tolist()
