"""Packed lanes beside unpacked ones: ``python -m tests.bench.packed NAME DIRECTORY``.

    unpacked  packed  unpacked  packed …      a window each; medians of rows and steps per second

The sequences are short ones, of 5 … 50 steps of 64 floats, in rows of 20 steps; states stay with
the trainer.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import numpy as np

from .pairs import Judged

__all__ = ["judged", "shown"]

_WINDOWS = 5  # of each
_COUNT, _SHORTEST, _LONGEST, _WIDTH = 4000, 5, 50, 64
_UNROLL, _BATCH = 20, 32
#: Real steps per second, packed by unpacked, at least: a trainer of real work also has fewer rows.
_LEAST = 0.8


def _pipeline(pack: bool) -> Any:
    import headrace_server as hs

    lengths = np.random.default_rng(5).integers(_SHORTEST, _LONGEST + 1, _COUNT).tolist()
    examples = [
        {"key": f"{i}", "x": np.full((n, _WIDTH), i, "float32"), "label": i}
        for i, n in enumerate(lengths)
    ]
    return (
        hs.from_examples(examples)
        .repeat()
        .batch_sequences_with_states(
            input_key="key",
            input_sequences=["x"],
            input_context=["label"],
            initial_states={"h": hs.zeros((_WIDTH,), "float32")},
            num_unroll=_UNROLL,
            batch_size=_BATCH,
            order="lanes",
            state_placement="trainer",
            pack=pack,
        )
    )


def judged(title: str, name: str, measured: Mapping[str, Any]) -> list[Judged]:
    del name
    padding, steps = measured["packed"]["padding"], measured["steps_ratio"]
    return [
        Judged(title, "padding", "none", f"{padding:.1%}", padding == 0),
        Judged(title, "rate", f"≥ {_LEAST:g}", f"{steps:.2f}", steps >= _LEAST),
    ]


def shown(measured: Mapping[str, Any]) -> str:
    parts = (
        f"{name} {one['rows_per_s']:,.0f} rows/s, {one['steps_per_s']:,.0f} real steps/s, "
        f"{one['padding']:.1%} padding"
        for name, one in ((name, measured[name]) for name in ("unpacked", "packed"))
    )
    return "; ".join(parts)


def _window(feed: Any, seconds: float) -> dict[str, float]:
    rows = steps = 0
    began = perf_counter()
    while (took := perf_counter() - began) < seconds:
        batch = next(feed)
        batch.sequences["x"]
        rows += batch.rows
        steps += int(batch.length.sum())
        batch.save_state("h", batch.state("h"))
    padding = 1 - steps / (rows * _UNROLL)
    return {"rows_per_s": rows / took, "steps_per_s": steps / took, "padding": padding}


def _measured(feeds: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    windows: dict[str, list[dict[str, float]]] = {name: [] for name in feeds}
    for _ in range(_WINDOWS):
        for name, feed in feeds.items():
            windows[name].append(_window(feed, seconds / (2 * _WINDOWS)))
    found: dict[str, Any] = {
        name: {what: statistics.median(one[what] for one in some) for what in some[0]}
        for name, some in windows.items()
    }
    pairs = zip(windows["packed"], windows["unpacked"], strict=True)
    found["steps_ratio"] = statistics.median(a["steps_per_s"] / b["steps_per_s"] for a, b in pairs)
    return found


def main() -> None:
    import headrace
    import headrace_server as hs

    pipelines = {"unpacked": _pipeline(pack=False), "packed": _pipeline(pack=True)}
    with ExitStack() as stack:
        server = stack.enter_context(hs.run(pipelines))
        feeds = {
            name: stack.enter_context(headrace.connect(server.address, feed=name))
            for name in pipelines
        }
        for feed in feeds.values():
            _window(feed, 0.5)
        print(json.dumps({"warm": True}), flush=True)
        for line in sys.stdin:
            measured = _measured(feeds, json.loads(line)["seconds"])
            print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
