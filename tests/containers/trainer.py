"""A trainer of the checks, outside and inside of containers: one JSON line, then its end.

python trainer.py ADDRESS ROWS       takes so many rows, or all with 0
python trainer.py ADDRESS hold       takes a batch and holds it until it is stopped
python trainer.py ADDRESS step       takes a batch, trains until its input ends, and commits
"""

from __future__ import annotations

import json
import sys
import time

import headrace


def main() -> None:
    address, wanted = sys.argv[1:]
    rows: list[int] = []
    with headrace.connect(address, timeout=30, prefetch=0) as feed:
        for batch in feed:
            rows += batch["x"].tolist()
            if wanted in ("hold", "step") or len(rows) == int(wanted):
                break
        print(json.dumps({"rows": rows, "local": feed.local}), flush=True)
        if wanted == "hold":
            time.sleep(600)
        elif wanted == "step":
            sys.stdin.read()


if __name__ == "__main__":
    main()
