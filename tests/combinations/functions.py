"""Examples and functions of the declarations, which workers import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import headrace_server as hs

Example = dict[str, Any]

#: Columns of examples with one row, as files declare them.
FEATURES = {
    "key": hs.scalar("bytes"),
    "x": hs.sequence("float32"),
    "h": hs.fixed("float32", (2,)),
    **{name: hs.scalar("int64") for name in "tnz"},
    "y": hs.scalar("int32"),
    "w": hs.scalar("float32"),
    "p": hs.scalar("float64"),
    "c": hs.scalar("bool"),
}
_ENDINGS = {"key": "", **dict.fromkeys("tnz", ".cls")}
#: The same columns as a tar file names them.
IN_TAR = {f"{name}{_ENDINGS.get(name, '.npy')}": one for name, one in FEATURES.items()}


def examples(count: int, batched: bool = False, first: int = 0) -> list[Example]:
    """Return the examples from ``first`` on: key, sequence, class, weights, a state and more.

    ``batched``: each with one to three rows.  All lengths are even.
    """
    numbers = range(first, first + count)
    return [_rows(n) if batched else _example(n, 2 + 2 * (n % 3)) for n in numbers]


def _example(n: int, steps: int) -> Example:
    return {
        "key": b"k%d" % n,
        "x": np.arange(n, n + steps, dtype=np.float32),
        "t": np.int64(steps - n % 2),
        "n": np.int64(n),
        "y": np.int32(n * 7 % 3),
        "w": np.float32(0.5 + n % 4),
        "p": np.float64(n % 5 / 4),
        "c": np.bool_(n % 3 > 0),
        "h": np.array([n, -n], np.float32),
        "z": np.int64(-n),
    }


def _rows(n: int) -> Example:
    rows = [_example(3 * n + i, 2 + 2 * (n % 3)) for i in range(1 + n % 3)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    keys = np.empty(len(rows), object)
    keys[:] = columns.pop("key")
    return {"key": keys, **{name: np.stack(column) for name, column in columns.items()}}


def stream(count: int, batched: bool = False, first: int = 0) -> Iterator[Example]:
    """Yield the same examples: a source that is read forward."""
    yield from examples(count, batched, first)


class Examples:
    """The same examples as an object that is read by number, many at once."""

    def __init__(self, count: int, first: int = 0) -> None:
        self._count, self._first = count, first

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Example:
        return _example(self._first + number, 2 + 2 * ((self._first + number) % 3))

    def __getitems__(self, numbers: list[int]) -> list[Example]:
        return [self[number] for number in numbers]


def without_endings(example: Example) -> Example:
    return {name.partition(".")[0]: value for name, value in example.items()}


def heavier(example: Example) -> Example:
    return {**example, "w": example["w"] + np.float32(1)}


def shaken(example: Example, rng: Any) -> Example:
    return {**example, "w": np.float32(rng.integers(1, 4))}


def doubled(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "w": columns["w"] * np.float32(2)}


def shaken_together(columns: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {**columns, "w": rng.integers(1, 4, len(columns["w"])).astype(np.float32)}


def pieces(example: Example) -> Iterator[Example]:
    for i in range(int(example["n"]) % 3):
        yield {**example, "w": example["w"] + np.float32(i)}


def is_light(example: Example) -> bool:
    return bool(example["w"] < 3.4)


def likely(columns: dict[str, Any]) -> Any:
    return np.minimum(columns["w"] / 4, 1)


def thirds(columns: dict[str, Any]) -> Any:
    return columns["n"] % 3


def _lane(lanes: int) -> Any:
    """Return a function that assigns an example to one of so many lanes."""
    return lambda columns: columns["n"] * 7 // 5 % lanes


lane_1, lane_2, lane_3, lane_4, lane_6, lane_8, lane_9, lane_12 = map(
    _lane, (1, 2, 3, 4, 6, 8, 9, 12)
)


def other_key(example: Example, rng: Any) -> Example:
    """Give each copy of an example a key of its own."""
    return {**example, "key": example["key"] + b"-%d" % rng.integers(1 << 30)}


def summed(sequences: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """Make of a segment a number, a text of another length for each, and an array."""
    x = sequences["x"]
    text = b"%d" % x.sum() + b"".join(
        b"+%r" % np.asarray(context[name]).tolist() for name in sorted(context)
    )
    return {"sum": x.sum(), "text": text, "names": np.full((len(sequences), 2), x[:1])}


def found(sequences: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """Make of a segment as many pairs and names as its first step says."""
    x = sequences["x"]
    names = np.array([b"%d" % i * i for i in range(int(x[0]) % 4)], object)
    return {"pairs": np.full((len(names), 2), x.sum()), "names": names, "sum": x.sum()}


#: Schemas of functions of segments, where results vary.
SCHEMAS = {
    f"{__name__}:found": {
        "pairs": hs.sequence("float32", (2,)),
        "names": hs.sequence("bytes"),
        "sum": hs.scalar("float32"),
    }
}


def shaken_steps(sequences: dict[str, Any], context: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {**sequences, "x": sequences["x"] + rng.integers(9, size=2)[:1].astype(np.float32)}
