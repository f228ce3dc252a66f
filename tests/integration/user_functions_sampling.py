"""Functions of columns that buckets and samplers ask, importable by workers."""

from __future__ import annotations

from typing import Any

import numpy as np


def tens(columns: dict[str, Any]) -> Any:
    """Return the tens of the number."""
    return columns["i"] // 10


def thirds(columns: dict[str, Any]) -> Any:
    return columns["i"] % 3


def half(columns: dict[str, Any]) -> Any:
    return np.full(len(columns["i"]), 0.5)
