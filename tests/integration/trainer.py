"""A trainer as a process of its own, for tests that kill, stop or crowd it.

    python trainer.py ADDRESS [--feed NAME] [--hold N] [--pause S] [--timeout S] [--prefetch N]
                      [--far]

Prints one JSON line per event: joined, batch (with its rows), error, done.  ``--hold N`` takes N
batches and then waits for its end without committing the last one; ``--far`` hides the server's
memory from it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import headrace
from headrace import wire


def tell(event: str, **values: object) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def hide_memory() -> None:
    """Do not find the server's memory, as on another host."""

    def unseen(directory: str, session_file: str) -> None:
        raise FileNotFoundError(session_file)

    wire.Attachment = unseen  # type: ignore[assignment,misc]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--feed")
    parser.add_argument("--hold", type=int)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--far", action="store_true")
    options = parser.parse_args()
    if options.far:
        hide_memory()
    with headrace.connect(
        options.address, feed=options.feed, timeout=options.timeout, prefetch=options.prefetch
    ) as feed:
        tell("joined")
        taken = 0
        while True:
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
            tell("batch", rows=batch["i"].tolist())
            taken += 1
            if taken == options.hold:
                feed._link.settle()  # all but the batch in hand is committed, and known to be
                tell("holding")
                time.sleep(600)
            time.sleep(options.pause)
    tell("done")


if __name__ == "__main__":
    main()
