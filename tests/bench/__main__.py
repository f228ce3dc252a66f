"""``python -m tests.bench``: the comparisons, one table."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .comparisons import comparisons
from .pairs import Comparison, compare
from .report import Run, as_json, circumstances, table
from .running import Failed, Running, running

#: Pairs and seconds of a window.
_QUICK, _USUAL = (3, 0.4), (5, 0.7)
_ATTEMPTS = 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 pairs of 0.4 s: does it run?")
    parser.add_argument("--only", default="", help="comparisons whose name contains this")
    parser.add_argument("--pairs", type=int, help="pairs of windows per comparison (5)")
    parser.add_argument("--seconds", type=float, help="length of a window (0.7)")
    parser.add_argument("--data", type=Path, help="where the data is kept (a temporary directory)")
    parser.add_argument("--json", type=Path, help="write every window to this file")
    options = parser.parse_args()
    pairs, seconds = _QUICK if options.quick else _USUAL
    run = Run(options.pairs or pairs, options.seconds or seconds)
    chosen = comparisons(options.only)
    if not chosen:
        parser.error(f"no comparison contains {options.only!r}")
    directory = options.data or Path(tempfile.gettempdir()) / f"headrace-bench-{os.getuid()}"
    _prepare(directory)
    with running(directory) as them:
        measure(run, chosen, them, options.json)
    print(circumstances(run), table(run), sep="\n\n")


def _prepare(directory: Path) -> None:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    code = "import sys, pathlib, tests.bench.workloads as w; w.prepare(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(directory)], check=True, env=environment)


def measure(run: Run, chosen: list[Comparison], them: Running, json: Path | None) -> None:
    """Measure all of them.  One that fails is tried again, then noted, and the others follow."""
    began = time.monotonic()
    for at, step in enumerate(chosen):
        print(f"{at + 1}/{len(chosen)} {step.title}", file=sys.stderr)
        for _ in range(_ATTEMPTS):
            try:
                run.outcomes.append(compare(step, them, run.pairs, run.seconds))
            except Failed as error:
                print(f"    {error}", file=sys.stderr)
                run.absent[step.title] = str(error)
                them.failed(error)
            else:
                run.absent.pop(step.title, None)
                break
        them.keep(needed(chosen, at))
        run.minutes = (time.monotonic() - began) / 60
        if json:
            json.write_text(as_json(run))


def needed(chosen: list[Comparison], after: int) -> set[str]:
    """Contestants that live on: those that the same workload has need of again."""
    rest = [c for c in chosen[after + 1 :] if c.workload == chosen[after].workload]
    return {name for c in rest for name in (c.ours, c.peer)}


if __name__ == "__main__":
    main()
