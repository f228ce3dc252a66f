"""``python -m tests.trials NAME … [--seed N] [--scale X] [--results FILE]``; ``all``; ``list``"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .every import EVERY
from .frame import Setup, run, table, written


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.trials", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*EVERY, "all", "list"], metavar="NAME")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size")
    parser.add_argument("--seconds", type=float, help="how long faults or the soak last")
    parser.add_argument("--results", type=Path, help="add a line of JSON per trial to this file")
    options = parser.parse_args()
    if "list" in options.names:
        for name, trial in EVERY.items():
            print(f"{name:14} {trial.goal} (at full size {trial.takes})")
        return
    results = []
    for name in EVERY if "all" in options.names else options.names:
        trial = EVERY[name]
        print(f"{name}: {trial.goal} (at full size {trial.takes})", flush=True)
        with tempfile.TemporaryDirectory(prefix="headrace-trial-") as scratch:
            setup = Setup(options.seed, options.scale, Path(scratch), options.seconds)
            result = run(name, trial.goal, trial.run, setup)
        results.append(result)
        print(table([result]), flush=True)
        if options.results is not None:
            with open(options.results, "a") as file:
                file.write(written(result) + "\n")
    if len(results) > 1:
        print(table(results))
    sys.exit(not all(result.sound for result in results))


if __name__ == "__main__":
    main()
