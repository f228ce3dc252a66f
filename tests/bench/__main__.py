"""``python -m tests.bench``: the comparisons, one table."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .comparisons import comparisons
from .pairs import compare
from .report import append_to_log, as_json, log_entry, table

_LOG = Path(__file__).parents[2] / "docs" / "log.md"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 pairs of 1 s, fewer comparisons")
    parser.add_argument("--only", default="", help="comparisons whose name contains this")
    parser.add_argument("--pairs", type=int, help="pairs of windows per comparison (5)")
    parser.add_argument("--seconds", type=float, help="length of a window (2.5)")
    parser.add_argument("--data", type=Path, help="where the data is kept (a temporary directory)")
    parser.add_argument("--json", type=Path, help="write every window to this file")
    parser.add_argument("--log", action="store_true", help="append the table to docs/log.md")
    options = parser.parse_args()
    pairs = options.pairs or (3 if options.quick else 5)
    seconds = options.seconds or (1.0 if options.quick else 2.5)
    directory = options.data or Path(tempfile.gettempdir()) / f"headrace-bench-{os.getuid()}"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    code = "import sys, pathlib, tests.bench.workloads as w; w.prepare(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(directory)], check=True, env=environment)
    outcomes = []
    for comparison in comparisons(options.quick, options.only):
        print(f"{comparison.workload}: {comparison.ours} / {comparison.peer}", file=sys.stderr)
        outcomes.append(compare(comparison, directory, pairs, seconds))
        if options.json:
            options.json.write_text(as_json(outcomes))
    if not outcomes:
        parser.error(f"no comparison contains {options.only!r}, or what it needs is not installed")
    print(table(outcomes))
    if options.log:
        append_to_log(_LOG, log_entry(outcomes, pairs, seconds))


if __name__ == "__main__":
    main()
