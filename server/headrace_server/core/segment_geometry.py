"""The geometry of segments: which steps of its example each segment has.

    stride 3, num_unroll 4, left 2, right 1          example of 9 steps:  0 1 2 3 4 5 6 7 8

    segment 0      . .│0 1 2 3│4                     │ … │ are its own steps, before and after
    segment 1        1 2│3 4 5 6│7                   them is context; "." is no step, and zero
    segment 2            4 5│6 7 8 .│.    last

Segment k begins at step k·stride, with the state before that step.  The last segment is the first
whose ``num_unroll`` steps reach the end.  With a phase the first segment of an example has ``d``
steps of its own, 1 … stride, and segment k ≥ 1 begins at step d + (k-1)·stride.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Geometry:
    """The declared cut.  ``firsts`` are the steps of first segments, None without a phase."""

    num_unroll: int
    stride: int
    left: int = 0
    right: int = 0
    width: int = field(init=False)  # steps that a batch has room for, context included

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", self.left + self.num_unroll + self.right)

    def counts(self, steps: np.ndarray, firsts: np.ndarray | None = None) -> np.ndarray:
        """Return the number of segments of examples with these steps, at least one each."""
        if firsts is None:
            if self.stride == self.num_unroll:
                whole: np.ndarray = -(-steps // self.stride)
                return whole
            counts: np.ndarray = 1 - np.minimum(self.num_unroll - steps, 0) // self.stride
            return counts
        after = steps - firsts
        rest = 1 - np.minimum(self.num_unroll - after, 0) // self.stride
        return np.where(after > 0, 1 + rest, 1)

    def padded(self, steps: np.ndarray) -> np.ndarray:
        """Return the number of steps up to the end of the last segment, without a phase."""
        last: np.ndarray = (self.counts(steps) - 1) * self.stride + self.num_unroll
        return last

    def begins(self, segments: np.ndarray, firsts: np.ndarray | None = None) -> np.ndarray:
        """Return the first own step of segments.

        ``firsts``: by segment, the number of steps of its example's first segment.
        """
        begins = segments * self.stride
        if firsts is None:
            return begins
        shifted: np.ndarray = np.maximum(begins - (self.stride - firsts), 0)
        return shifted

    def sizes(self, segments: np.ndarray, firsts: np.ndarray | None = None) -> np.ndarray:
        """Return the number of own steps of segments that the example has."""
        whole = np.full_like(segments, self.num_unroll)
        return whole if firsts is None else np.where(segments == 0, firsts, whole)

    def parts(self, begin: int, size: int) -> list[tuple[int, int, int]]:
        """Return first step, end, and room in steps of each part of a segment in the batch.

        The context before the segment is in one part with its own steps.  Steps below 0 do not
        exist.
        """
        own = (begin - self.left, begin + size, self.left + self.num_unroll)
        after = begin + size
        return [own, (after, after + self.right, self.right)] if self.right else [own]

    def left_lengths(self, totals: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Return the number of real steps of the context before segments."""
        first = np.maximum(begins - self.left, 0)
        lengths: np.ndarray = np.maximum(np.minimum(begins, totals) - first, 0)
        return lengths

    def right_lengths(
        self, totals: np.ndarray, begins: np.ndarray, sizes: np.ndarray | int
    ) -> np.ndarray:
        """Return the number of real steps of the context after segments."""
        lengths: np.ndarray = np.minimum(np.maximum(totals - begins - sizes, 0), self.right)
        return lengths
