"""A trainer of segments as a process of its own, for tests that kill or stop it.

    python segment_trainer.py ADDRESS [--feed NAME] [--prefetch N] [--timeout S]
                              [--hold N] [--flush N] [--leave N] [--until PATH --wait N]
                              [--rank N --world-size N]

It advances the state ``chain`` and prints one JSON line per event: joined, batch (key, segment and
state of each row), saved, flushed, stale, error, done.  With batch N in hand, unsaved, ``--hold``
waits for its end, ``--wait`` (1) waits for the file of ``--until`` and goes on, and ``--leave``
leaves.  ``--flush N`` flushes the states after N batches.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import numpy as np

import headrace
from tests.integration.segment_streams import advanced, cells_of, plain


def tell(event: str, **values: object) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--feed")
    parser.add_argument("--prefetch", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--hold", type=int)
    parser.add_argument("--flush", type=int)
    parser.add_argument("--leave", type=int)
    parser.add_argument("--until")
    parser.add_argument("--wait", type=int, default=1)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world-size", type=int)
    options = parser.parse_args()
    with headrace.connect(
        options.address,
        feed=options.feed,
        prefetch=options.prefetch,
        timeout=options.timeout,
        rank=options.rank,
        world_size=options.world_size,
    ) as feed:
        tell("joined", local=feed.local)
        taken = 0
        while True:
            try:
                batch = next(feed, None)
                if batch is None:
                    break
                taken += 1
                cells = cells_of(batch)
                states = plain(batch.state("chain")).tolist()
                rows = [
                    [k.decode(), i, s]
                    for (k, i), s, valid in zip(cells, states, batch.valid, strict=True)
                    if valid
                ]
                tell("batch", rows=rows)
                if taken == options.hold:
                    _ = feed.progress  # answered once all saves are
                    tell("holding")
                    time.sleep(600)
                if taken == options.leave:
                    break
                if options.until and taken == options.wait:
                    while not os.path.exists(options.until):
                        time.sleep(0.01)
                after = [advanced(s, k, i) for (k, i), s in zip(cells, states, strict=True)]
                batch.save_state("chain", np.array(after, np.int32))
                tell("saved")
                if taken == options.flush:
                    feed.flush_states()
                    tell("flushed")
            except headrace.StaleLease as error:
                tell("stale", text=str(error))
            except headrace.HeadraceError as error:
                tell("error", kind=type(error).__name__, text=str(error))
                sys.exit(3)
    tell("done")


if __name__ == "__main__":
    main()
