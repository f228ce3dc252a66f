"""How many batches lanes make of examples of known lengths, without the machine.

    2 lanes     0 │ a a a │ c │ e e           a lane that becomes free takes the next example:
                1 │ b b │ d d d │             the times of their ends are all that is kept

Ranks have the lanes of all of them, in the order of arrival too: a round takes the oldest ready
segments, so those that have begun go on in it.
"""

from __future__ import annotations

from heapq import heapreplace

import numpy as np

from .spans import Cut


def rounds(
    steps: np.ndarray, cut: Cut, openings: np.ndarray | None, lanes: int, small: bool, most: int = 1
) -> int | None:
    """Return the number of batches, or of rounds, that lanes make of examples in this order.

    ``small``: the last ones may have empty lanes.  ``most``: examples of a packed row.  None where
    rows would have more: only the machine knows in which lane the next one begins.
    """
    times = steps if cut.packed else cut.left(np.zeros_like(steps), steps, openings)
    ends = [0] * lanes
    for time in times.tolist():
        heapreplace(ends, ends[0] + time)
    unit = cut.unroll if cut.packed else 1
    if cut.packed and (most - 1) * int(steps.min(initial=unit)) < unit - 1:
        return None
    return -(-(max(ends) if small else ends[0]) // unit)
