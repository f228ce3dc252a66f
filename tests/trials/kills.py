"""``kill -9`` of a whole server, again and again: nothing stays behind, and nothing is lost.

    work ─► kill ─► no process is left (2 s) ─► start on the same port ─► the memory is swept

Every fourth time only the first process is killed, and its children have to see to themselves.
"""

from __future__ import annotations

import time
from functools import partial

import psutil

from .frame import Report, Setup, percentile
from .yard import Yard, until

__all__ = ["run"]

_KILLS = 1000
_CELLS = 110  # that are done in a life, about
_ORPHANS_S = 2.0


def run(setup: Setup, report: Report) -> None:
    kills = setup.sized(_KILLS)
    chance = setup.chance("kills")
    starts: list[float] = []
    with Yard(setup.scratch, "segments", _CELLS * kills + 100, 2) as yard:
        yard.start()
        for number in range(kills):
            yard.work(chance.randrange(1, 12))
            children = yard.children()
            alone = number % 4 == 3
            yard.kill(group=not alone)
            try:
                orphans_s = until(partial(_gone, children), "orphans to end", _ORPHANS_S)
                report.figures["orphans lived s"] = max(
                    round(orphans_s, 2), float(report.figures.get("orphans lived s", 0.0))
                )
            except RuntimeError:
                report.wrong(f"after kill {number} {sum(map(_lives, children))} processes live on")
            dead = {path.name for path in yard.shm.iterdir()}
            report.count("kills of the parent only" if alone else "kills of the group")
            starts.append(_started(yard))
            left = dead & {path.name for path in yard.shm.iterdir()}
            if left:
                report.wrong(f"after kill {number} memory is left: {sorted(left)}")
        yard.verdict(report)
    report.figures["start p50 s"] = round(percentile(starts, 0.5), 2)
    report.figures["start p99 s"] = round(percentile(starts, 0.99), 2)


def _started(yard: Yard) -> float:
    """Start again on the same port; how long that took."""
    began = time.monotonic()
    yard.start()
    return time.monotonic() - began


def _gone(processes: list[psutil.Process]) -> bool:
    return not any(map(_lives, processes))


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
