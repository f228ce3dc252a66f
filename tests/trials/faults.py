"""Random faults as trials: the feeds of chaos, on one host or on hosts of their own.

    faults    one server after the other, with all kinds of feeds
    shares    four servers of one feed and eight trainers, each on a host of its own, whose links
              are cut, deaf one way or slow; no host sees the memory of another

The judge of chaos tries each run by its laws.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from tests.chaos.driver import Outcome
from tests.chaos.driver import Setup as Chaos
from tests.chaos.driver import run as harmed
from tests.chaos.faults import FAULTS, FREE
from tests.chaos.feeds import MODES
from tests.chaos.hosts import why_not
from tests.chaos.results import report as shown

from .frame import NotHere, Report, Setup

__all__ = ["faults", "shares"]

_SECONDS = 60.0
#: Duration of one feed at most, and its number of cells, which no run under faults finishes.
_ROUND_S, _CELLS_PER_S = 30.0, 200
_FAULTS = 300
#: Faults of one feed on hosts of their own, and what it has to do between two of them.
_FAULTS_OF_A_FEED, _CELLS_PER_FAULT = 50, 400


def _run(chaos: Chaos, setup: Setup, report: Report) -> Outcome:
    directory = setup.scratch / chaos.seed.replace(" ", "-")
    directory.mkdir()
    outcome = harmed(replace(chaos, seed=f"{setup.seed} {chaos.seed}"), directory)
    print(shown(outcome), flush=True)
    for finding in outcome.verdict.findings:
        report.wrong(f"{chaos.mode}: {finding.law}: {finding.text}")
    for kind, times in outcome.faults.items():
        report.count(kind, times)
    report.count("faults", outcome.faults.total())
    report.count("commits", outcome.verdict.counts["commits"])
    report.count("cells", outcome.verdict.counts["cells"])
    return outcome


def faults(setup: Setup, report: Report) -> None:
    seconds = setup.seconds or max(6.0, _SECONDS * setup.scale)
    rounds = max(1, round(seconds / len(MODES) / _ROUND_S))
    each = seconds / len(MODES) / rounds
    size = int(_CELLS_PER_S * each) + 500
    for n, mode in itertools.product(range(rounds), MODES):
        _run(Chaos(mode, f"{mode} {n}", tuple(FAULTS), each, size=size), setup, report)


def shares(setup: Setup, report: Report) -> None:
    if lacking := why_not():
        raise NotHere(lacking)
    left = setup.sized(_FAULTS, 4)
    modes = ["segments", *(mode for mode in MODES if mode != "segments")]
    for number, mode in zip(itertools.count(), modes, strict=False):
        most = min(left, _FAULTS_OF_A_FEED)
        if not most:
            break
        chaos = Chaos(
            mode,
            f"{mode} on hosts",
            (*FREE, "host lost"),
            seconds=20.0 * most,
            size=_CELLS_PER_FAULT * most + 500,
            trainers=8,
            workers=1 + number % 2,
            partitions=8,
            step_s=0.15,
            lease_s=3.0,
            servers=4,
            hosts=True,
            most=most,
        )
        faults = _run(chaos, setup, report).faults.total()
        left -= most
        if faults < most:
            report.missed.append(f"{mode}: {faults} faults of {most}")
