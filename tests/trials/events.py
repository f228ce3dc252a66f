"""Random histories of the pure machines: every segment comes once and in order.

    seeds ─► World (dispatcher, partitions, trainers, deaths) ─► storm ─► settle ─► all books agree

The worlds are those of the unit tests; here they are many.  An event is one call of a machine that
can change it: of the dispatcher by a trainer, a worker or the clock, of a partition's machine by an
order.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from random import Random
from typing import Any

from headrace_server.core.arrival_order import ArrivalOrder
from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.lane_order import LaneOrder
from tests.unit.core.segment_world import World

from .frame import Report, Setup
from .plain_world import PlainWorld

__all__ = ["run"]

_EVENTS = 10_000_000
_STEPS = 200
_OF_DISPATCHER = (
    *("made", "partition_ended", "starved", "dry", "stored", "claimed", "join"),
    *("window", "save", "flush", "give_back", "renew", "adopt", "leave", "tick", "seen", "claim"),
)
_OF_PARTITION = ("want", "offer", "saved", "leave", "next_draft", "claim", "release", "finish")


class _Counter:
    """Counts calls of machines from outside."""

    def __init__(self) -> None:
        self.events = 0

    def __enter__(self) -> _Counter:
        self._before: list[tuple[type, str, Any]] = []
        for kind, names in (
            (Dispatcher, _OF_DISPATCHER),
            (ArrivalOrder, _OF_PARTITION),
            (LaneOrder, _OF_PARTITION),
        ):
            for name in names:
                if hasattr(kind, name):
                    self._replace(kind, name)
        return self

    def _replace(self, kind: type, name: str) -> None:
        real = getattr(kind, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.events += 1
            return real(*args, **kwargs)

        self._before.append((kind, name, kind.__dict__.get(name)))
        setattr(kind, name, counted)

    def __exit__(self, *_: object) -> None:
        for kind, name, before in reversed(self._before):
            if before is None:
                delattr(kind, name)
            else:
                setattr(kind, name, before)


def _counts(chance: Random) -> list[list[int]]:
    partitions = chance.randint(1, 3)
    return [[chance.randint(1, 4) for _ in range(chance.randrange(13))] for _ in range(partitions)]


def _segment_world(seed: str) -> str:
    """Run one history of a feed of segments; return its fault, or ""."""
    chance = Random(seed)
    order = chance.choice(("arrival", "lanes"))
    ahead = order == "lanes" and chance.random() < 0.3
    deaths = not ahead and chance.random() < 0.7
    size = chance.randint(1, 3)
    capacity = size if chance.random() < 0.5 else None
    counts = _counts(chance)
    world = World(chance.randrange(2**32), counts, order, ahead, size, capacity)
    try:
        world.storm(_STEPS, deaths)
        world.settle()
        world.finish()
        assert [worker.next for worker in world.workers] == counts, "a segment is missing"
    except Exception as error:
        return f"segments, world {seed!r}: {type(error).__name__}: {error}"
    return ""


def _plain_world(seed: str) -> tuple[int, str]:
    world = PlainWorld(seed)
    try:
        world.storm(_STEPS)
        world.settle()
    except Exception as error:
        return world.events, f"plain, world {seed!r}: {type(error).__name__}: {error}"
    return world.events, ""


def _share(arguments: tuple[int, int, int]) -> tuple[int, int, list[str]]:
    """Run one process's part; return the numbers of worlds and events, and the findings."""
    seed, share, events = arguments
    worlds = done = 0
    findings: list[str] = []
    with _Counter() as counter:
        while done + counter.events < events and len(findings) < 20:
            worlds += 1
            name = f"{seed} {share} {worlds}"
            if worlds % 4:
                found = _segment_world(name)
            else:
                more, found = _plain_world(name)
                done += more
            findings += [found] if found else []
    return worlds, done + counter.events, findings


def _shares(setup: Setup) -> Iterator[tuple[int, int, list[str]]]:
    events = setup.sized(_EVENTS, 1000)
    processes = min(os.cpu_count() or 1, 2) if events > 100_000 else 1
    parts = [(setup.seed, share, events // processes) for share in range(processes)]
    if processes == 1:
        yield _share(parts[0])
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(_share, parts)


def run(setup: Setup, report: Report) -> None:
    for worlds, events, findings in _shares(setup):
        report.count("events", events)
        report.count("histories", worlds)
        for found in findings:
            report.wrong(found)
