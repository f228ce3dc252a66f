"""Examples from functions: sequences by number, iterables by count, shards as streams."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace_proto.errors import DataError
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import BadRecords, RowsAtHand
from tests.unit.readers import all_of, examples, opened

HERE = f"{__name__}:"


def row(i: int) -> dict[str, Any]:
    return {"n": i, "x": np.full(i % 4, i, np.float32)}


def want(n: int, step: int = 1, first: int = 0) -> list[dict[str, Any]]:
    return [{"n": i, "x": [float(i)] * (i % 4)} for i in range(first, n, step)]


def generated(n: int, *, scale: int = 1) -> Iterator[dict[str, Any]]:
    return (row(i) for i in range(n * scale))


def listed(n: int) -> list[Any]:
    return [row(i) for i in range(n)]


def sharded(n: int, shard: int, num_shards: int = 1) -> Iterator[Any]:
    return (row(i) for i in range(shard, n, num_shards))


def sharded_alone(shard: int) -> Iterator[Any]:
    return (row(shard) for _ in range(2))


def broken(at: int) -> Iterator[Any]:
    for i in range(9):
        if i == at:
            raise KeyError("no such thing")
        yield row(i)


def forking() -> Iterator[Any]:
    yield {"child": os.fork()}


#: The examples of each call of ``changing``, from the first on.
CALLS: list[Iterator[Any]] = []


def changing() -> Iterator[Any]:
    return CALLS.pop(0)


def indexed(name: str, *args: Any, **more: Any) -> Any:
    options = {"function": HERE + name, "args": list(args), "kwargs": {}, "called": True}
    return opened("indexed", **options, **more)


def test_shards_are_streams():
    reader = opened("function", function=HERE + "sharded", args=[10], shards=3)
    assert reader.streams == 3
    assert all_of(reader) == want(10, 3, 0) + want(10, 3, 1) + want(10, 3, 2)
    reader = opened("function", function=HERE + "sharded_alone", shards=2)
    assert [r["n"] for r in all_of(reader)] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="takes no parameter 'shard', which shards=2 needs"):
        opened("function", function=HERE + "generated", args=[1], shards=2)


class Endless:
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        return row(i % 8)


@pytest.mark.parametrize("length", [2**50, sys.maxsize])
def test_a_sequence_may_be_longer_than_any_memory(length):
    reader = indexed("Endless", length)
    assert reader.length == length
    chunk = reader.take(np.array([2**49 + 3, 1, length - 1]))
    assert [r["n"] for r in examples(chunk)] == [3, 1, (length - 1) % 8]


class Together(list):
    """Rows that are negative where they are read one by one; number 5 can not be read."""

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        if 5 in numbers:
            raise OSError("one of them is damaged")
        return [super(Together, self).__getitem__(number) for number in numbers]

    def __getitem__(self, number: Any) -> Any:
        if number == 5:
            raise OSError("it is damaged")
        return {**super().__getitem__(number), "n": -number}


def together(n: int) -> Together:
    return Together(listed(n))


def test_an_object_with_getitems_is_read_by_lists_and_a_row_that_fails_is_named():
    bad = BadRecords(skip=True)
    reader = indexed("together", 8, bad=bad)
    assert examples(reader.take(np.array([6, 2]))) == [want(8)[6], want(8)[2]]
    assert [r["n"] for r in examples(reader.take(slice(4, 8)))] == [-4, -6, -7]
    assert bad.counts == {"corrupt_record": 1}


class Meeting(list):
    """Rows of which no one can be read before four are asked for."""

    def __init__(self) -> None:
        super().__init__(row(i) for i in range(4))
        self.barrier = threading.Barrier(4, timeout=60)

    def __getitem__(self, number: Any) -> Any:
        self.barrier.wait()
        return super().__getitem__(number)


def test_io_threads_read_rows_at_once_and_keep_their_order():
    features = {"n": Feature("scalar", "int64"), "x": Feature("sequence", "float32")}
    reader = indexed("Meeting", features=features, io_threads=4)
    assert examples(reader.take(slice(0, 4))) == want(4)


@pytest.mark.parametrize("at", [1, 8])
def test_an_exception_of_a_generator_is_reported_and_ends_the_stream(at):
    reader = opened("function", function=HERE + "broken", args=[at])
    with pytest.raises(
        DataError, match=rf"broken, record {at}: it raised KeyError: 'no such"
    ) as seen:
        reader.read(0, b"", 20)
    assert str(seen.value).endswith("; nothing after that can be read")
    bad = BadRecords(skip=True)
    reader = opened("function", function=HERE + "broken", args=[at], bad=bad)
    chunk, end = reader.read(0, b"", 20)
    assert end is None
    assert examples(chunk) == want(at)
    assert bad.counts == {"corrupt_record": 1}


def with_texts(n: int) -> Iterator[Any]:
    for i in range(n):
        words = [b"w" * (i % 3), "x"][: i % 3]
        yield 7 if i % 5 == 2 else {**row(i), "t": b"%d" % i, "words": words, "h": [[1.0] * i] * 2}


TEXTS = {
    "n": Feature("scalar", "int64"),
    "x": Feature("sequence", "float32"),
    "t": Feature("scalar", "bytes"),
    "words": Feature("sequence", "bytes"),
    "h": Feature("ragged", "float64", (None, None)),
}


@pytest.mark.parametrize("step", [1, 7, 64])
def test_a_replay_goes_on_wherever_reads_were_cut(step):
    """The bad examples before that place are counted once: where they were first read."""
    CALLS[:] = [with_texts(100) for _ in range(9)]
    given: dict[str, Any] = {"function": HERE + "changing", "features": TEXTS}
    first = opened("function", bad=BadRecords(skip=True), **given)
    position, places = b"", []
    while len(places) < 42 // step + 1:
        _, position = first.read(0, position, step)
        places.append(position)
    bad = BadRecords(skip=True)
    rest, _ = opened("function", bad=bad, **given).read(0, places[-1], 200)
    assert [one["n"] for one in examples(rest)] == [
        i for i in range(len(places) * step, 100) if i % 5 != 2
    ]
    assert sum(bad.counts.values()) == sum(i % 5 == 2 for i in range(len(places) * step, 100))
    again = opened("function", bad=BadRecords(skip=True), **given)
    _, there = again.read(0, b"", len(places) * step)
    assert there == places[-1], "a position does not depend on the reads before it"


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    ("others", "what", "taken"),
    [
        ([row(i) for i in range(300, 900)], "its first example is another one", 1),
        ([row(i) for i in range(100)], "it ends 200 examples before that", 100),
        ([row(i + (i == 270)) for i in range(900)], "not all of them are the same", 300),
        ([{**row(i), "x": np.full(i % 4, i + 1, np.float32)} for i in range(900)], "not all", 300),
        (None, r"it raised KeyError: 'no such thing'", 5),
    ],
)
def test_other_examples_of_a_later_call_stop_the_feed(others, what, taken, skip):
    took = 0

    def counted() -> Iterator[Any]:
        nonlocal took
        for one in broken(5) if others is None else others:
            took += 1
            yield one

    CALLS[:] = [generated(900), counted()]
    features = {"n": Feature("scalar", "int64"), "x": Feature("sequence", "float32")}
    given: dict[str, Any] = {"function": HERE + "changing", "features": features}
    _, position = opened("function", **given).read(0, b"", 300)
    bad = BadRecords(skip=skip)
    text = rf"changing was called again, to go on after 300 examples, .*: {what}.*read these: hs\."
    reader = opened("function", bad=bad, **given)
    with pytest.raises(DataError, match=text):
        reader.read(0, position, 10)
    assert not bad.counts
    assert took <= taken + 1, "the thread takes at most one of a queue beyond the other one"


def test_a_replay_is_told_and_uses_the_examples_that_show_the_columns():
    CALLS[:] = [generated(900), generated(900)]
    _, position = opened("function", function=HERE + "changing").read(0, b"", 800)
    told = list[str]()
    bad = BadRecords(hand=RowsAtHand(at=told.append))
    reader = opened("function", function=HERE + "changing", bad=bad)
    assert examples(reader.read(0, position, 10)[0]) == want(810, first=800)
    assert told[0].endswith("changing, replaying 0 of 800 examples")
    assert re.fullmatch(r".*changing, replaying \d+ of 800 examples", told[-1])
    assert not CALLS, "the function was called once"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_a_generator_forks_ends_where_it_yields():
    features = {"child": Feature("scalar", "int64")}
    chunk, _ = opened("function", function=HERE + "forking", features=features).read(0, b"", 1)
    (row,) = examples(chunk)
    assert os.waitstatus_to_exitcode(os.waitpid(row["child"], 0)[1]) == 1
