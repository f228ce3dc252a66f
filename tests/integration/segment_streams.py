"""Examples whose states depend on all their earlier segments, and a ledger of the batches.

    segment i   state(i) ──► advanced(state(i), key, i) ──save──► state(i+1)   segment i+1
                   └── checked: nothing but this very chain of saves gives that number

A `Ledger` knows every example.  It checks each batch that a trainer was handed, gives the states to
save, and says at the end whether every segment was there, once and in order.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import headrace
import headrace_server as hs

from . import serving

#: Connects a trainer that asks for each batch when it wants it.
connect = functools.partial(serving.connect, prefetch=0)
UNROLL = 4
_MARK = [b"", b"begun"]

Example = dict[str, Any]
Cell = tuple[bytes, int]


def example(number: int, steps: int, key: str | None = None) -> Example:
    """One example: three sequences of several dtypes, contexts, and a state of its own."""
    grid = np.arange(2 * steps, dtype=np.float32).reshape(steps, 2) % 97 + number
    return {
        "key": f"k{number:03d}" if key is None else key,
        "steps": grid,
        "words": [f"{number}.{t}" for t in range(steps)],
        "on": np.array([(number + t) % 3 == 0 for t in range(steps)]),
        "label": np.int32(number),
        "who": f"example {number}",
        "origin": np.int32(1000 + number),
        "n": np.int64(steps),
    }


def of_counts(counts: Iterable[int]) -> list[Example]:
    """Return examples with these numbers of segments; most of their last ones are not full."""
    return [
        example(i, count * UNROLL - (i % UNROLL if count > 1 else 0))
        for i, count in enumerate(counts)
    ]


def advanced(state: int, key: bytes, segment: int) -> int:
    """Return the chained state after a segment."""
    return zlib.crc32(b"%d %d " % (state, segment) + key) & 0x7FFFFFFF


def plain(value: Any) -> np.ndarray:
    """Return a column of any framework as an array of numpy."""
    if isinstance(value, list):
        return np.array(value, object)
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


_STATES = ("chain", "mark", "sums", "flags")


class _Known:
    """One example: its payload, and the states before each of its segments."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = told
        self.key = told["key"].encode()
        self.steps = len(told["steps"])
        self.count = -(-self.steps // UNROLL)
        self.states: list[dict[str, Any]] = [
            {
                "chain": int(told["origin"]),
                "mark": _MARK,
                "sums": np.zeros((2, 1), np.float32),
                "flags": np.array([True, False, False]),
            }
        ]
        for i in range(self.count):
            before = self.states[-1]
            self.states.append(
                {
                    "chain": advanced(before["chain"], self.key, i),
                    "mark": [b"%s after %d" % (self.key, i), before["mark"][0]],
                    "sums": before["sums"]
                    + self.cut("steps", i).sum(0, dtype=np.float32)[:, None] % 1024,
                    "flags": np.roll(before["flags"], 1),
                }
            )

    def cut(self, name: str, segment: int) -> np.ndarray:
        """Return the steps of a segment, padded."""
        value = self.told[name]
        whole = np.array([w.encode() for w in value], object) if name == "words" else value
        some = whole[segment * UNROLL :][:UNROLL]
        out = np.zeros((UNROLL, *some.shape[1:]), some.dtype)
        if name == "words":
            out[:] = b""
        out[: len(some)] = some
        return out


class Ledger:
    """Checks batches against the examples, and remembers every segment that was handed out."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.of = {known.key: known for known in (_Known(told) for told in examples)}
        self.seen: list[Cell] = []
        self.batches: list[list[Cell]] = []
        self._lock = threading.Lock()

    def check(self, batch: Any) -> dict[str, Any]:
        """Check a whole batch, record it, and return the states to save."""
        cells = cells_of(batch)
        owners = [self.of[key] for key, _ in cells]
        names = states_in(batch)
        assert plain(batch.sequence_count).tolist() == [known.count for known in owners], cells
        for name in names:
            got = plain(batch.state(name))
            for row, (known, (_, i)) in enumerate(zip(owners, cells, strict=True)):
                assert np.array_equal(got[row], known.states[i][name]), (name, cells[row], got[row])
        for name in batch.sequences:
            got = plain(batch.sequences[name])
            assert got.shape[:2] == (len(cells), UNROLL)
            for row, (known, (_, i)) in enumerate(zip(owners, cells, strict=True)):
                assert np.array_equal(got[row], known.cut(name, i)), (name, cells[row])
        if "label" in batch.context:
            labels = [int(known.told["label"]) for known in owners]
            assert plain(batch.context["label"]).tolist() == labels
        with self._lock:
            self.seen += cells
            self.batches.append(cells)
        after = [(known, i) for known, (_, i) in zip(owners, cells, strict=True)]
        return {
            name: stacked(name, [known.states[i + 1][name] for known, i in after]) for name in names
        }

    def chains(self, cells: Iterable[Cell]) -> list[int]:
        """Return the chained states with which these segments must begin."""
        return [self.of[key].states[i]["chain"] for key, i in cells]

    @property
    def examples(self) -> list[Example]:
        return [dict(known.told) for known in self.of.values()]

    @property
    def segments(self) -> int:
        """Return the number of segments."""
        return sum(known.count for known in self.of.values())

    def assert_complete(self, cells: Iterable[Cell] | None = None) -> None:
        """Check that every segment came once, in the order of its example."""
        order = defaultdict(list)
        for key, i in self.seen if cells is None else cells:
            order[key].append(i)
        assert order == {key: [*range(known.count)] for key, known in self.of.items()}


def states_in(batch: Any) -> list[str]:
    """Return the names of the states of these feeds that a batch has."""
    names = []
    for name in _STATES:
        with contextlib.suppress(KeyError):
            batch.state(name)
            names.append(name)
    return names


def stacked(name: str, values: list[Any]) -> np.ndarray:
    """Return states of rows as one array."""
    if name == "mark":
        out = np.empty((len(values), 2), object)
        for row, pair in enumerate(values):
            out[row] = pair
        return out
    return np.array(values, np.int32) if name == "chain" else np.stack(values)


def cells_of(batch: Any) -> list[Cell]:
    """Return the original key and the segment's number of each row."""
    keys = plain(batch.original_key).tolist()
    return list(zip(keys, plain(batch.sequence).tolist(), strict=True))


def save_all(batch: Any, states: Mapping[str, Any]) -> None:
    for name, value in states.items():
        batch.save_state(name, value)


def train(feed: Any, ledger: Ledger, steps: int | None = None) -> int:
    """Train to the end of the feed, or for some steps; return the number of steps."""
    done = 0
    while done != steps:
        batch = next(feed, None)
        if batch is None:
            break
        save_all(batch, ledger.check(batch))
        done += 1
    return done


def full(examples: Sequence[Example], **changes: Any) -> hs.Pipeline:
    """A feed of all sequences, contexts and four states."""
    options = {
        "input_key": "key",
        "input_sequences": ["words", "steps", "on"],
        "input_context": ["label", "who"],
        "initial_states": {
            "chain": "origin",
            "mark": list(_MARK),
            "sums": hs.zeros((2, 1), "float32"),
            "flags": np.array([True, False, False]),
        },
        "num_unroll": UNROLL,
        "batch_size": 4,
        "capacity": 8,
        **changes,
    }
    return hs.from_examples(list(examples)).batch_sequences_with_states(**options)


def chained(examples: Sequence[Example], **changes: Any) -> hs.Pipeline:
    """A feed of one sequence and the chained state."""
    few = [{name: e[name] for name in ("key", "steps", "label", "origin", "n")} for e in examples]
    options = {
        "input_sequences": ["steps"],
        "input_context": ["label"],
        "initial_states": {"chain": "origin"},
    }
    return full(few, **{**options, **changes})


def at_once(work: Sequence[Callable[[], Any]], timeout_s: float = 60) -> list[Any]:
    """Run functions at once; return the result of each."""
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result(timeout_s) for future in [pool.submit(one) for one in work]]


def to_the_end(feed: Any, step: Callable[[Any], None]) -> list[headrace.HeadraceError]:
    """Train to the end of a feed; return the refusals."""
    refused: list[headrace.HeadraceError] = []
    while True:
        try:
            batch = next(feed, None)
            if batch is None:
                return refused
            step(batch)
        except (headrace.Cancelled, headrace.StaleLease, headrace.StateError) as error:
            refused.append(error)
