"""A trainer that does nothing but take: ``python -m tests.scale.trainer ADDRESS BOARD SLOT HOW``.

    next batch ─► all its columns ─► its line of the board
             └──► held ─► as many later: its states are saved ─┘

It ends when the feed does, or when the board says so.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import Any

import headrace

from .board import Board

__all__ = ["main"]


def _step(batch: Any) -> int:
    """A batch is taken whole; the number of its rows."""
    return [len(batch[name]) for name in batch][-1]


def _save(batch: Any) -> int:
    batch.save_state("s", batch.state("s") + 1)
    return len(batch.key)


def main() -> None:
    address, board_file, slot, how = sys.argv[1:]
    told = json.loads(how)
    board, place = Board(board_file), int(slot)
    hold = told.pop("hold", None)
    held: deque[Any] = deque()
    with headrace.connect(address, timeout=600, **told) as feed:
        board.here(place)
        board.wait_for_start()
        for batch in feed:
            if hold is None:
                board.took(place, _step(batch))
            else:
                held.append(batch)
                if len(held) >= hold:
                    board.took(place, _save(held.popleft()))
            if board.over:
                break


if __name__ == "__main__":
    main()
