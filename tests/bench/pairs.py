"""Two contestants in turn, and what their pairs say.

    ours  peer  ours  peer  ours  peer …        each pair gives a ratio; the median of them counts

Both live for the whole comparison and only one runs at a time, so a drift of the machine meets
both, and a burst of another's work spoils a pair and not the median.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .running import Running

Window = Mapping[str, Any]

#: Pairs of whole epochs, which take long each.
_EPOCHS = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two contestants and the aims of their comparison: bounds of ratios, except ``p99_us``."""

    workload: str
    ours: str
    peer: str
    aim: float | None = None  # of rates, at least
    rows: int = 1  # in a batch
    nbytes: float = 0.0  # of a batch: what its examples hold, without padding
    latency: bool = False
    cpu: float | None = None  # of processor time per batch, at most
    p99_us: float | None = None  # of ours, at most
    shares: float | None = None  # of our trainers, at most so far from even

    @property
    def title(self) -> str:
        return f"{self.workload}: {self.ours} / {self.peer}"


@dataclass(frozen=True, slots=True)
class Judged:
    """One target and what was measured for it."""

    title: str
    what: str  # rate, CPU, p99 or shares
    wanted: str
    measured: str
    met: bool


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

    def ratio(self, name: str = "batches_per_s") -> float:
        """The median of them; nothing where no pair gave one."""
        return statistics.median(self.ratios(name) or [float("nan")])

    def median(self, side: str, name: str) -> float:
        return statistics.median(window[name] for window in getattr(self, side))

    def shares(self) -> list[float]:
        """The batches that each of our trainers took in all windows, relative to an even share."""
        taken = [sum(of_one) for of_one in zip(*(w["taken"] for w in self.ours), strict=True)]
        return [one * len(taken) / sum(taken) for one in taken]

    def judged(self) -> list[Judged]:
        """Every target of the comparison."""
        c, found = self.comparison, []
        if c.aim is not None:
            ratio = self.ratio()
            found.append(Judged(c.title, "rate", f"≥ {c.aim:g}", f"{ratio:.2f}", ratio >= c.aim))
        if c.cpu is not None:
            ratio = self.ratio("cpu_s_per_1000")
            found.append(Judged(c.title, "CPU", f"≤ {c.cpu:g}", f"{ratio:.2f}", ratio <= c.cpu))
        if c.p99_us is not None:
            p99 = self.median("ours", "p99_us")
            wanted, measured = f"≤ {c.p99_us:,.0f} µs", f"{p99:,.0f} µs"
            found.append(Judged(c.title, "p99", wanted, measured, p99 <= c.p99_us))
        if c.shares is not None:
            least, largest = min(self.shares()), max(self.shares())
            wanted, measured = f"within {c.shares:.0%}", f"{least:.2f}–{largest:.2f} of even"
            even = max(1 - least, largest - 1) <= c.shares
            found.append(Judged(c.title, "shares", wanted, measured, even))
        return found

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "ratios": self.ratios(), "median": self.ratio()}


def compare(comparison: Comparison, running: Running, pairs: int, seconds: float) -> Outcome:
    """Run a comparison with contestants that run already, or are begun."""
    mine, other = running.contestants(comparison.ours, comparison.peer)
    ours: list[Window] = []
    peer: list[Window] = []
    load = []
    for _ in range(min(pairs, _EPOCHS) if comparison.ours.endswith("epoch") else pairs):
        load.append(os.getloadavg()[0])
        ours.append(mine.window(seconds))
        peer.append(other.window(seconds))
    return Outcome(comparison, ours, peer, load)
