"""User functions that misbehave, importable by workers."""

from __future__ import annotations

import ctypes
from typing import Any


def die_at_500(example: dict[str, Any]) -> dict[str, Any]:
    """Crash the whole process, as a bug in a C extension does."""
    if example["i"] == 500:
        ctypes.string_at(0)
    return example
