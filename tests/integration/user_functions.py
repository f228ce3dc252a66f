"""User functions that workers import by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def triple(example: dict[str, Any]) -> dict[str, Any]:
    """Add a column."""
    return {**example, "triple": example["i"] * 3}


def is_even(example: dict[str, Any]) -> bool:
    return bool(example["i"] % 2 == 0)


def fail_at_59000(example: dict[str, Any]) -> dict[str, Any]:
    if example["i"] == 59_000:
        raise ValueError("59000 fails")
    return example


def fail_at_20(example: dict[str, Any]) -> dict[str, Any]:
    if example["i"] == 20:
        raise ValueError("the twentieth is one too many")
    return example


def numbered(n: int, nbytes: int) -> Iterator[dict[str, Any]]:
    """Yield examples of a number i and bytes that are all i modulo 251."""
    for i in range(n):
        yield {"i": i, "x": np.full(nbytes, i % 251, np.uint8)}


def sequence_of(n: int) -> list[dict[str, Any]]:
    return [{"i": i} for i in range(n)]


def images(n: int) -> Iterator[dict[str, Any]]:
    """Images of 150 kB, no two alike."""
    base = np.arange(224 * 224 * 3, dtype=np.uint32)
    for i in range(n):
        yield {"image": (base * (2 * i + 1) >> 3).astype(np.uint8).reshape(224, 224, 3), "i": i}


def pieces(example: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield up to four pieces of an example."""
    for k in range(int(example["i"]) % 5):
        yield {"i": example["i"], "k": k, "v": np.full(k, example["i"])}


def shaken(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**example, "u": rng.random()}


def all_shaken(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**columns, "w": rng.random(len(columns["i"]))}


def fail_at_21(example: dict[str, Any]) -> dict[str, Any]:
    if example["i"] == 21:
        raise ValueError("the piece of one too many")
    return example


def tables(n: int) -> Iterator[dict[str, Any]]:
    for k in range(n):
        i = np.arange(10 * k, 10 * k + 10)
        yield {"i": i, "x": np.outer(i, [1.0, 2.0])}


def slowly(example: dict[str, Any]) -> dict[str, Any]:
    """Take so long that its worker is slower than any trainer."""
    for _ in range(100):
        np.sort(np.arange(1000)[::-1])
    return example
