"""Sizes to which rows are padded, so that few shapes of batches occur: compilers make one for each.

                                     longest of a batch     padded to
    pad_to_multiple=8                13                     16
    pad_to_boundary, bucket … 32     13                     32
    pad_to={"x": 20}                 13                     20, in every batch

A size of ``pad_to`` is the size of its column; else a boundary is reached first, and a multiple
after it.  The last bucket has no boundary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

#: Lengths beyond this are no lengths of arrays; rounding them up could exceed 64 bits.
_LONGEST = 2**62


@dataclass(frozen=True, slots=True)
class Padding:
    """The rules of one shape."""

    multiple: int = 1
    #: The upper boundary of each bucket but the last.
    boundaries: Sequence[int] = ()
    #: By column the size of each dimension that may vary; None: as the other rules give it.
    sizes: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    #: The size of the column whose length counts in a budget, if it has one.
    length: int | None = None

    def padded(self, lengths: np.ndarray, bucket: int) -> np.ndarray:
        """The length that a budget counts for rows of a bucket with these longest lengths."""
        if self.length is not None:
            return np.full_like(lengths, self.length)
        if bucket < len(self.boundaries):
            lengths = np.maximum(lengths, self.boundaries[bucket])
        if self.multiple == 1:
            return lengths
        rounded: np.ndarray = -(-np.minimum(lengths, _LONGEST) // self.multiple) * self.multiple
        return rounded

    def shape(
        self, name: str, dims: Sequence[int | None], largest: Sequence[int], bucket: int
    ) -> list[int]:
        """The padded sizes of dimensions that are ``largest`` in a batch; ``dims`` that are not
        None do not vary."""
        sizes = self.sizes.get(name, ())
        shape = []
        for i, (dim, size) in enumerate(zip(dims, largest, strict=True)):
            fixed = sizes[i] if i < len(sizes) else None
            if fixed is not None:
                shape.append(fixed)
                continue
            if not i and bucket < len(self.boundaries):
                size = max(size, self.boundaries[bucket])
            shape.append(size if dim is not None else -(-size // self.multiple) * self.multiple)
        return shape
