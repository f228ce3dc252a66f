"""How a framework turns numpy arrays into its own tensors; numpy takes them as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace_proto.dtypes import NUMPY_OF, name_of


class RaggedRows(NamedTuple):
    """Rows of unequal length: row i is ``values[offsets[i] : offsets[i + 1]]``."""

    values: Any  # [sum of lengths, …]
    offsets: Any  # int64 [rows + 1]


class Framework:
    """How arrays become tensors of a framework, and back: here numpy, which the others override."""

    name = "numpy"

    def numbers(self, array: np.ndarray, dtype: str, aligned: bool = False) -> Any:
        """Return a tensor on the memory of a writable array, copied where that is not aligned.

        ``aligned``: the caller knows that it is, as columns are in their block.
        """
        return array

    def strings(self, array: np.ndarray) -> Any:
        """Return the framework's form of an object array of ``bytes``."""
        return array

    def ragged(self, values: Any, offsets: Any) -> Any:
        """Return the framework's form of rows of unequal length, on the memory of both."""
        return RaggedRows(values, offsets)

    def owns(self, value: Any) -> bool:
        """Return whether a value is a tensor of this framework."""
        return isinstance(value, (np.ndarray, np.generic))

    def described(self, value: Any) -> tuple[str, tuple[int, ...]]:
        """Return the wire dtype and the shape of a tensor of this framework, on any device."""
        return name_of(value.dtype), value.shape

    def narrowed(self, dtype: str) -> str:
        """Return the remedy, for an error text, where tensors can not have this dtype; else ""."""
        return ""

    def state_in(self, value: Any, dtype: str) -> np.ndarray:
        """Return a tensor of this framework as a numpy array, copied only from another device."""
        return np.asarray(value)

    def on_host(self, value: Any, dtype: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return numbers of this dtype and shape as an array without a copy.

        None where a closer look is needed, or a copy.
        """
        if type(value) is np.ndarray and value.shape == shape:
            return value if value.dtype is NUMPY_OF.get(dtype) else None
        return None

    def kept(self, value: Any) -> Any:
        """Return a tensor with its present value, on its device, for later reads."""
        return value

    def merged(
        self, value: Any, source: np.ndarray | None, rows: np.ndarray, initial: np.ndarray
    ) -> Any:
        """Return rows ``source`` of an own tensor (None: all), with ``rows`` then set to
        ``initial``, as another tensor on its device."""
        merged = np.array(value) if source is None else value[source]
        merged[rows] = initial
        return merged

    def moved(self, value: Any, device: Any, non_blocking: bool) -> Any:
        """Return a tensor on a device; the same object where it is there already."""
        if str(device) != "cpu":
            raise ValueError(
                f"to({str(device)!r}): arrays of numpy are on the CPU; connect with "
                'framework="torch", "tf" or "jax" to move batches'
            )
        return value

    def pinned(self, value: Any) -> Any:
        """Return a tensor in pinned memory.  TypeError where the framework has none."""
        raise TypeError(f'pin_memory() is for framework="torch"; this feed has {self.name!r}')


NUMPY = Framework()
