"""``python -m tests.chaos [--seconds 60] [--seed N] [--modes …] [--results FILE]``"""

from __future__ import annotations

import argparse
import itertools
import secrets
import sys
import tempfile
from pathlib import Path

from .driver import Outcome, Setup, run
from .faults import FAULTS, LASTING
from .feeds import MODES, MORE_MODES, PARTITIONS, mode_of
from .results import report, written

#: Duration of one feed, …
_ROUND_S = 30.0
#: … and its number of cells, which no run under faults finishes.
_CELLS_PER_S = 200


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults, over all modes")
    parser.add_argument("--seed", default="")
    parser.add_argument("--modes", nargs="+", choices=[*MODES, *MORE_MODES], default=list(MODES))
    parser.add_argument("--kinds", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--pace", type=float, default=0.4, help="seconds between faults")
    parser.add_argument("--workers", type=int, default=2, help="each owns its partitions")
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument(
        "--durability",
        choices=("power", "process", "off"),
        default="power",
        help="off: without a state directory, and nothing is done that ends the server",
    )
    parser.add_argument(
        "--restless",
        action="store_true",
        help="trainers are interrupted, leave and come back, and ask for snapshots",
    )
    parser.add_argument("--keep", type=Path, help="leave ledgers and logs in this directory")
    parser.add_argument("--results", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.durability == "off":
        options.kinds = [kind for kind in options.kinds if kind in LASTING]
    seed = options.seed or secrets.token_hex(4)
    print(f"seed {seed}", flush=True)
    rounds = max(1, round(options.seconds / len(options.modes) / _ROUND_S))
    each = options.seconds / len(options.modes) / rounds
    size = int(_CELLS_PER_S * each) + 500
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as scratch:
        for number, mode in itertools.product(range(rounds), options.modes):
            directory = (options.keep or Path(scratch)) / f"{mode}-{number}"
            directory.mkdir(parents=True)
            name, kinds = f"{seed}-{mode}-{number}", tuple(options.kinds)
            setup = Setup(
                mode,
                name,
                kinds,
                each,
                options.pace,
                size,
                workers=options.workers,
                partitions=options.partitions,
                durability=options.durability,
                trainers=mode_of(mode).trainers,
                restless=options.restless,
            )
            outcome = run(setup, directory)
            outcomes.append(outcome)
            print(report(outcome), flush=True)
    total = sum(outcome.faults.total() for outcome in outcomes)
    broken = sum(len(outcome.verdict.findings) for outcome in outcomes)
    print(f"seed {seed}: {total} faults, {broken} laws broken")
    if options.results is not None:
        options.results.write_text(written(seed, outcomes))
    sys.exit(any(outcome.verdict.findings for outcome in outcomes))


if __name__ == "__main__":
    main()
