"""Checksums of files that are read again and again, possibly years after they were written.

    file    [ stretch 0 | stretch 1 | … ]   a CRC-32C of each
    JSON    {…, "sum": CRC-32C of the rest}

A fault is a ValueError that names the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from .extras import require

crc32c = require("google_crc32c", "server", "cache(directory)")

_SUM: Final = "sum"


def bytes_of(path: Path) -> np.ndarray:
    """Return the bytes of a file, mapped."""
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)


def sums_of(data: np.ndarray, bounds: Sequence[int] = ()) -> list[int]:
    """Return the checksums of the stretches between ``bounds``; without bounds, of all bytes."""
    stretches = pairwise(bounds or (0, len(data)))
    return [int(crc32c.value(data[first:end])) for first, end in stretches]


def verify(
    name: str, data: np.ndarray, expected: Sequence[int], bounds: Sequence[int] = ()
) -> None:
    """Check stretches of a file of this name."""
    if sums_of(data, bounds) != list(expected):
        where = f"{name} from {bounds[0]} to {bounds[-1]}" if bounds else name
        raise ValueError(f"the bytes of {where} are not those that were written")


def sealed(plain: Mapping[str, Any]) -> str:
    """Return a JSON object with a checksum of it."""
    return json.dumps({**plain, _SUM: _of_text(plain)})


def unsealed(path: Path) -> dict[str, Any]:
    """Read a file that holds such an object."""
    try:
        plain: dict[str, Any] = json.loads(path.read_text())
        sound = plain.pop(_SUM) == _of_text(plain)
    except (ValueError, KeyError, AttributeError, TypeError):
        sound = False
    if not sound:
        raise ValueError(f"the values in {path.name} are not those that were written")
    return plain


def _of_text(plain: Mapping[str, Any]) -> int:
    return int(crc32c.value(json.dumps(plain).encode()))
