"""The feed of the checks' server: numbers in their order, so that missing ones show."""

from __future__ import annotations

import headrace_server as hs

ROWS = 1000


def feeds() -> hs.Pipeline:
    return hs.from_examples([{"x": i} for i in range(ROWS)]).batch(10)
