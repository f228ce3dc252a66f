"""PyTorch: batches as tensors without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

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

    def numbers(self, array: np.ndarray, dtype: str) -> Any:
        carrier = _VIEWED.get(dtype)
        if carrier is None:
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(carrier)).view(getattr(torch, dtype))

    def strings(self, array: np.ndarray) -> Any:
        return array.tolist()
