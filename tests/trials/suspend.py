"""Processes that are suspended for longer than every timeout, and go on as if nothing had been.

    work ─► SIGSTOP: both | trainer | server ─► 40 s ─► SIGCONT ─► the end of the feed
            by shared memory or TCP, plain, arrival or lanes

No trainer may give up its server.  No lease may end because the server stood still; only those of
trainers that stood still while the server ran end, and their commits are refused once.
"""

from __future__ import annotations

import itertools
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from .frame import Report, Setup
from .yard import Yard

__all__ = ["run"]

_SECONDS = 40.0
_LEAST_S = 1.5
#: Part of the suspension that a lease lasts: 30 s, as by default, of 40.
_LEASE = 0.75
#: Cases at a time: nearly all of their time they stand still.
_AT_ONCE = 6
_CELLS = 400
_MODES = {"plain": "plain", "arrival": "segments", "lanes": "lanes"}
_CASES = [
    (who, way, kind)
    for who, (way, kind) in itertools.product(
        ("both", "server", "trainer"), itertools.product(("shm", "tcp"), _MODES)
    )
]
_SHORT = [("both", "tcp", "plain"), ("server", "shm", "arrival"), ("trainer", "tcp", "lanes")]


@dataclass(frozen=True, slots=True)
class _Case:
    """The suspended processes, and how the trainers are served."""

    who: str
    way: str
    kind: str
    seconds: float

    def run(self, setup: Setup) -> Report:
        """Suspend processes amid their work, wake them, and judge the batches of all trainers."""
        report, chance = Report(), setup.chance(str(self))
        server, trainers = self.who in ("both", "server"), self.who in ("both", "trainer")
        yard = Yard(
            *(setup.scratch, _MODES[self.kind], _CELLS, 2),
            lease_s=_LEASE * self.seconds,
            far=self.way == "tcp",
        )
        with yard:
            yard.start()
            yard.work(chance.randrange(10, 20))
            since = time.monotonic()
            yard.signal(signal.SIGSTOP, server, trainers)
            time.sleep(self.seconds)
            for first in chance.sample((True, False), 2):
                yard.signal(signal.SIGCONT, server and first, trainers and not first)
            for to in ("t0", "t1") if trainers else ("",):
                yard.harmed(since, to)
            report.figures["s to go on"] = round(yard.work(), 2)
            yard.verdict(report)
            stale = len(yard.said("stale"))
            errors = [str(line.more) for line in yard.said("error")]
            local = {line.more[0] for line in yard.said("join")}
            restarts = yard.restarts
        report.count("stale", stale)
        if restarts or errors:
            report.wrong(f"a trainer gave up {restarts} times: {errors[:1]}")
        if stale and server:
            report.wrong(f"{stale} commits were refused though the server stood still")
        if local != {self.way == "shm"}:
            report.wrong(f"memory was shared: {local}")
        return report


def _scratch(setup: Setup, number: int) -> Setup:
    path: Path = setup.scratch / str(number)
    path.mkdir()
    return replace(setup, scratch=path)


def run(setup: Setup, report: Report) -> None:
    seconds = max(_LEAST_S, _SECONDS * setup.scale)
    cases = _CASES if setup.scale >= 1 else _SHORT
    slowest = 0.0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = {}
        for number, case in enumerate(cases):
            one = _Case(*case, seconds)
            waiting[one] = pool.submit(one.run, _scratch(setup, number))
        for one, answer in waiting.items():
            try:
                found = answer.result()
            except RuntimeError as error:
                report.wrong(f"{one.who} {one.way} {one.kind}: {error}")
                continue
            report.count(f"{one.who} suspended")
            for what, n in found.counts.items():
                report.count(f"{what} ({one.who})" if what == "stale" else what, n)
            slowest = max(slowest, float(found.figures["s to go on"]))
            for text in found.broken:
                report.wrong(f"{one.who} {one.way} {one.kind}: {text}")
    report.figures["seconds suspended"] = seconds
    report.figures["s to go on, at most"] = slowest
