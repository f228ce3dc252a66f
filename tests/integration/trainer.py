"""A trainer as a process of its own, for tests that kill, stop or crowd it.

    python trainer.py ADDRESS [--feed NAME] [--hold N] [--until PATH] [--leave N] [--flush N]
                      [--pause S] [--timeout S] [--prefetch N] [--far] [--resume TOKEN]

It prints one JSON line per event: joined, batch (with its rows), holding, asks, saved, flushed,
stale, error, done.  A row of segments is its key, its segment and its state ``chain``, which the
trainer advances.  ``--hold N`` takes N batches and then waits, without a commit of the last one,
for the file of ``--until``, or else for its end.  ``--leave N`` leaves with batch N in hand;
``--flush N`` flushes the states after N batches.  ``--timeout`` bounds its waits for batches; it
may take longer to join.  ``--far`` hides the server's memory from it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

import numpy as np

import headrace
from headrace.connection import connection
from tests.integration.segment_streams import advanced, cells_of, plain
from tests.located import unseen
from tests.waiting import waits_end_after


def tell(event: str, **values: object) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def hold(feed: headrace.Feed, until: str | None) -> None:
    """Wait with the last batch in hand."""
    _ = feed.progress  # answered once all commits are
    tell("holding")
    while until is None or not os.path.exists(until):
        time.sleep(0.01)
    tell("asks")


def rows_of(feed: headrace.Feed, batch: Any) -> list[Any]:
    if not feed.states:
        column = batch["i" if "i" in batch else "x"]
        rows: list[Any] = column.tolist()
        return rows
    states = plain(batch.state("chain")).tolist()
    return [[k.decode(), i, s] for (k, i), s in zip(cells_of(batch), states, strict=True)]


def train(feed: headrace.Feed, options: argparse.Namespace) -> None:
    taken = 0
    if options.hold == 0:
        hold(feed, options.until)
    while True:
        try:
            batch = next(feed, None)
            if batch is None:
                return
            taken += 1
            rows = rows_of(feed, batch)
            tell("batch", rows=rows)
            if taken == options.hold:
                hold(feed, options.until)
            elif not feed.states:
                time.sleep(options.pause)
            if taken == options.leave:
                return
            if feed.states:
                after = [advanced(state, key.encode(), i) for key, i, state in rows]
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--feed")
    parser.add_argument("--hold", type=int)
    parser.add_argument("--until")
    parser.add_argument("--leave", type=int)
    parser.add_argument("--flush", type=int)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--far", action="store_true")
    parser.add_argument("--resume", type=json.loads)
    options = parser.parse_args()
    if options.far:
        connection.Attachment = unseen  # type: ignore[assignment,misc]
    with (
        headrace.connect(
            options.address,
            feed=options.feed,
            timeout=60,
            prefetch=options.prefetch,
            resume=options.resume,
        ) as feed,
        waits_end_after(options.timeout),
    ):
        tell("joined", local=feed.local)
        train(feed, options)
    tell("done")


if __name__ == "__main__":
    main()
