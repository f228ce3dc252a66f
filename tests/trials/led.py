"""A trainer that carries out commands from its standard input, and prints the batches that it gets.

    python -m tests.trials.led TIMEOUT_S        one order and one answer a line, as JSON

    {"join": ADDRESS, option: …}   ["joined"]
    {"take": 20}                   [[partition, number, cells, states before], …]; null: all
    {"snapshot": true}             its token
    {"leave": true}                ["left"]

A state that it saves is a function of the segment and the state before, so each is known beforehand
(``state_before``).
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import headrace
from tests.chaos.feeds import Mode, cells_of
from tests.chaos.ledger import chained

__all__ = ["state_before"]


@functools.cache
def state_before(key: str, number: int) -> Sequence[int]:
    """The state in which a segment begins."""
    return chained(state_before(key, number - 1), [key, number - 1], 0) if number else [0, 0]


def taken(feed: Any, most: int | None) -> list[Any]:
    """So many batches of a feed, all of them committed."""
    found: list[Any] = []
    while most is None or len(found) < most:
        batch = next(feed, None)
        if batch is None:
            break
        states = hasattr(batch, "save_state")
        cells = cells_of(Mode(lambda pipeline: pipeline, states=states), batch)
        before = batch.state("chain").tolist() if states else []
        real = batch.valid if states else [True] * len(cells)  # ranks get rows that only pad
        rows = [row for row in range(len(cells)) if real[row]]
        shown = [[cells[row] for row in rows], [before[row] for row in rows if states]]
        found.append([batch.partition, batch.number, *shown])
        if states:
            after = [chained(s, cell, 0) for s, cell in zip(before, cells, strict=True)]
            batch.save_state("chain", np.array(after, np.int64))
    feed.commit()
    return found


def main() -> None:
    timeout_s = float(sys.argv[1])
    feed: Any = None
    for line in sys.stdin:
        order = json.loads(line)
        if "join" in order:
            feed = headrace.connect(order.pop("join"), timeout=timeout_s, **order)
            answer: Any = ["joined"]
        elif "take" in order:
            answer = taken(feed, order["take"])
        elif "snapshot" in order:
            answer = feed.snapshot()
        else:
            feed.close()
            answer = ["left"]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
