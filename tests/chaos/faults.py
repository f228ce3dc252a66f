"""What can happen to a run, drawn from a seed: a kind, a victim, a length, and when the next comes.

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
from typing import Protocol

__all__ = ["FAULTS", "FREE", "LASTING", "RESTARTS", "Plan", "Target", "fill_disk", "send"]

#: Kinds and how often each is drawn, in proportion.
FAULTS = {
    "server killed": 4.0,
    "server stopped": 3.0,
    "supervisor killed": 1.0,
    "orphan left": 1.0,
    "front killed": 1.5,
    "worker killed": 2.0,
    "worker stopped": 1.0,
    "trainer killed": 5.0,
    "trainer stopped": 4.0,
    "connections cut": 2.5,
    "one way lost": 2.0,
    "network slow": 1.0,
    "disk full": 1.0,
}
#: Kinds that need no file system of their own.
FREE = tuple(kind for kind in FAULTS if kind != "disk full")
#: Kinds after which a server is started anew.
RESTARTS = ("server killed", "server stopped", "supervisor killed", "front killed", "orphan left")
#: Kinds that a server without a state directory outlives.
LASTING = tuple(kind for kind in FREE if kind not in RESTARTS)
_AT_WORK = 0.8
#: One life of a server forgives three deaths of a worker.
_WORKER_DEATHS = 3


class Target(Protocol):
    """What a run offers to those who harm it."""

    slots: int
    proxied: int  # of the slots, the first so many
    lease_s: float
    worker_deaths: int  # in this life of the server

    def children(self, role: str) -> list[int]: ...
    def kill_server(self) -> None: ...
    def stop_server(self) -> bool: ...
    def kill_supervisor(self) -> None: ...
    def orphan(self, pids: list[int], after_s: float, seconds: float) -> bool: ...
    def kill_front(self) -> bool: ...
    def kill_worker(self, pids: list[int]) -> bool: ...
    def kill_trainer(self, slot: int) -> bool: ...
    def stop(self, pids: list[int], slot: int | None, seconds: float) -> bool: ...
    def trainer_pids(self, slot: int) -> list[int]: ...
    def network(self, slot: int, what: str, seconds: float) -> bool: ...
    def crowd_disk(self, seconds: float) -> bool: ...


class Plan:
    """The faults of one run."""

    def __init__(self, seed: str, kinds: tuple[str, ...], pace_s: float) -> None:
        self._chance = random.Random(seed)
        self._kinds = kinds
        self._pace_s = pace_s

    def wait_s(self) -> float:
        """How long until the next fault."""
        return min(self._chance.expovariate(1 / self._pace_s), 4 * self._pace_s)

    def waits_for_work(self, last: str) -> bool:
        """Whether trainers are to be at work again before the next fault: mostly, not always."""
        return last in (*RESTARTS, "") and self._chance.random() < _AT_WORK

    def strike(self, run: Target) -> str:
        """Do something; its kind, or "" when there was nothing to do it to."""
        weights = [FAULTS[kind] for kind in self._kinds]
        kind = self._chance.choices(self._kinds, weights)[0]
        slot = self._chance.randrange(run.slots)
        near = self._chance.randrange(run.proxied)
        part = self._chance.random()
        way = self._chance.choice(("up", "down"))
        whom = [*run.children("worker")]
        some = [whom[int(part * len(whom))]] if whom else []
        acts: dict[str, Callable[[], bool | None]] = {
            "server killed": run.kill_server,
            "server stopped": run.stop_server,
            "supervisor killed": run.kill_supervisor,
            "orphan left": lambda: run.orphan(some, 0.4 * part, 0.5 + 2 * part),
            "front killed": run.kill_front,
            "worker killed": lambda: run.worker_deaths < _WORKER_DEATHS and run.kill_worker(some),
            "worker stopped": lambda: run.stop(some, None, 0.2 + 1.5 * part),
            "trainer killed": lambda: run.kill_trainer(slot),
            "trainer stopped": lambda: run.stop(
                run.trainer_pids(slot), slot, (0.3 + 2.2 * part) * run.lease_s
            ),
            "connections cut": lambda: run.network(near, "cut", 0),
            "one way lost": lambda: run.network(near, way, (0.1 + 1.9 * part) * run.lease_s),
            "network slow": lambda: run.network(near, "slow", 0.3 + part),
            "disk full": lambda: run.crowd_disk(0.2 + 0.8 * part),
        }
        return "" if acts[kind]() is False else kind


def fill_disk(directory: Path) -> Path:
    """Take all room that is left."""
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
    """Signal processes, some of which may be gone.  Whether there was one."""
    found = False
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            found = True
    return found
