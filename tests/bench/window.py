"""One contestant in a process of its own: ``python -m tests.bench.window NAME DIRECTORY``.

    LOADED ─► warm-up ─► {"seconds": 2.5} ─► run-in, window ─► result ─► {"seconds": …} ─► …

A contestant that ends (an epoch) is begun anew for every window, with a new server, and timed from
the moment that its server serves.  One that does not is paused between windows with its server
running: what it makes ahead meanwhile is used up in a run-in that is not timed.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

from .contestants import CONTESTANTS
from .processes import Usage, usage
from .steps import ENDED, LOADED, READY, Filled, Steps

#: A first pass of W1, so that later windows see files that are indexed.
_WARM_STEPS = 1200
_WARM_AT_MOST_S = 5.0
_RUN_IN_S = 0.4


def _begin(name: str, directory: Path) -> tuple[Steps, Usage]:
    steps = CONTESTANTS[name](directory)
    assert next(steps) == LOADED
    loaded = usage()
    assert next(steps) == READY
    return steps, loaded


def run(
    steps: Steps,
    seconds: float,
    times: array[float] | None = None,
    taken: Counter[int] | None = None,
    filled: array[float] | None = None,
) -> bool:
    """Step for ``seconds``; return False when it ended.

    ``taken`` counts the batches of each trainer, ``filled`` has the shares that are not padding.
    """
    deadline = perf_counter() + seconds
    now = perf_counter()
    for step in steps:
        if step == ENDED:
            return False
        before, now = now, perf_counter()
        if times is not None:
            times.append(step if isinstance(step, float) else now - before)
        if taken is not None and isinstance(step, int):
            taken[step] += 1
        if filled is not None and isinstance(step, Filled):
            filled.append(step.share)
        if now >= deadline:
            return True
    raise RuntimeError("a contestant ended without a word")


def _result(
    times: array[float],
    taken: Counter[int],
    filled: array[float],
    wall_s: float,
    before: Usage,
    loaded: Usage,
) -> dict[str, Any]:
    """A batch with padding counts for the share of it that is filled."""
    after = usage()
    ordered = sorted(times)
    batches = sum(filled) if filled else len(times)
    return {
        "batches": batches,
        "batches_per_s": batches / wall_s,
        "padding": 1 - batches / len(times),
        "cpu_s_per_1000": (after.cpu_s - before.cpu_s) / batches * 1000,
        "p50_us": ordered[len(ordered) // 2] * 1e6,
        "p99_us": ordered[int(len(ordered) * 0.99)] * 1e6,
        "peak_rss_mb": after.peak_rss_mb,
        "pss_beyond_framework_mb": after.pss_mb - loaded.pss_mb,
        "taken": [taken[trainer] for trainer in sorted(taken)],
    }


def _window(steps: Steps, seconds: float, loaded: Usage) -> dict[str, Any]:
    times: array[float] = array("d")
    taken: Counter[int] = Counter()
    filled: array[float] = array("d")
    before = usage()
    started = perf_counter()
    run(steps, seconds, times, taken, filled)
    return _result(times, taken, filled, perf_counter() - started, before, loaded)


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    once = name.endswith("first epoch")
    steps: Steps | None = None
    if not once:
        steps, loaded = _begin(name, directory)
        started = perf_counter()
        for warm, _ in enumerate(steps):
            if warm >= _WARM_STEPS or perf_counter() - started > _WARM_AT_MOST_S:
                break
    print(json.dumps({"warm": True}), flush=True)
    for line in sys.stdin:
        seconds = json.loads(line)["seconds"]
        if steps is not None:
            run(steps, _RUN_IN_S)
            result = _window(steps, seconds, loaded)
        else:
            epoch, loaded = _begin(name, directory)
            result = _window(epoch, 3600.0, loaded)
            epoch.close()  # type: ignore[attr-defined]
        print(json.dumps(result), flush=True)
    if steps is not None:
        steps.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
