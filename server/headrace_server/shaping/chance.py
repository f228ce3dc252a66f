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
from math import isqrt
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
MIXES: Final = 10  # from which source of a mix an example is
PASSES: Final = 11  # the keys of the examples of a source that a mix goes through again
BLOCKS: Final = 12  # which partition has a block, and the order of its blocks
BLOCK_ROWS: Final = 13  # the order within a block
ROUNDS: Final = 14  # the order of the rows of several blocks that are mixed
BATCHES: Final = 15  # the order of the buckets of some batches

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


#: Maximum n: the hash of a digit is scaled from 32 bits, so digits stay near 31 bits.
MAX_LENGTH: Final = 2**62
#: Maximum n for the table: 8 KiB, sorted in about 30 microseconds.
_TABLE_LENGTH: Final = 1024
#: Three rounds on each digit.  Measured over 12,000 seeds at n = 1,100: with four the examples at
#: neighbouring positions are still correlated (34 standard deviations), with five no longer.
_ROUNDS: Final = 6
#: Elements that go through the rounds at once: three arrays of this length stay in the L2 cache.
_BLOCK: Final = 16384
_FACTOR: Final = np.uint64(0x94D049BB133111EB)
_HALF: Final = np.uint64(32)


class Permutation:
    """The order of ``n`` examples for a seed and an epoch.

    It holds some keys, or a small table.

        position ─► (left, right) ─► left += f(right), right += f(left), … ─► example

    A Feistel network over pairs of digits: position = left * b + right, with left < a and right <
    b. Each round adds a keyed hash of one digit to the other, modulo the other's radix, which can
    be undone: so the whole is a bijection of 0 … a*b-1.  A result of n or more goes through again
    until it falls below ("cycle walking"), which makes it a bijection of 0 … n-1.

    Radices near the square root of n are taken rather than powers of two: a*b then exceeds n by
    less than a, and few numbers go through twice.  With powers of two up to three in four would.

    Small n takes a sorted table instead: all n! orders are equally likely there, which a Feistel
    network can not promise, and the table is no larger than a chunk.
    """

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        if not 0 <= n <= MAX_LENGTH:
            raise ValueError(f"a permutation of {n} elements: 0 … 2**62 can be had")
        self.n = n
        self._table: np.ndarray | None = None
        if n <= _TABLE_LENGTH:
            drawn = bits(seed, SHUFFLE, epoch, np.arange(n))
            self._table = np.argsort(drawn, kind="stable")
            return
        a = isqrt(n)
        b = -(-n // a)
        self._radices = (np.uint64(a), np.uint64(b))
        keys = bits(seed, SHUFFLE, epoch, np.arange(2 * _ROUNDS))
        # A factor must be odd, or it would lose bits of the digit.
        self._rounds = [
            (k | np.uint64(1), add) for k, add in zip(keys[::2], keys[1::2], strict=True)
        ]

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Return the example (int64) at each position (integers in 0 … n-1, in any order)."""
        if positions.dtype.kind not in "iu":
            raise TypeError(f"positions are integers, not {positions.dtype}")
        x = positions.astype(np.uint64).reshape(-1)
        # As uint64 a negative position is huge.
        if x.size and int(x.max()) >= self.n:
            raise ValueError(f"positions of a permutation of {self.n} lie in 0 … {self.n - 1}")
        if self._table is not None:
            return self._table[x.astype(np.intp)].reshape(positions.shape)
        for start in range(0, x.size, _BLOCK):
            part = x[start : start + _BLOCK]
            self._pass(part)
            beyond = np.flatnonzero(part >= np.uint64(self.n))
            while beyond.size:
                again = part[beyond]
                self._pass(again)
                part[beyond] = again
                beyond = beyond[again >= np.uint64(self.n)]
        return x.view(np.int64).reshape(positions.shape)

    def _pass(self, x: np.ndarray) -> None:
        """Pass numbers through all rounds once, in place."""
        a, b = self._radices
        left, scratch = x // b, np.empty_like(x)
        right = x
        np.multiply(left, b, out=scratch)
        np.subtract(x, scratch, out=right)
        for number, (factor, summand) in enumerate(self._rounds):
            source, target, radix = (left, right, b) if number % 2 else (right, left, a)
            np.multiply(source, factor, out=scratch)
            np.add(scratch, summand, out=scratch)
            # The low half of the product depends on few bits, the high half on all: fold it in,
            # multiply again and keep the high half, then scale 0 … 2**32-1 to 0 … radix-1.
            folded = scratch >> _HALF
            np.bitwise_xor(scratch, folded, out=scratch)
            np.multiply(scratch, _FACTOR, out=scratch)
            np.right_shift(scratch, _HALF, out=scratch)
            np.multiply(scratch, radix, out=scratch)
            np.right_shift(scratch, _HALF, out=scratch)
            np.add(target, scratch, out=target)
            # Modulo: below radix the difference wraps round to a huge number.
            np.subtract(target, radix, out=scratch)
            np.minimum(target, scratch, out=target)
        np.multiply(left, b, out=left)
        np.add(left, right, out=x)
