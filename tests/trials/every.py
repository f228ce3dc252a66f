"""All trials by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import (
    connections,
    disk,
    endless,
    flips,
    flood,
    held,
    hostile,
    kills,
    load,
    messages,
    power,
    recovery,
    shares,
    soak,
    suspend,
    terms,
)
from .frame import Report, Setup

__all__ = ["EVERY", "Trial"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A promise, and the trial that shows it."""

    goal: str
    run: Callable[[Setup, Report], None]
    takes: str  # at full size, on 2 cores


EVERY = {
    "power": Trial("200 power cuts: no ack lost, nothing torn", power.run, "8 min"),
    "connections": Trial(
        "1,000,000 hostile connections: nothing is kept of them", connections.run, "5 min"
    ),
    "held": Trial(
        "8 times 10,000 connections are held: newcomers get in within 2 s", held.run, "1 min"
    ),
    "endless": Trial("a message without end: a limit ends it, no ack lost", endless.run, "1 min"),
    "soak": Trial("5 minutes at full speed: nothing grows", soak.run, "5 min"),
    "disk": Trial("a full disk 20 times: no ack lost, on within 1 s", disk.run, "1 min"),
    "kills": Trial("1,000 times kill -9: nothing stays behind", kills.run, "60 min"),
    "terms": Trial("100 times SIGTERM: exit 0, nothing trained again", terms.run, "6 min"),
    "suspend": Trial("40 s of suspension, 18 ways: no server is given up", suspend.run, "5 min"),
    "flips": Trial("10,000 byte flips: nothing wrong is believed", flips.run, "2 min"),
    "load": Trial("25,000 states a second: at most half a core, p99 50 ms", load.run, "1 min"),
    "recovery": Trial(
        "200 deaths under flushes, 20 old states put back, 20 journals removed: each is told",
        recovery.run,
        "15 min",
    ),
    "messages": Trial(
        "200,000 messages of all kinds with any fields: other trainers get all they should",
        messages.run,
        "5 min",
    ),
    "hostile": Trial(
        "trainers that were let in and do their worst: others get their answers within 1 s",
        hostile.run,
        "3 min",
    ),
    "shares": Trial(
        "4 servers and 8 trainers on hosts of their own, 300 faults: nothing lost or twice",
        shares.run,
        "15 min",
    ),
    "flood": Trial("200 trainers that do not read: memory is bounded", flood.run, "1 min"),
}
