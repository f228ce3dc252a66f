"""Batches of segments as arguments of a ``tf.function``: TensorFlow's protocol of nested values.

    step(batch) ─► __tf_flatten__ ─► one tensor per column ─► __tf_unflatten__ ─► TracedBatch
                   (each call)       (placeholders in the trace)

So a function is traced once for all batches of one shape, and not once per batch.  TensorFlow is
loaded only when it calls these methods.
"""

from __future__ import annotations

import sys
from typing import Any


def is_tracing() -> bool:
    """Return whether TensorFlow is building a graph in this thread."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and not tf.executing_eagerly()


class Traceable:
    """The methods by which TensorFlow takes a batch apart and puts it together in a trace."""

    __slots__ = ()

    def __tf_flatten__(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the traits that all batches of the feed share, and the arrays of this batch."""
        from .traced import flattened

        return flattened(self)

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, components: tuple[Any, ...]) -> Any:
        """Return the batch that a traced function gets."""
        from .traced import TracedBatch

        return TracedBatch(metadata, components)
