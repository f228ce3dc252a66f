"""The costs of a log: processor time of an item and a record, memory of idle keys, and a restart.

python -m tests.bench.logs [KEYS] [--durability process]

It fills one partition of a log: each key is opened and gets steps of 96 bytes, one at a time, from
all keys in turn, in messages of 64 items.  A feed reads all of it, and needs the last step of each.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from headrace_server.logs.ledger import LogOptions
from headrace_server.logs.log import Log
from headrace_server.logs.log_files import LogFiles
from headrace_server.logs.records import NEVER
from headrace_server.logs.words import Item

_STEPS = 5
_BYTES = 96
_MESSAGE = 64


def memory() -> int:
    """Return the bytes of this process that are no file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            gc.collect()
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not say how much memory is no file's")


def opened(directory: Path, durability: str) -> Log:
    options = LogOptions(window=NEVER, max_open=NEVER)
    files = LogFiles(directory, "bench/0", durability, options.file_bytes)
    return Log(files, options, time.time())


def items(keys: int, step: int, number: int) -> Iterator[list[Item]]:
    """Yield messages with one item of each key."""
    data = bytes(_BYTES)
    for at in range(0, keys, _MESSAGE):
        some = range(at, min(at + _MESSAGE, keys))
        yield [
            Item(number + n, b"actor-17/ep-%d" % n, not step, max(0, step - 1), min(step, 1),
                 context=b"" if step else b"context!", data=data if step else b"")
            for n in some
        ]  # fmt: skip


def settle(log: Log) -> None:
    log.flush()
    while log.ledger.durable < log.ledger.position - 1:
        time.sleep(0.001)
        log.flush()


def fill(directory: Path, keys: int, durability: str) -> None:
    log, spent = opened(directory, durability), 0.0
    ledger = log.ledger
    ledger.attach("feed", -1, {})
    log.begin()
    ledger.greet("actor", 1, 1, 0, time.time(), reopens=keys)
    settle(log)
    for step in range(_STEPS + 1):
        for message in items(keys, step, 1 + keys * step):
            began = time.process_time()
            ledger.append(1, message, time.time())
            log.flush()
            ledger.sent.clear()
            spent += (time.process_time() - began) * bool(step)
    print(f"step     {spent / keys / _STEPS * 1e6:.1f} us of the processor, to the file")
    settle(log)
    began = time.process_time()
    while log.next_event("feed") is not None:
        pass
    print(f"record   {(time.process_time() - began) / ledger.position * 1e6:.1f} us for a feed")
    ledger.release("feed", ledger.durable, dict.fromkeys(ledger.sequences.row, _STEPS - 1), [])
    spent = longest = 0.0
    ledger._since = NEVER  # a table is due
    while not ledger._durable_table:
        began = time.process_time()
        log.tick(time.time())
        longest = max(longest, time.process_time() - began)
        spent += time.process_time() - began
    print(f"table    {spent:.2f} s of the processor, {longest * 1e3:.1f} ms at most at once")
    log.close()


def restart(directory: Path, keys: int, durability: str) -> None:
    before, began, wall = memory(), time.process_time(), time.perf_counter()
    log = opened(directory, durability)
    floors = dict.fromkeys(log.ledger.sequences.row, _STEPS - 1)
    log.ledger.attach("feed", log.ledger.durable, floors)
    log.begin()
    del floors
    wall, spent = time.perf_counter() - wall, time.process_time() - began
    print(f"restart  {wall:.2f} s, {spent:.2f} of the processor; {log.ledger.position} records")
    print(f"memory   {(memory() - before) / keys:.0f} bytes for each of {keys} open keys")
    log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a log costs.")
    parser.add_argument("keys", nargs="?", type=int, default=100_000)
    parser.add_argument("--durability", default="process")
    parser.add_argument("--restart", metavar="DIRECTORY", help="only that, in this process")
    given = parser.parse_args()
    if given.restart:
        restart(Path(given.restart), given.keys, given.durability)
        return
    with tempfile.TemporaryDirectory() as directory:
        fill(Path(directory), given.keys, given.durability)
        again = [sys.executable, "-m", "tests.bench.logs", *sys.argv[1:], "--restart", directory]
        subprocess.run(again, check=True)


if __name__ == "__main__":
    main()
