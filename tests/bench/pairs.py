"""Two contestants in turn, and what their pairs say.

    ours  peer  ours  peer  ours  peer …        each pair gives a ratio; the median of them counts

Both live for the whole comparison and only one runs at a time, so a drift of the machine meets
both, and a burst of another's work spoils a pair and not the median.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Window = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is set beside what; ``aim`` is a ratio of rates, or of latencies where ``latency``."""

    workload: str
    ours: str
    peer: str
    aim: float | None = None
    rows: int = 1  # in a batch
    read: float = 1.0  # rows of the source for each row handed over
    latency: bool = False
    quick: bool = True  # part of a quick run


@dataclass(frozen=True, slots=True)
class Outcome:
    """The windows of both, in the order they were run."""

    comparison: Comparison
    ours: Sequence[Window]
    peer: Sequence[Window]
    load: Sequence[float] = field(default_factory=list)  # load average of a minute, before pairs

    def ratios(self, name: str = "batches_per_s") -> list[float]:
        """Ours by the peer's, pair by pair."""
        return [a[name] / b[name] for a, b in zip(self.ours, self.peer, strict=True) if b[name]]

    def median(self, side: str, name: str) -> float:
        return statistics.median(window[name] for window in getattr(self, side))

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "ratios": self.ratios(), "median": statistics.median(self.ratios())}


class _Process:
    """One contestant's process."""

    def __init__(self, name: str, directory: Path) -> None:
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        self._name = name
        # TensorFlow talks a lot: shown if it matters.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.window", name, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=environment,
        )

    def warm(self) -> None:
        """Wait until it has warmed up."""
        self._answer()

    def window(self, seconds: float) -> Window:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"seconds": seconds}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace")[-4000:]
        raise RuntimeError(f"{self._name!r} ended with {self._process.wait()}: {said}")

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._complaints.close()


def compare(comparison: Comparison, directory: Path, pairs: int, seconds: float) -> Outcome:
    """Run a comparison with fresh processes."""
    running: list[_Process] = []
    try:
        running += [_Process(name, directory) for name in (comparison.ours, comparison.peer)]
        for process in running:
            process.warm()
        ours: list[Window] = []
        peer: list[Window] = []
        load = []
        for _ in range(pairs):
            load.append(os.getloadavg()[0])
            ours.append(running[0].window(seconds))
            peer.append(running[1].window(seconds))
        return Outcome(comparison, ours, peer, load)
    finally:
        for process in running:
            process.close()
