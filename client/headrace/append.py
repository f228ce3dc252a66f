"""Examples of a file into a log, and its end: ``headrace log append`` and ``headrace log close``.

    lines of JSON ─► whole examples ─► the producer's lane ─► durable, or the line that was refused

The options come here as JSON.  The examples of one run go to one partition, in their order.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from headrace_proto.errors import DataError, HeadraceError, is_mistake

from .produce import Producer, produce

#: Time without a line of progress.
_EVERY_S = 5.0


def append(out: Producer, file: BinaryIO, name: str) -> None:
    """Append the examples of a file, and leave.  DataError names a bad line, the first one."""
    fault, say_at = "", time.monotonic() + _EVERY_S
    for number, line in enumerate(file, 1):
        try:
            out.append(json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            fault = f"{name}, line {number}: {error}"
            break
        if time.monotonic() >= say_at:
            say_at = time.monotonic() + _EVERY_S
            print(f"appending: {out.stored:,} are stored", file=sys.stderr, flush=True)
    out.close()
    if fault:
        raise DataError(fault)


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with open(name, "rb") as file:
        yield file


def main(options: Mapping[str, Any]) -> int:
    """Run the command with these options of ``headrace log``; return the exit code."""
    log, file, out = options["log"], options["file"], None
    name = f"command-{os.getpid()}-{time.time_ns()}"
    try:
        with contextlib.ExitStack() as stack:
            if file:  # a mistake here is found before a producer joins
                lines = stack.enter_context(_opened(file))
            given = {"timeout": options["wait"], "keys": options["keys"]}
            out = stack.enter_context(produce(options["address"], log=log, name=name, **given))
            if file:
                append(out, lines, file)
                print(f"{out.stored:,} examples are stored in log {log!r}")
            else:
                out.close_log()
                print(f"log {log!r} is closed: feeds end when all of it is trained")
    except (HeadraceError, ValueError, TypeError, OSError, KeyboardInterrupt) as error:
        given_up = isinstance(error, KeyboardInterrupt)
        stored = f"; the first {out.stored:,} examples are stored" if out and file else ""
        print(f"headrace: {'given up' if given_up else error}{stored}", file=sys.stderr)
        return 130 if given_up else 2 if is_mistake(error) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
