"""W4: W2's sequences in segments of 20 steps, with two states that every step moves on.

    take 32 rows ─► x [32, 20, 64], length, context ─► states a, b [32, 256] ─► a + 1, b + 2 ─► save
                                                           ▲                                     │
                                                           └──────── next segments ◄─────────────┘

Both states begin with zeros, so what a row holds follows from its key and its place in the example:
any batch of any contestant can be checked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import sequences

BATCH = 32
UNROLL = 20
STATE_WIDTH = 256
#: By how much a step of training moves a state on.
STATES = {"a": 1.0, "b": 2.0}
CAPACITY = 1000
_LENGTHS = range(sequences.SHORTEST, sequences.LONGEST + 1)
#: Average bytes of a batch's segments: steps, and both states.
NBYTES = (
    BATCH
    * 4
    * (
        sequences.WIDTH * sum(_LENGTHS) / sum(-(-t // UNROLL) for t in _LENGTHS)
        + STATE_WIDTH * len(STATES)
    )
)
#: Batches that are checked before anything is timed: some 10 examples of a row.
CHECKED = 120


def additions() -> dict[str, Callable[..., Any]]:
    """Return the function that trains each state, called with ``x``: the leanest addition there is.

    The benchmark compares feeding.  The Barrier adds within its graph; an eager ``tensor + 1.0`` of
    TensorFlow takes 15 µs, and ``raw_ops.AddV2`` of a constant 6.
    """
    import tensorflow as tf

    return {name: partial(tf.raw_ops.AddV2, y=tf.constant(by)) for name, by in STATES.items()}


def pipeline(directory: Path, lanes: bool, capacity: int = CAPACITY) -> Any:
    """headrace's: in order of arrival with states on the server, or in lanes with the trainer."""
    import headrace_server as hs

    features = {
        "key": hs.scalar("bytes"),
        "length": hs.scalar("int64"),
        "x": hs.sequence("float32", (sequences.WIDTH,)),
    }
    source = hs.read_tfrecord(sequences.tfrecord_file(directory), features).repeat()
    return source.batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=["length"],
        initial_states={name: hs.zeros((STATE_WIDTH,), "float32") for name in STATES},
        num_unroll=UNROLL,
        batch_size=BATCH,
        capacity=capacity,
        order="lanes" if lanes else "arrival",
        state_placement="trainer" if lanes else "server",
    )


class Check:
    """Compares batches with the file, and states with the saved ones."""

    def __init__(self) -> None:
        self._numbers, self._steps = sequences.pool(), sequences.lengths()
        self._left = CHECKED

    @property
    def wanted(self) -> bool:
        return self._left > 0

    def __call__(
        self, keys: Any, sequence: Any, length: Any, context: Any, x: Any, states: dict[str, Any]
    ) -> None:
        """``keys`` are the examples' own; ``sequence`` says which segments these are."""
        self._left -= 1
        rows = [int(bytes(key)[1:]) for key in np.asarray(keys).tolist()]
        if len(rows) != BATCH or len(set(rows)) != BATCH:
            raise AssertionError(f"a batch is not of {BATCH} examples: {rows}")
        at = np.asarray(sequence).tolist()
        total = self._steps[rows]
        steps = np.minimum(total - np.array(at) * UNROLL, UNROLL)
        expected = np.zeros((BATCH, UNROLL, sequences.WIDTH), np.float32)
        for place, (row, i, t) in enumerate(zip(rows, at, steps.tolist(), strict=True)):
            expected[place, :t] = self._numbers[row + i * UNROLL :][:t]
        if not np.array_equal(np.asarray(length), steps):
            raise AssertionError("the lengths of a batch are not those of its segments")
        if not np.array_equal(np.asarray(context), total):
            raise AssertionError("the context of a batch is not that of its examples")
        if not np.array_equal(np.asarray(x), expected):
            raise AssertionError("the steps of a batch are not those of its segments, padded")
        for name, value in states.items():
            carried = np.repeat(np.array([at], np.float32).T * STATES[name], STATE_WIDTH, 1)
            if not np.array_equal(np.asarray(value), carried):
                raise AssertionError(f"state {name!r} is not what was saved a segment before")
