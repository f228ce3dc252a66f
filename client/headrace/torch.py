"""PyTorch: batches as tensors without a copy, and states on their device.

A kept state is the tensor that was saved, detached: whoever writes into it afterwards changes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace_proto.dtypes import numpy_dtype

try:
    import torch
except ImportError as error:
    raise ImportError('framework="torch" needs PyTorch: pip install "headrace[torch]"') from error

__all__ = ["Torch"]

#: Types that numpy knows only by ml_dtypes: they come over as bits and are reinterpreted.
_VIEWED = {
    "bfloat16": np.int16,
    "float8_e4m3fn": np.uint8,
    "float8_e5m2": np.uint8,
    "float8_e4m3fnuz": np.uint8,
    "float8_e5m2fnuz": np.uint8,
}


class Torch:
    """Tensors on the memory of a batch."""

    name = "torch"

    def numbers(self, array: np.ndarray, dtype: str, aligned: bool = False) -> Any:
        carrier = _VIEWED.get(dtype)
        if carrier is None:
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(carrier)).view(getattr(torch, dtype))

    def strings(self, array: np.ndarray) -> Any:
        return array.tolist()

    def owns(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def described(self, value: Any) -> tuple[str, tuple[int, ...]]:
        return str(value.dtype).removeprefix("torch."), tuple(value.shape)

    def state_in(self, value: Any, dtype: str) -> np.ndarray:
        value = value.detach().cpu()
        carrier = _VIEWED.get(dtype)
        if carrier is None:
            array: np.ndarray = value.resolve_conj().resolve_neg().numpy()
            return array
        bits: np.ndarray = value.view(getattr(torch, np.dtype(carrier).name)).numpy()
        return bits.view(numpy_dtype(dtype))

    def kept(self, value: Any) -> Any:
        return value.detach()

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        return torch.zeros(shape, dtype=getattr(torch, dtype))

    def merged(
        self, value: Any, source: np.ndarray | None, rows: np.ndarray, initial: np.ndarray
    ) -> Any:
        device = value.device
        if source is None:
            merged = value.clone()
        else:
            merged = value.index_select(0, torch.from_numpy(source).to(device))
        fresh = self.numbers(initial, str(value.dtype).removeprefix("torch."))
        merged[torch.from_numpy(rows).to(device)] = fresh.to(device)
        return merged

    def moved(self, value: Any, device: Any, non_blocking: bool) -> Any:
        return value.to(device, non_blocking=non_blocking)

    def pinned(self, value: Any) -> Any:
        return value.pin_memory()
