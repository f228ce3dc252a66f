"""All trials by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.scale import crowd, held, hosts
from tests.scale.resting import resting

from . import connections, endless, faults, hostile, live, messages, power, soak
from .frame import Report, Setup

__all__ = ["EVERY", "Trial"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A promise, and the trial that shows it."""

    goal: str
    run: Callable[[Setup, Report], None]
    takes: str  # at full size, on 2 cores
    short: float  # the part of its full size that takes some seconds
    root: bool = False  # whether it mounts file systems, or makes groups of processes


EVERY = {
    "faults": Trial(
        "all kinds of feeds under random faults: nothing lost or twice",
        faults.faults,
        "2 min",
        0.1,
    ),
    "shares": Trial(
        "4 servers and 8 trainers on hosts of their own, 300 faults: nothing lost or twice",
        faults.shares,
        "15 min",
        0.01,
        root=True,
    ),
    "live": Trial(
        "a log whose producers, workers and servers die: no durable step is lost or twice",
        live.run,
        "11 min",
        0.01,
    ),
    "power": Trial("200 power cuts: no ack lost, nothing torn", power.run, "8 min", 0.01, True),
    "soak": Trial("5 minutes at full speed: nothing grows", soak.run, "5 min", 0.01),
    "endless": Trial(
        "a message without end: a limit ends it, no ack lost", endless.run, "1 min", 0.2, True
    ),
    "connections": Trial(
        "1,000,000 hostile connections: nothing is kept of them", connections.run, "5 min", 0.0003
    ),
    "messages": Trial(
        "200,000 messages of all kinds with any fields: other trainers get all they should",
        messages.run,
        "5 min",
        0.01,
    ),
    "hostile": Trial(
        "trainers that were let in and do their worst: others get their answers within 1 s",
        hostile.run,
        "3 min",
        0.05,
    ),
    # How cost grows
    "workers": Trial("1 and 2 workers that are in the way", crowd.workers, "30 s", 0.1),
    "servers": Trial(
        "1, 2 and 4 servers with a fifth of a core each", hosts.servers, "1 min", 0.1, True
    ),
    "owners": Trial("a trainer of 1 to 16 servers", hosts.owners, "1 min", 0.1),
    "sequences": Trial("1 to 100,000 sequences with states in flight", held.arrival, "2 min", 0.1),
    "lanes": Trial("10 to 10,000 lanes", held.lanes, "1 min", 0.1),
    "resting": Trial("100,000 open sequences of a log that rest", resting, "5 min", 0.004),
}
