"""Chance as a function of position: no generator, no state, the same numbers in every process.

    bits(seed, stream, epoch, counters) -> 64 random bits per counter

``seed`` is any Python int.  ``stream`` is one of the constants below and keeps the uses of one seed
apart.  ``counters`` (usually ordinals of examples) select numbers of that stream, so a number can
be computed in any order, any number of times, in any process.

Seed, stream and epoch are hashed to a key of 128 bits.  A number is its counter, spread over 64
bits and passed twice through the finaliser of splitmix64 (constants of Stafford's variant 13), with
one half of the key before each pass; the second half keeps streams from being shifted copies of
one another.  This is for sampling, not for secrets.  A test pins the numbers: changing one
changes every resumed run.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from operator import index
from typing import Final

import numpy as np

SHUFFLE: Final = 1  # the permutation of all examples
WINDOW: Final = 2  # the order within a window
STREAM_ORDER: Final = 3  # the order in which streams (files) are read
ACCEPT: Final = 4  # whether an example is kept
COPIES: Final = 5  # how many copies of an example are made
CLASSES: Final = 6  # how many rows of a batch each class supplies
KEYS: Final = 7  # the suffixes that make keys unique
MAPS: Final = 8  # the generators for user functions
PHASES: Final = 9  # how many steps the first segment of an example has

_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: neighbours land far apart
_PASS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_TO_53_BITS: Final = np.uint64(11)


def bits(seed: int, stream: int, epoch: int, counters: np.ndarray) -> np.ndarray:
    """Return 64 random bits (uint64) for each counter (any integers; -1 is uint64 2**64-1)."""
    if counters.dtype.kind not in "iu":
        raise TypeError(f"counters are integers, not {counters.dtype}")
    before, between = _key(index(seed), index(stream), index(epoch))
    x = counters.astype(np.uint64)
    scratch = np.empty_like(x)
    np.multiply(x, _SPREAD, out=x)
    np.add(x, before, out=x)
    _finalise(x, scratch)
    np.bitwise_xor(x, between, out=x)
    _finalise(x, scratch)
    return x


def uniform(seed: int, stream: int, epoch: int, counters: np.ndarray) -> np.ndarray:
    """Return a float64 in [0, 1) for each counter: the upper 53 of its bits."""
    numbers: np.ndarray = (bits(seed, stream, epoch, counters) >> _TO_53_BITS) * 2.0**-53
    return numbers


def derive(seed: int, *numbers: int) -> int:
    """Return a seed derived from another, for one of many uses (the window that begins at …)."""
    text = ".".join(f"{index(number):x}" for number in (seed, *numbers))
    return int.from_bytes(_digest("derive", text)[:8], "little")


def key(seed: int, stream: int, epoch: int) -> np.ndarray:
    """Return 128 bits (two uint64), the key of a counter-based generator."""
    return np.array(_key(index(seed), index(stream), index(epoch)), np.uint64)


@lru_cache(maxsize=256)
def _key(seed: int, stream: int, epoch: int) -> tuple[np.uint64, np.uint64]:
    words = np.frombuffer(_digest("key", f"{seed:x}.{stream:x}.{epoch:x}"), "<u8")
    return np.uint64(words[0]), np.uint64(words[1])


def _digest(use: str, text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16, person=use.encode()).digest()


def _finalise(x: np.ndarray, scratch: np.ndarray) -> None:
    """Apply the finaliser of splitmix64 in place."""
    for shift, factor in zip(_SHIFTS, _PASS, strict=False):
        np.right_shift(x, shift, out=scratch)
        np.bitwise_xor(x, scratch, out=x)
        np.multiply(x, factor, out=x)
    np.right_shift(x, _SHIFTS[2], out=scratch)
    np.bitwise_xor(x, scratch, out=x)
