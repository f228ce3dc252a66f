"""``make combinations SECONDS=``: draw declarations until the time is over."""

from __future__ import annotations

import argparse
import random
import time

from tests.combinations.trained import draws, failures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.combinations", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    chance, until, feeds = random.Random(given.seed), time.monotonic() + given.seconds, 0
    while True:
        for some in draws(chance, interrupted=chance.random() < 0.3):
            if found := failures(some, chance.choice((1, 2))):
                raise SystemExit("\n\n".join(found))
            feeds += len(some)
            if time.monotonic() > until:
                print(f"{feeds} feeds gave what the reference says")
                return


if __name__ == "__main__":
    main()
