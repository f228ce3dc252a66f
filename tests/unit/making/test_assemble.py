"""A batch equals numpy's stacked and padded rows, to the last byte of a reused block."""

from __future__ import annotations
