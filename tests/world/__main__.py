"""Random worlds, and bugs that they are to find.

python -m tests.world COUNT [FIRST]      that many worlds, from a seed on
python -m tests.world 60s [FIRST]        for that many seconds
python -m tests.world --seed SEED        one world, with its traceback
python -m tests.world --bugs [NAME …]    plant each bug, and tell which world finds it
"""

from __future__ import annotations

import sys
import time
import traceback

from .bugs import BUGS, MOST, find
from .worlds import check, config_of


def run(count: float, seconds: float, first: int) -> int:
    """Run worlds; return how many broke a law."""
    began, failed, seed, units = time.time(), [], first, 0
    while seed - first < count and time.time() - began < seconds:
        if seed > first and (seed - first) % 1000 == 0:
            spent = time.time() - began
            print(
                f"{seed - first} worlds, {units} units, {len(failed)} failed, {spent:.0f} s",
                flush=True,
            )
        try:
            units += check(seed)
        except Exception as error:
            failed.append(seed)
            line = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{line.filename.rpartition('/')[2]}:{line.lineno}"
            print(f"seed {seed}: {type(error).__name__}: {error}  ({where})", flush=True)
        seed += 1
    print(f"{seed - first} worlds, {units} rows and segments, {len(failed)} failed: {failed[:20]}")
    return len(failed)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--seed"]:
        seed = int(arguments[1])
        print(config_of(seed))
        check(seed)
        return 0
    if arguments[:1] == ["--bugs"]:
        missed = 0
        for name in BUGS:
            if not arguments[1:] or name in arguments[1:]:
                began = time.time()
                seed, said = find(name)
                missed += not said
                found = f"found by world {seed}: {said}" if said else f"NOT FOUND in {MOST} worlds"
                print(f"{name:28} {found}  ({time.time() - began:.0f} s)", flush=True)
        return missed
    how_many, first = arguments[0], int(arguments[1]) if len(arguments) > 1 else 0
    if how_many.endswith("s"):
        return run(1 << 60, float(how_many[:-1]), first)
    return run(int(how_many), 1 << 60, first)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
