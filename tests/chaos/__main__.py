"""``python -m tests.chaos [--seconds 60] [--seed N] [--modes …] [--bug NAME] [--results FILE]``"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from .bugs import BUGS
from .driver import Outcome, Setup, run
from .faults import FAULTS
from .feeds import MODES
from .results import report, written


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults, over all modes")
    parser.add_argument("--seed", default="")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--kinds", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--pace", type=float, default=0.4, help="seconds between faults")
    parser.add_argument("--bug", choices=list(BUGS), default="", help="plant a bug in the server")
    parser.add_argument("--keep", type=Path, help="leave ledgers and logs in this directory")
    parser.add_argument("--results", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.bug:
        options.modes, options.kinds = [BUGS[options.bug].mode], list(BUGS[options.bug].kinds)
    seed = options.seed or secrets.token_hex(4)
    print(f"seed {seed}", flush=True)
    each = options.seconds / len(options.modes)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as scratch:
        for mode in options.modes:
            directory = (options.keep or Path(scratch)) / mode
            directory.mkdir(parents=True)
            setup = Setup(
                mode,
                f"{seed}-{mode}",
                tuple(options.kinds),
                each,
                options.pace,
                int(60 * each) + 1500,
                bug=options.bug,
            )
            outcome = run(setup, directory)
            outcomes.append(outcome)
            print(report(outcome), flush=True)
    if options.results is not None:
        options.results.write_text(written(seed, outcomes))
    sys.exit(any(outcome.verdict.findings for outcome in outcomes))


if __name__ == "__main__":
    main()
