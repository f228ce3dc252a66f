"""A full disk, again and again: commits wait, nothing that was told is lost, and they go on alone.

state directory on a small file system ─► fill it ─► answers stop ─► make room ─► the next answer
"""

from __future__ import annotations

import time

from tests.chaos.faults import fill_disk

from .frame import Report, Setup, percentile
from .mounts import tmpfs
from .yard import Yard

__all__ = ["run"]

_TIMES = 20
_CELLS = 700  # that are done between two of them, about
_QUIET_S = 0.6
_RESUMED_S = 1.0


def run(setup: Setup, report: Report) -> None:
    times = setup.sized(_TIMES)
    resumed: list[float] = []
    with tmpfs(setup.scratch / "disk", "48m") as disk:
        with Yard(setup.scratch, "segments", _CELLS * times + 400, 2, disk / "state") as yard:
            yard.start()
            assert yard.server is not None
            first = yard.server.pid
            for number in range(times):
                yard.work(5)
                since = time.monotonic()
                filler = fill_disk(disk)
                _wait_for_silence(yard)
                report.count("times full")
                quiet = time.monotonic()
                filler.unlink()
                yard.harmed(since)
                yard.work(1)
                resumed += [line.at - quiet for line in yard.said("ok", quiet)[:1]]
                if yard.server.poll() is not None or yard.server.pid != first:
                    report.wrong(f"time {number}: the server has ended")
                    break
            yard.verdict(report)
    report.figures["resumed p50 s"] = round(percentile(resumed, 0.5), 2)
    report.at_most("resumed at most s", max(resumed, default=0.0), _RESUMED_S)


def _wait_for_silence(yard: Yard) -> None:
    """Wait until no answer has come for some time, so all commits on the disk are answered."""
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        time.sleep(0.05)
        if not yard.said("ok", time.monotonic() - _QUIET_S):
            return
