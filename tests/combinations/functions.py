"""Functions of the declarations, which workers import."""

from __future__ import annotations

from typing import Any


def other_key(example: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Give each copy of an example a key of its own."""
    return {**example, "key": example["key"] + b"-%d" % rng.integers(1 << 30)}
