"""User functions that workers import by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def fail_at_5900(example: dict[str, Any]) -> dict[str, Any]:
    if example["i"] == 5_900:
        raise ValueError("5900 fails")
    return example


def numbered(n: int, nbytes: int) -> Iterator[dict[str, Any]]:
    """Yield examples of a number i and bytes that are all i modulo 251."""
    for i in range(n):
        yield {"i": i, "x": np.full(nbytes, i % 251, np.uint8)}
