"""Gathers and joins stretches of buffers, given by their starts and numbers of elements."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

#: Bytes per stretch from which on copying them one by one beats an index of every byte.
_LONG_STRETCH = 64


def join_buffers(
    buffers: list[np.ndarray], starts: list[np.ndarray], sizes: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return one buffer with the stretches of all, and their starts in it."""
    if all(buffer is buffers[0] for buffer in buffers):
        return buffers[0], np.concatenate(starts)
    moved = [_trimmed(*part) for part in zip(buffers, starts, sizes, strict=True)]
    shift = np.cumsum([0, *(buffer.size for buffer, _ in moved[:-1])])
    return (
        np.concatenate([buffer for buffer, _ in moved]),
        np.concatenate([begin + by for (_, begin), by in zip(moved, shift, strict=True)]),
    )


def _trimmed(
    buffer: np.ndarray, starts: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the used part of a buffer, and the starts in it: a column may use a small part."""
    total = int(sizes.sum())
    if not total:
        return buffer[:0], np.zeros_like(starts)
    used = sizes > 0
    low, high = int(starts[used].min()), int((starts + sizes)[used].max())
    if high - low <= 2 * total:
        return buffer[low:high], np.where(used, starts - low, 0)
    return gather(buffer, starts, sizes), np.cumsum(sizes) - sizes


def gather(buffer: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the stretches of a buffer, back to back."""
    size = int(sizes[0]) if len(sizes) else 0
    if size and np.logical_and.reduce(sizes == size):
        alike: np.ndarray = window(buffer, size)[starts].view(np.uint8)
        return alike
    if int(sizes.sum()) > _LONG_STRETCH * len(sizes):
        stretches = zip(starts.tolist(), sizes.tolist(), strict=True)
        return np.concatenate([buffer[start : start + size] for start, size in stretches])
    gathered: np.ndarray = buffer[ranges(starts, sizes)]
    return gathered


def window(buffer: np.ndarray, size: int) -> np.ndarray:
    """View every run of ``size`` bytes as one element, so that an index gathers whole runs."""
    return np.ndarray((max(buffer.size - size + 1, 0),), _run_of(size), buffer, 0, (1,))


@lru_cache(maxsize=256)
def _run_of(size: int) -> np.dtype:
    """Return the type of ``size`` bytes, which numpy would parse from its name at each call."""
    return np.dtype(f"V{size}")


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return ``starts[i], starts[i] + 1, …``, ``counts[i]`` numbers, for each i in turn."""
    before = np.cumsum(counts) - counts
    first: np.ndarray = np.repeat(starts - before, counts)
    return first + np.arange(len(first))
