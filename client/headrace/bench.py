"""How fast a feed comes: ``headrace bench``, whose options come here as JSON.

    connect ─► [ next() ─► (save every state as it came) ] until the time is over ─► figures

It is a trainer like any other, without a model: it commits the batches that it takes, so no other
trainer gets them.  Therefore it needs ``--consume``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace_proto.errors import HeadraceError, is_mistake

from .batches.segments import SegmentBatch
from .connecting import connect
from .machine.prefetch import AUTO

#: Batches before the clock starts: connections, mappings and caches are set up by them.
_WARMUP = 8


def measure(feed: Any, seconds: float, warmup: int = _WARMUP) -> dict[str, Any]:
    """Take batches for ``seconds``; return what came, and how long the trainer waited for each."""
    waits: list[float] = []
    rows = nbytes = taken = 0
    started = ended = time.perf_counter()
    while taken < warmup or ended - started < seconds:
        asked = time.perf_counter()
        batch = next(feed, None)
        ended = time.perf_counter()
        if batch is None:
            break
        if isinstance(batch, SegmentBatch):
            for name in feed.states:
                batch.save_state(name, batch.state(name))
        taken += 1
        if taken == warmup:
            started = time.perf_counter()
        elif taken > warmup:
            waits.append(ended - asked)
            rows += batch.rows
            nbytes += batch.nbytes
        del batch
    elapsed = max(ended - started, 1e-9)
    if not waits:
        raise HeadraceError(f"the feed ended after {taken} batches: too few to measure")
    micros = np.array(waits) * 1e6
    return {
        "feed": feed.name,
        "through": "shared memory" if feed.local else "the wire",
        "seconds": elapsed,
        "batches": len(waits),
        "batches_per_s": len(waits) / elapsed,
        "rows_per_s": rows / elapsed,
        "mb_per_s": nbytes / elapsed / 1e6,
        "waited": float(micros.sum() / 1e6 / elapsed),
        "wait_us_p50": float(np.percentile(micros, 50)),
        "wait_us_p99": float(np.percentile(micros, 99)),
    }


def main(options: Mapping[str, Any]) -> int:
    """Run the command with these options of ``headrace bench``; return the exit code."""
    seconds, prefetch = options.get("seconds", 5.0), options.get("prefetch", AUTO)
    names = ("feed", "framework", "timeout", "keys")
    try:
        if not options.get("consume"):
            raise ValueError(
                "bench commits the batches that it takes, so no trainer gets them: give --consume, "
                "on a feed that nobody trains on"
            )
        if not 0 < seconds <= 3600:
            raise ValueError(f"--seconds {seconds:g} is not more than 0 and at most 3600")
        with connect(
            options["address"],
            prefetch=int(prefetch) if prefetch.isdecimal() else prefetch,
            **{name: options[name] for name in names if name in options},
        ) as feed:
            found = measure(feed, seconds)
    except (HeadraceError, ValueError, TypeError, ImportError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2 if is_mistake(error) else 1
    if options.get("json"):
        print(json.dumps(found))
        return 0
    print(
        f"{found['feed']}: {found['batches']} batches in {found['seconds']:.1f} s through "
        f"{found['through']}\n"
        f"  {found['batches_per_s']:,.0f} batches/s   {found['rows_per_s']:,.0f} rows/s   "
        f"{found['mb_per_s']:,.1f} MB/s\n"
        f"  waited {found['waited']:.0%} of the time: p50 {found['wait_us_p50']:,.0f} µs, "
        f"p99 {found['wait_us_p99']:,.0f} µs a batch"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
