"""All trials by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import events
from .frame import Report, Setup

__all__ = ["EVERY", "Trial"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A promise, and what shows it."""

    goal: str
    run: Callable[[Setup, Report], None]
    takes: str  # at full size, on 2 cores


EVERY = {
    "events": Trial("10,000,000 random events on the pure machines", events.run, "6 min"),
}
