"""Sizes to which rows are padded, so that few shapes of batches occur: compilers make one for each.

                                     longest of a batch     padded to
    pad_to_multiple=8                13                     16
    pad_to_boundary, bucket … 32     13                     32
    pad_to={"x": 20}                 13                     20, in every batch

A size of ``pad_to`` is the size of its column.  Otherwise a size is rounded up to a boundary, then
to a multiple.  The last bucket has no boundary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

#: Maximum length of an array; rounding up a larger number could exceed 64 bits.
_LONGEST = 2**62


@dataclass(frozen=True, slots=True)
class Padding:
    """The rules of one shape."""

    multiple: int = 1
    #: The upper boundary of each bucket but the last.
    boundaries: Sequence[int] = ()
    #: By column: size of each dimension that varies; None: by the other rules.
    sizes: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    #: The fixed size of the column whose length counts in a budget, if any.
    length: int | None = None
    pads: bool = True  # False without any rule

    def padded(self, lengths: np.ndarray, bucket: int) -> np.ndarray:
        """Return the padded length of a bucket's rows with these longest lengths, for a budget."""
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
        """Return the padded sizes of dimensions that are ``largest`` in a batch.

        ``dims`` that are not None do not vary.
        """
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


NO_PADDING: Final = Padding(pads=False)
