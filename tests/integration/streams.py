"""Arrays as values that can be compared, and the examples that show every dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from headrace_proto.dtypes import BYTES, DTYPES, numpy_dtype

NUMERIC = sorted(DTYPES - {BYTES})


def frozen_array(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Return dtype, shape and bytes of an array."""
    array = np.asarray(value)
    if array.dtype == object:
        return "bytes", array.shape, b"\xff\xfe".join(array.reshape(-1).tolist())
    return array.dtype.name, array.shape, array.tobytes()


def values_of(dtype: str, i: int) -> np.ndarray:
    """Return three values of a dtype for one example, extremes among them."""
    resolved = numpy_dtype(dtype)
    if dtype == "bool":
        return np.array([i % 2 == 0, i % 3 == 0, True])
    if resolved.kind in "iu":
        limits = np.iinfo(resolved)
        return np.array([limits.min, limits.max, i], resolved)
    if resolved.kind == "c":
        return np.array([1 + i * 1j, -i - 2j, complex(np.inf, i)], resolved)
    return np.array([i / 4, -i, float(ml_dtypes.finfo(resolved).max)]).astype(resolved)


def every_dtype(n: int) -> list[dict[str, Any]]:
    """Examples with every dtype, and with rows of unequal and of no length."""
    return [
        {
            **{dtype: values_of(dtype, i) for dtype in NUMERIC},
            "i": np.int64(i),
            "text": [b"", b"\0", b"\xff" * i, f"é{i}".encode()][i % 4],
            "texts": [f"{i}/{k}" for k in range(3)],
            "steps": np.arange(2 * (i % 4), dtype=np.float32).reshape(-1, 2) + i,
            "grid": np.full((i % 3, (i + 1) % 3), i, np.int16),
            "words": [f"w{k}" for k in range(i % 4)],
            "none": np.zeros((0, 3), np.float64),
        }
        for i in range(n)
    ]


def padded(examples: list[Mapping[str, Any]], name: str) -> np.ndarray:
    """Return the expected column of a batch."""
    rows = [np.asarray(example[name]) for example in examples]
    strings = any(row.dtype.kind in "SU" for row in rows) or isinstance(examples[0][name], bytes)
    if strings:
        rows = [np.asarray(example[name], object) for example in examples]
    shape = tuple(np.max([row.shape for row in rows], axis=0).astype(int).tolist())
    out = np.full((len(rows), *shape), b"", object) if strings else None
    if out is None:
        out = np.zeros((len(rows), *shape), rows[0].dtype)
    for i, row in enumerate(rows):
        out[(i, *(slice(0, d) for d in row.shape))] = row if row.ndim else row[()]
    if strings:
        flat = out.reshape(-1)
        for i, text in enumerate(flat.tolist()):
            flat[i] = text.encode() if isinstance(text, str) else text
    return out
