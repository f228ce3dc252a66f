"""A steady load of states on one store: what it costs, and how long a commit takes.

    25,000 states of 2 kB a second, 32 to a change ─► Journal on a disk ─► from submit to told

The store runs in a process of its own, which does nothing else; what is measured is all of that
process.  Where others load the machine or its disk, the figures are upper bounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .frame import Report, Setup, percentile

__all__ = ["run"]

_RATE = 25_000
_SECONDS = 60.0
_CORE = 0.5
_P99_MS = 50.0
_PACED = """
import json, os, random, resource, select, sys, time
from pathlib import Path
from tests.unit.changes import Example, examples_of
from headrace_server.shaping.stored_state import Change
from headrace_server.journal.journal import Journal
path, rate, seconds, seed = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
chance = random.Random(seed)
block = chance.randbytes(1 << 20)
bell = os.eventfd(0, os.EFD_NONBLOCK)
store = Journal(path, "power", bell)
changes = int(rate * seconds / 32)
states = [block[at : at + 2048] for at in (chance.randrange(1 << 19) for _ in range(512))]
lines = [chance.randrange(20_000) for _ in range(1 << 16)]
waits, sent, told = [], [], 0
cpu, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
while told < changes:
    now = time.perf_counter() - began
    due = min(changes, int(now * rate / 32) + 1)
    while len(sent) < due:
        n = len(sent)
        some = [
            Example(line, line, 0, 0, n, n + 2, 0, (0, b"k"), states[(n + i) % 512])
            for i, line in enumerate(lines[n * 32 % 65_536 :][:32])
        ]
        sent.append(time.perf_counter())
        store.submit(Change(put=examples_of(some), tokens=[n]), tickets=[n])
    next_s = max(0.0, len(sent) * 32 / rate - (time.perf_counter() - began))
    select.select([bell], [], [], next_s if len(sent) < changes else 10.0)
    try:
        os.eventfd_read(bell)
    except BlockingIOError:
        continue
    now = time.perf_counter()
    for number in store.take_done():
        waits.append(now - sent[number])
        told += 1
took = time.perf_counter() - began
after = resource.getrusage(resource.RUSAGE_SELF)
store.close()
used = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
print(json.dumps([told, took, used, waits]))
"""


def run(setup: Setup, report: Report) -> None:
    seconds = max(1.0, _SECONDS * setup.scale)
    with tempfile.TemporaryDirectory(dir=setup.scratch) as place:
        arguments = [str(Path(place) / "0.journal"), str(_RATE), str(seconds), str(setup.seed)]
        done = subprocess.run(
            [sys.executable, "-c", _PACED, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            timeout=20 * seconds + 60,
        )
    if done.returncode:
        report.wrong(done.stderr[-500:])
        return
    told, took, used, waits = json.loads(done.stdout)
    report.count("commits", told)
    report.count("states", 32 * told)
    report.figures["states/s"] = round(32 * told / took)
    report.at_most("cores", used / took, _CORE)
    report.figures["commit p50 ms"] = round(1000 * percentile(waits, 0.5), 1)
    report.at_most("commit p99 ms", 1000 * percentile(waits, 0.99), _P99_MS, 1)
