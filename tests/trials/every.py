"""All trials by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import disk, events, flips, interleavings, kills, load, messages, power, terms
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
    "flips": Trial("10,000 byte flips: nothing wrong is believed", flips.run, "8 min"),
    "load": Trial("25,000 states a second: at most half a core, p99 50 ms", load.run, "1 min"),
    "messages": Trial("10,000,000 broken messages: none does harm", messages.run, "15 min"),
    "disk": Trial("a full disk 20 times: no ack lost, work goes on within 1 s", disk.run, "2 min"),
    "kills": Trial("1,000 times kill -9: nothing stays behind", kills.run, "40 min"),
    "terms": Trial("100 times SIGTERM: exit 0, nothing trained again", terms.run, "5 min"),
}
