"""All trials by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import events, interleavings, power
from .frame import Report, Setup

__all__ = ["EVERY", "Trial"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A promise, and what shows it."""

    goal: str
    run: Callable[[Setup, Report], None]
    takes: str  # at full size, on 2 cores


EVERY = {
    "events": Trial("10,000,000 random events on the pure machines", events.run, "7 min"),
    "interleavings": Trial(
        "all interleavings of 2 trainers, 1 key and 3 segments", interleavings.run, "15 min"
    ),
    "power": Trial("200 power cuts: no ack lost, nothing torn", power.run, "5 min"),
}
