"""A trainer as a process of its own, for tests that kill, stop or crowd it.

    python trainer.py ADDRESS [--feed NAME] [--hold N] [--until PATH] [--pause S] [--timeout S]
                      [--prefetch N] [--far] [--rank R --world-size N]

Prints one JSON line per event: joined, batch (with its rows), holding, asks, error, done.
``--hold N`` takes N batches and then waits, without committing the last one, for the file of
``--until``, or else for its end.  ``--timeout`` bounds its waits for batches; it may take longer to
join.  ``--far`` hides the server's memory from it.  With a rank a batch is told with its round, the
partition of that and its bucket.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import headrace
from headrace import connection
from tests.waiting import waits_end_after


def tell(event: str, **values: object) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def hide_memory() -> None:
    """Do not find the server's memory, as on another host."""

    def unseen(directory: str, session_file: str) -> None:
        raise FileNotFoundError(session_file)

    connection.Attachment = unseen  # type: ignore[assignment,misc]


def hold(feed: headrace.Feed, until: str | None) -> None:
    """Wait with the last batch in hand."""
    _ = feed.progress  # answered once all commits are
    tell("holding")
    while until is None or not os.path.exists(until):
        time.sleep(0.01)
    tell("asks")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--feed")
    parser.add_argument("--hold", type=int)
    parser.add_argument("--until")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--far", action="store_true")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world-size", type=int)
    options = parser.parse_args()
    if options.far:
        hide_memory()
    with (
        headrace.connect(
            options.address,
            feed=options.feed,
            timeout=60,
            prefetch=options.prefetch,
            rank=options.rank,
            world_size=options.world_size,
        ) as feed,
        waits_end_after(options.timeout),
    ):
        tell("joined")
        taken = 0
        while True:
            if taken == options.hold:
                hold(feed, options.until)
                options.hold = None
            try:
                batch = next(feed)
            except StopIteration:
                break
            except headrace.StaleLease as error:
                tell("stale", text=str(error))
                continue
            except headrace.HeadraceError as error:
                tell("error", kind=type(error).__name__, text=str(error))
                sys.exit(3)
            place = {}
            if options.rank is not None:
                turn = feed._link.trainer.hands[batch.token].given.turn_index
                place["place"] = [turn, batch.partition, batch.bucket]
            tell("batch", rows=batch["i"].tolist(), **place)
            taken += 1
            if taken != options.hold:
                time.sleep(options.pause)
    tell("done")


if __name__ == "__main__":
    main()
