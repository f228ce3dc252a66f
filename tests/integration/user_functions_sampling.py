"""Functions of columns that buckets and samplers ask, importable by workers."""

from __future__ import annotations

from typing import Any

import numpy as np


def tens(columns: dict[str, Any]) -> Any:
    """Return the tens of the number."""
    return columns["i"] // 10


def thirds(columns: dict[str, Any]) -> Any:
    return columns["i"] % 3


def is_odd(columns: dict[str, Any]) -> Any:
    return columns["i"] % 2 == 1


def half(columns: dict[str, Any]) -> Any:
    return np.full(len(columns["i"]), 0.5)


def not_multiple_of_5(columns: dict[str, Any]) -> Any:
    return columns["i"] % 5 != 0


def negated(columns: dict[str, Any]) -> dict[str, Any]:
    """Add a column."""
    return {**columns, "minus": -columns["i"]}


def all_in_bucket_0(example):
    return {**example, "b": 0}
