"""SIGTERM under load: the server ends well within its grace, and nothing is trained again.

    work ─► SIGTERM ─► nothing more is handed out, what is out is committed ─► exit 0 ─► start again

A segment that was handed out twice, to anybody, was done again.  Trainers are told that the server
stops, and end with that error, or find the next one.
"""

from __future__ import annotations

import time
from collections import Counter

from tests.chaos.ledger import read_lines

from .frame import Report, Setup, percentile
from .yard import Yard

__all__ = ["run"]

_TERMS = 100
_CELLS = 260  # that are done in a life, about
_GRACE_S = 20.0


def run(setup: Setup, report: Report) -> None:
    terms = setup.sized(_TERMS)
    chance = setup.chance("terms")
    took: list[float] = []
    with Yard(setup.scratch, "segments", _CELLS * terms, 3) as yard:
        yard.start()
        for number in range(terms):
            yard.work(chance.randrange(3, 40))
            began = time.monotonic()
            code = yard.terminate(_GRACE_S)
            took.append(time.monotonic() - began)
            report.count("SIGTERMs")
            if code is None:
                report.wrong(f"SIGTERM {number}: it lives after {_GRACE_S:g} s")
                yard.kill()
            elif code:
                report.wrong(f"SIGTERM {number}: it ended with {code}")
            yard.start()
        yard.verdict(report, stopped=True)
        taken = Counter(
            tuple(cell)
            for line in read_lines(yard.ledger)
            if line.what == "take"
            for cell in line.more[0]
        )
    again = sum(times - 1 for times in taken.values())
    report.count("segments", len(taken))
    report.count("segments handed out again", again)
    if again:
        report.wrong(f"{again} segments were handed out again")
    report.figures["end p50 s"] = round(percentile(took, 0.5), 2)
    report.at_most("end p99 s", percentile(took, 0.99), _GRACE_S)
