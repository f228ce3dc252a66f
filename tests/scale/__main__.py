"""``python -m tests.scale NAME … [--short] [--scratch DIR]``; ``all``; ``list``"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from ..trials.frame import NotHere
from .curve import Curve, Setup, machine
from .every import EVERY


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*EVERY, "all", "list"], metavar="NAME")
    parser.add_argument("--short", action="store_true", help="a few seconds of each")
    parser.add_argument("--scratch", type=Path, help="where data is made")
    options = parser.parse_args()
    if "list" in options.names:
        for name, measure in EVERY.items():
            print(f"{name:12} {measure.goal} (at full size {measure.takes})")
        return
    passed = 0
    for name in EVERY if "all" in options.names else options.names:
        print(f"\n{name}: {EVERY[name].goal} (at full size {EVERY[name].takes})", flush=True)
        began = time.monotonic()
        try:
            curve = _measured(name, options.short, options.scratch)
        except NotHere as error:
            print(f"not run: {error}", flush=True)
            continue
        print(curve, f"\n{machine()}, {time.monotonic() - began:.0f} s", flush=True)
        passed += len(list(curve.passed))
    sys.exit(bool(passed))


def _measured(name: str, short: bool, scratch: Path | None) -> Curve:
    with tempfile.TemporaryDirectory(prefix="headrace-scale-", dir=scratch) as directory:
        return EVERY[name].run(Setup(Path(directory), short))


if __name__ == "__main__":
    main()
