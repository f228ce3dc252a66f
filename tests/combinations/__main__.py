"""``make combinations SECONDS=``: draw feeds, runs and interruptions until the time is over.

With files: run these programs, which failures have printed.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import runpy
import time
from collections.abc import Sequence
from itertools import islice

from tests.combinations.judge import failures
from tests.combinations.runs import groups
from tests.nursery import warm_starts


def run(files: Sequence[str]) -> None:
    """Run programs that failures have printed."""
    for file in files:
        runpy.run_path(file, run_name="__main__")
        print(f"{file}: no law is broken")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.combinations", description=__doc__)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--groups", type=int, help="stop after so many, whatever time they take")
    parser.add_argument("--skip", type=int, default=0, help="groups that are drawn, not trained")
    parser.add_argument("--go-on", action="store_true", help="do not stop at a failure")
    given = parser.parse_args()
    if not os.environ.get("COLD"):
        warm_starts()
    logging.getLogger("headrace").setLevel(logging.ERROR)
    if given.files:
        run(given.files)
        return
    print(f"seed {given.seed}", flush=True)
    began, feeds, failed = time.monotonic(), 0, 0
    drawn = enumerate(groups(random.Random(given.seed)))
    for number, (place, draws) in islice(drawn, given.skip, given.groups):
        if given.groups is None and time.monotonic() - began > given.seconds:
            break
        if found := failures(place, draws):
            failed += len(found)
            print("\n\n".join(f"group {number}, {text}" for text in found), flush=True)
            if not given.go_on:
                break
        feeds += len(draws)
    print(f"{feeds} feeds in {time.monotonic() - began:.0f} s, {failed} broke a law")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
