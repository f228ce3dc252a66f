"""The faults of a run, drawn from a seed: a kind, a victim, a length, and the time to the next one.

Each kind is a few lines that use what the run offers.  What must be undone is undone by the run
when its time has come.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .driver import Run

__all__ = ["FAULTS", "FREE", "LASTING", "RESTARTS", "Plan", "fill_disk", "send"]

#: Kinds and how often each is drawn, in proportion.
FAULTS = {
    "server killed": 4.0,
    "server stopped": 3.0,
    "supervisor killed": 1.0,
    "orphan left": 1.0,
    "locator killed": 1.5,
    "worker killed": 2.0,
    "worker stopped": 1.0,
    "trainer killed": 5.0,
    "trainer stopped": 4.0,
    "connections cut": 2.5,
    "one way lost": 2.0,
    "network slow": 1.0,
    "disk full": 1.0,
    "host lost": 2.0,
}
#: Kinds that need no file system and no host of their own.
FREE = tuple(kind for kind in FAULTS if kind not in ("disk full", "host lost"))
#: Kinds after which a server restarts.
RESTARTS = (
    "server killed",
    "server stopped",
    "supervisor killed",
    "locator killed",
    "orphan left",
    "host lost",
)
#: Kinds that a server without a state directory outlives.
LASTING = tuple(kind for kind in FREE if kind not in RESTARTS)
_AT_WORK = 0.8
#: One life of a server forgives three deaths of a worker.
_WORKER_DEATHS = 3


class Plan:
    """The faults of one run."""

    def __init__(self, seed: str, kinds: tuple[str, ...], pace_s: float) -> None:
        self._chance = random.Random(seed)
        self._kinds = kinds
        self._pace_s = pace_s

    def wait_s(self) -> float:
        """Return the seconds until the next fault."""
        return min(self._chance.expovariate(1 / self._pace_s), 4 * self._pace_s)

    def waits_for_work(self, last: str) -> bool:
        """Whether the next fault waits until trainers work again; it mostly does."""
        return last in (*RESTARTS, "") and self._chance.random() < _AT_WORK

    def strike(self, run: Run) -> str:
        """Cause a fault; return its kind, or "" where it has no victim."""
        weights = [FAULTS[kind] for kind in self._kinds]
        kind = self._chance.choices(self._kinds, weights)[0]
        slot = self._chance.randrange(run.slots)
        link = self._chance.randrange(len(run.links))
        server = self._chance.choice(run.servers)
        part = self._chance.random()
        way = self._chance.choice(("up", "down"))
        whom = server.children("worker")
        some = [whom[int(part * len(whom))]] if whom else []
        while_s = (0.1 + 1.9 * part) * run.lease_s
        acts: dict[str, Callable[[], bool | None]] = {
            "server killed": server.kill,
            "server stopped": server.stop,
            "supervisor killed": server.kill_supervisor,
            "orphan left": lambda: server.orphan(some, 0.4 * part, 0.5 + 2 * part),
            "locator killed": server.kill_locator,
            "worker killed": lambda: (
                server.worker_deaths < _WORKER_DEATHS and server.kill_worker(some)
            ),
            "worker stopped": lambda: server.suspend(some, 0.2 + 1.5 * part),
            "trainer killed": lambda: run.kill_trainer(slot),
            "trainer stopped": lambda: run.stop_trainer(slot, (0.3 + 2.2 * part) * run.lease_s),
            "connections cut": lambda: run.network(link, "cut", while_s),
            "one way lost": lambda: run.network(link, way, while_s),
            "network slow": lambda: run.network(link, "slow", 0.3 + part),
            "disk full": lambda: server.crowd_disk(0.2 + 0.8 * part),
            "host lost": lambda: server.lose_host(while_s),
        }
        return "" if acts[kind]() is False else kind


def fill_disk(directory: Path) -> Path:
    """Fill the disk."""
    filler = directory / "filler"
    with open(filler, "wb", buffering=0) as out:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    out.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return filler


def send(pids: list[int], number: signal.Signals) -> bool:
    """Signal processes, some of which may have ended; return whether one had not."""
    found = False
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            found = True
    return found
