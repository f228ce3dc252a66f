"""Loading of many states: ``python -m tests.bench.loading NAME DIRECTORY``.

    1,000,000 examples of 2 kB, written as a journal ─► store ─► lines, slots, table of states

What is timed is what a worker does with a journal before it serves: the file is looked through,
and every example is where its next segment is made from.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import msgpack
import numpy as np

from headrace_proto.schema import Field
from headrace_server.journal.journal import Journal
from headrace_server.journal.journal_file import JournalFile
from headrace_server.journal.live_table import encoded
from headrace_server.making.segment_block import StateTable, stored_states
from headrace_server.making.segment_cutting import StateSource
from headrace_server.making.stored_examples import StoredExamples
from headrace_server.shaping.slots import Slots
from headrace_server.shaping.stored_state import Change, Examples

from .pairs import Judged

__all__ = ["judged", "shown"]

_EXAMPLES, _STATE, _SEGMENTS = 1_000_000, 512, 24  # float32
_TOGETHER, _CHUNK = 16_384, 1000  # examples of a commit, and of a chunk
_LIMIT_S = 5.0


def judged(title: str, name: str, measured: Mapping[str, Any]) -> list[Judged]:
    del name
    took = measured["took_s"]
    met = took <= _LIMIT_S
    return [Judged(title, "time", f"≤ {_LIMIT_S:g} s", f"{took:.2f} s", met)]


def shown(measured: Mapping[str, Any]) -> str:
    return (
        f"{measured['examples']:,} examples of 2 kB: {measured['took_s']:.2f} s, of which the "
        f"store {measured['store_s']:.2f}"
    )


def _changes(examples: int) -> Iterator[Change]:
    for first in range(0, examples, _TOGETHER):
        n = min(_TOGETHER, examples - first)
        lines = np.arange(first, first + n)
        chunks, rows = np.divmod(lines, _CHUNK)
        counts = np.full(n, _SEGMENTS)
        numbers = np.array(
            [lines, lines, chunks, rows, np.ones(n, np.int64), counts, lines], np.int64
        )
        keys = [(0, b"k%07d" % line) for line in lines.tolist()]
        states = np.repeat(lines.astype(np.float32)[:, None], _STATE, 1).view(np.uint8)
        reads = dict.fromkeys(np.unique(chunks).tolist(), bytes(40))
        yield Change(Examples(numbers, keys, [states]), chunks=reads)


def _written(path: Path, examples: int) -> None:
    base = Change(meta={"base": msgpack.packb({"line": examples})})
    with JournalFile.new(path) as file:
        for change in chain([base], _changes(examples)):
            file.write(encoded(change))
        file.publish(file.at, file.at, durable=False)
    file.close()


def _measured(path: Path, examples: int) -> dict[str, Any]:
    state = StateSource("s", Field("float32", (_STATE,)))
    began = perf_counter()
    store = Journal(path, "power")
    saved = store.load()
    of_store = perf_counter() - began
    slots, stored = Slots(0), StoredExamples()
    stored.resume(saved)
    begun = slots.resume(saved.examples)
    stored.in_slots(begun, saved.examples.lines)
    table = StateTable([state])
    table.resume(begun, stored_states([state], saved.examples), slots.size)
    took = perf_counter() - began
    store.close()
    ((values, rows),) = table.columns(slots.rows(begun), None)[0].values()
    right = np.array_equal(values[rows[[0, -1]], 0], np.array([0, examples - 1], np.float32))
    if len(begun) != examples or not right:
        raise AssertionError("what was loaded is not what was written")
    return {"took_s": took, "store_s": of_store, "examples": examples}


def main(examples: int = _EXAMPLES) -> None:
    with tempfile.TemporaryDirectory(prefix="load-", dir=sys.argv[2]) as directory:
        path = Path(directory) / "0.journal"
        _written(path, examples)
        print(json.dumps({"warm": True}), flush=True)
        for _ in sys.stdin:
            print(json.dumps(_measured(path, examples)), flush=True)


if __name__ == "__main__":
    main()
