"""Sums of counts by name: of the partitions of an owner, of all owners, of all lives of a worker.

added([{"a": 1}, {"a": 2, "b": [3, 4]}])  ─►  {"a": 3, "b": [3, 4]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def added(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add counts by name; lists are added element by element, and dicts like the whole."""
    total: dict[str, Any] = {}
    for some in counts:
        for name, n in some.items():
            total[name] = _sum(total.get(name), n)
    return total


def _sum(one: Any, other: Any) -> Any:
    if not one:
        return other
    if isinstance(other, Mapping):
        return added([one, other])
    if isinstance(other, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    return one + other
