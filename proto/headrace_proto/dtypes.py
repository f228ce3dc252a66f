"""The element types that may cross the wire, by name.

All others (objects, records, dates, big-endian numbers) are refused: they could be sent only by
pickling or by losing their meaning.  ``bytes`` stands for byte strings of any length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

BYTES: Final = "bytes"

_NATIVE = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
#: Types that numpy knows only where the package ml_dtypes is installed.
_ML = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_ALIASES = {
    "string": BYTES,
    "str": BYTES,
    "float": "float32",
    "double": "float64",
    "half": "float16",
}

DTYPES: Final[frozenset[str]] = frozenset((*_NATIVE, *_ML, BYTES))

#: numpy dtypes by wire name; those of ml_dtypes once a column of such a dtype was checked.
NUMPY_OF: dict[str, np.dtype] = {name: np.dtype(name) for name in _NATIVE}


def canonical(dtype: object) -> str:
    """Return the wire name of a dtype, given by name or as numpy dtype; TypeError for others."""
    if isinstance(dtype, str):
        name = _ALIASES.get(dtype, dtype)
    elif dtype is bytes or dtype is str:
        name = BYTES
    else:
        name = _name_of_numpy(dtype)
    if name not in DTYPES:
        raise TypeError(f"dtype {dtype!r:.80} is not one of {', '.join(sorted(DTYPES))}")
    return name


def _name_of_numpy(dtype: object) -> str:
    if dtype is None:  # which numpy reads as float64
        return "None"
    try:
        resolved = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return repr(dtype)
    return name_of(resolved) if resolved.isnative else str(resolved)


@lru_cache(maxsize=256)  # numpy composes the name anew each time, in Python
def name_of(dtype: np.dtype) -> str:
    """Return the wire name of a numpy dtype, or its numpy name when it has none.

    The byte order is not part of the name: the code that writes an array to a block converts it.
    """
    if dtype.kind in "SUO":
        return BYTES
    return str(dtype.name)


def numpy_dtype(name: str) -> np.dtype:
    """Return the numpy dtype of a wire name other than ``bytes``."""
    known = NUMPY_OF.get(name)
    if known is not None:
        return known
    if name not in _ML:
        raise TypeError(f"dtype {name!r} is not one of {', '.join(sorted(DTYPES - {BYTES}))}")
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            f"dtype {name!r} needs the package ml_dtypes: pip install ml_dtypes"
        ) from None
    resolved: np.dtype = np.dtype(getattr(ml_dtypes, name))
    NUMPY_OF[name] = resolved
    return resolved
