"""Hours in minutes: a server and two trainers over a feed with states, as fast as they go.

    samples of every process, twice a second ─► after a warm-up, a straight line through them

What grows with the work done would show as a slope; files, threads and shared memory are counted,
and the journals of the stores measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

import headrace_server as hs
from tests.nursery import environment
from tests.patience import eventually

from .frame import Report, Setup

__all__ = ["examples", "run"]

_SECONDS = 300.0
_WARM = 0.5  # part of the time that does not count: tables of 65,536 batches fill up meanwhile
_SLOPE_MB = 1.0  # per million segments
_JOURNAL = 64 * 2**20
_MB = 2**20
_TRAIN = """
import sys
import headrace
with headrace.connect(sys.argv[1], timeout=120) as feed:
    for batch in feed:
        batch.save_state("s", batch.state("s") + 1)
"""


def examples() -> object:
    """Examples without end, each with a key that is its own among all that are under way."""
    number = 0
    while True:
        steps = 16 * (1 + number % 8)
        yield {"key": b"%d" % number, "x": np.full(steps, number % 97, np.float32)}
        number += 1


def _pipeline() -> hs.Pipeline:
    return hs.from_function("tests.trials.soak:examples").batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"s": hs.zeros((32,), "float32")},
        num_unroll=16,
        batch_size=32,
        capacity=1024,
    )


@dataclass(frozen=True, slots=True)
class _Sample:
    segments: int
    rss: tuple[int, ...]  # private, by process
    fds: tuple[int, ...]
    threads: tuple[int, ...]
    files: int  # in shared memory
    journal: int


def _sample(server: hs.Server, processes: list[psutil.Process], shm: Path, state: Path) -> _Sample:
    told = [process.memory_info() for process in processes]
    return _Sample(
        server.stats()["default"]["rows"],
        tuple(info.rss - info.shared for info in told),
        tuple(process.num_fds() for process in processes),
        tuple(process.num_threads() for process in processes),
        sum(1 for path in shm.rglob("*") if path.is_file()),
        max((path.stat().st_size for path in state.rglob("*.journal")), default=0),
    )


def run(setup: Setup, report: Report) -> None:
    seconds = setup.seconds or max(5.0, _SECONDS * setup.scale)
    state = setup.scratch / "state"
    shm = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="trial-"))
    samples: list[_Sample] = []
    names = ["server", "locator", "worker 0", "worker 1", "trainer 0", "trainer 1"]
    try:
        with hs.run(_pipeline(), workers=2, partitions=2, state_dir=state, shm_dir=shm) as server:
            trainers = [
                subprocess.Popen([sys.executable, "-c", _TRAIN, server.address], env=environment())
                for _ in range(2)
            ]
            try:
                pids = [os.getpid(), *(pid for _, pid in sorted(server.pids.items()))]
                processes = [psutil.Process(p) for p in [*pids, *(t.pid for t in trainers)]]
                eventually(lambda: sum(server.access()["present"].values()) == 2)
                began = time.monotonic()
                while time.monotonic() - began < seconds:
                    time.sleep(min(0.5, seconds / 40))
                    if any(trainer.poll() is not None for trainer in trainers):
                        report.wrong("a trainer has ended")
                        return
                    samples.append(_sample(server, processes, shm, state))
            finally:
                for trainer in trainers:
                    trainer.kill()
                    trainer.wait()
    finally:
        shm.rmdir()
    _judge(samples, names, seconds, report)


def _judge(samples: list[_Sample], names: list[str], seconds: float, report: Report) -> None:
    warm = samples[int(_WARM * len(samples)) :]
    report.count("segments", samples[-1].segments)
    report.count("samples", len(warm))
    report.figures["segments/s"] = round(samples[-1].segments / seconds)
    millions = np.array([sample.segments for sample in warm]) / 1e6
    if len(warm) < 4 or millions[-1] == millions[0]:
        report.wrong("there was no work to fit a line to")
        return
    worst, where = -np.inf, ""
    for place, name in enumerate(names):
        rss = np.array([sample.rss[place] for sample in warm]) / _MB
        slope = float(np.polyfit(millions, rss, 1)[0])
        if slope > worst:
            worst, where = slope, name
    report.at_most("most MB per million segments", worst, _SLOPE_MB)
    report.figures["of"] = where
    first, last = warm[0], warm[-1]
    for what in ("fds", "threads"):
        grown = [b - a for a, b in zip(getattr(first, what), getattr(last, what), strict=True)]
        report.figures[f"{what} grown"] = max(grown)
        if max(grown) > 2:
            report.wrong(f"{what} grew by {grown}")
    files = [sample.files for sample in warm]
    report.figures["files in shared memory"] = f"{min(files)} to {max(files)}"
    if max(files) > max(files[: len(files) // 2]) + 2:
        report.wrong(f"files in shared memory grow: {files[0]} to {max(files)}")
    report.at_most("journal at most MB", max(s.journal for s in samples) / _MB, _JOURNAL / _MB, 1)
