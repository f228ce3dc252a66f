"""Memory of one contestant, epoch after epoch: ``python -m tests.bench.memory NAME DIRECTORY``.

    framework loaded and used ─► server ─► first epoch … ─► samples of all processes ─► peak, growth

What counts is proportional: every page once, however many processes share it.  The trainer's
framework is taken off, as it was before the server began; pages of the mapped files are in it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from . import workloads
from .contestants import CONTESTANTS
from .pairs import Judged
from .processes import mapped_mb, usage
from .steps import LOADED, READY

__all__ = ["judged", "shown"]

PEAK_MB = 200.0
#: Maximum ratio of the last third's peak to the first's: the noise of sampling.
GROWTH = 1.05
_EVERY_S = 0.05


def judged(title: str, name: str, measured: Mapping[str, Any]) -> list[Judged]:
    """The two targets."""
    del name
    peak, first, last = (measured[key] for key in ("peak_mb", "first_mb", "last_mb"))
    growth = last / first
    return [
        Judged(title, "peak", f"≤ {PEAK_MB:g} MB", f"{peak:.0f} MB", peak <= PEAK_MB),
        Judged(title, "growth", f"≤ {GROWTH:g}", f"{growth:.2f}", growth <= GROWTH),
    ]


def shown(measured: Mapping[str, Any]) -> str:
    return (
        f"at most {measured['peak_mb']:.0f} MB in {measured['epochs']:.0f} epochs, of which mapped "
        f"files {measured['mapped_mb']:.0f}; early epochs {measured['first_mb']:.0f}, last "
        f"{measured['last_mb']:.0f}"
    )


class _Sampler:
    """Looks at all processes again and again."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.taken.append((perf_counter(), usage().pss_mb))

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def measured_usage(name: str, directory: Path, seconds: float) -> dict[str, Any]:
    steps = CONTESTANTS[name](directory)
    assert next(steps) == LOADED
    framework = usage().pss_mb
    sampler = _Sampler()
    try:
        assert next(steps) == READY
        started, batches = perf_counter(), 0
        for _ in steps:
            batches += 1
            if perf_counter() - started > seconds:
                break
        mapped = mapped_mb(directory)
    finally:
        sampler.end()
        steps.close()  # type: ignore[attr-defined]
    third = seconds / 3
    taken = [(at - started, mb - framework) for at, mb in sampler.taken]
    peak = max(mb for _, mb in taken)
    return {
        "epochs": batches * workloads.BATCH / workloads.RECORDS,
        "peak_mb": peak,
        # The first epoch and its index are not in the first third that is compared.
        "first_mb": max((mb for at, mb in taken if third / 2 <= at < third * 1.5), default=peak),
        "last_mb": max((mb for at, mb in taken if at >= 2 * third), default=peak),
        "mapped_mb": mapped,
    }


def main() -> None:
    import tensorflow as tf

    # Memory that TensorFlow allocates at its first use does not count.
    tf.reduce_sum(tf.constant([1.0, 2.0]) + 1.0)
    tf.strings.length(tf.constant([b"x"]))
    print(json.dumps({"warm": True}), flush=True)
    for line in sys.stdin:
        measured = measured_usage(sys.argv[1], Path(sys.argv[2]), json.loads(line)["seconds"])
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
