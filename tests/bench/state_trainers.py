"""W4 in headrace's hands: the loop of a trainer that carries two states.

    one in flight    take, train, save, take …            nothing is made ahead
    two in flight    the server sends the next batch, of other examples, while this one is trained

Training is a sum per state.  With ``to_ready`` what is timed is not the step: it is the time from
the save that commits a batch to the next one, of the same examples, in the trainer's hands.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

from . import states
from .processes import helper, last_line
from .steps import ENDED, LOADED, READY, Contestant, Steps, blind


def trainer(
    lanes: bool,
    *,
    prefetch: int = 0,
    tcp: bool = False,
    to_ready: bool = False,
    durability: str = "",
) -> Contestant:
    def steps(directory: Path) -> Steps:
        import tensorflow  # noqa: F401

        import headrace

        if tcp:
            blind()
        yield LOADED
        kind = durability or ("lanes" if lanes else "arrival")
        with helper("servers", f"headrace-w4-{kind}", str(directory)) as s:
            address = last_line(s)
            yield READY
            with headrace.connect(address, framework="tf", prefetch=prefetch) as feed:
                if feed.local is tcp:
                    raise AssertionError(f"shared memory: {feed.local}, where tcp is {tcp}")
                train = _Training()
                if to_ready:
                    yield from _to_ready(feed, train)
                for batch in feed:
                    train(batch)
                    yield 1
                yield ENDED

    return steps


class _Training:
    def __init__(self) -> None:
        self._add = states.additions()
        self._check = states.Check()

    def __call__(self, batch: Any) -> float:
        """Do one step; return the time when its last save began."""
        x, length, context = batch.sequences["x"], batch.length, batch.context["length"]
        before = {name: batch.state(name) for name in states.STATES}
        if self._check.wanted:
            self._check(batch.original_key, batch.sequence, length, context, x, before)
        after = {name: self._add[name](x=value) for name, value in before.items()}
        began = 0.0
        for name, value in after.items():
            began = perf_counter()
            batch.save_state(name, value)
        return began


def _to_ready(feed: Any, train: _Training) -> Steps:
    batch = next(feed)
    while True:
        began = train(batch)
        batch = next(feed)
        yield perf_counter() - began
