"""A function that yields many examples at once gives the same as one that yields them singly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_server.reading.reader import BadRecords
from headrace_server.reading.sources import function as module
from tests.unit.readers import all_of

from .test_cut import opened

SIZES = (3, 0, 5, 1)
GIVEN: list[Any] = []
CALLS: list[int] = []


def several(shard=0):
    first = 0
    for size in SIZES:
        i = np.arange(first, first + size) + 100 * shard
        yield {"i": i, "m": np.outer(i, [1.0, 2.0]), "t": [b"t%d" % k for k in i]}
        first += size


def reused():
    i = np.zeros(4, np.int64)
    for k in range(3):
        i[:] = k
        yield {"i": i}


def given():
    for one in GIVEN:
        if isinstance(one, Exception):
            raise one
        yield one


class Jumping:
    def __iter__(self):
        return self.iter_from(0)

    def iter_from(self, n):
        CALLS.append(n)
        return iter([{"i": np.full(2, k)} for k in range(n, 5)])


def jumping():
    return Jumping()


def rows(*batches: Any, features: Any = None, bad: BadRecords | None = None) -> list[Any]:
    GIVEN[:] = batches
    reader = opened(hs.from_function(given, batched=True, features=features), bad)
    chunk, position, found = None, b"", []
    while position is not None:
        chunk, position = reader.read(0, position, 2)
        found += chunk.columns["i"].tolist()
    return found


def test_rows_of_all_batches_come_in_order_from_any_position() -> None:
    reader = opened(hs.from_function(several, batched=True))
    want = [{"i": i, "m": [1.0 * i, 2.0 * i], "t": b"t%d" % i} for i in range(9)]
    assert all_of(reader) == want
    assert {name: str(field) for name, field in reader.fields.items()} == {
        "i": "int64[]",
        "m": "float64[2]",
        "t": "bytes[]",
    }


def test_a_batch_whose_memory_is_filled_again_stays_as_it_was() -> None:
    reader = opened(hs.from_function(reused, batched=True))
    first, position = reader.read(0, b"", 4)
    reader.read(0, position, 9)
    assert first.columns["i"].tolist() == [0] * 4


def test_a_start_in_the_middle_asks_an_object_that_can_jump_for_the_batch() -> None:
    reader = opened(hs.from_function(jumping, batched=True))
    _, position = reader.read(0, b"", 3)
    CALLS.clear()
    features = {"i": hs.scalar("int64")}  # so that no batch has to show them
    other = opened(hs.from_function(jumping, batched=True, features=features))
    assert other.read(0, position, 1)[0].columns["i"].tolist() == [1]
    assert CALLS == [1]


class Odd:
    """A column of three rows, as it says, that gives others."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        for one in self.given:
            if isinstance(one, Exception):
                raise one
            yield one


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"i": Odd(1, RuntimeError("gone"))}, "'i', an Odd, gives no rows: .*RuntimeError, gone"),
        ({"i": Odd(1, 2)}, "'i', an Odd, gives 2 rows, and has the length 3"),
        ([1, 2], r"batch 1: \[1, 2\] is a list, not a dict of columns"),
        ({"i": np.arange(2), "j": np.arange(3)}, "unequal numbers of rows: {'i': 2, 'j': 3}"),
        ({"j": np.arange(2)}, "batch 1: it has no column 'i', only j"),
        ({"i": np.arange(2), "j": np.arange(2)}, "the first batch has no column 'j'"),
        ({"i": np.array(3)}, "column 'i' is .*, an ndarray; it must be an array"),
        ({"i": 3}, "column 'i' is 3, an int; it must be an array"),
        ({"i": "abc"}, "column 'i' is 'abc', a str"),
        ({"i": np.ones((2, 2), int)}, r"batch 1, row 0, column 'i': .*; declare the features"),
        ({"i": np.array([1.5])}, "batch 1, row 0, column 'i': .*1.5"),
        ({}, "it has 0 columns"),
        ({7: np.arange(2)}, "a column named 7"),
        (RuntimeError("no more"), "batch 1: it raised RuntimeError: no more.*; nothing after that"),
    ],
)
def test_a_wrong_batch_is_bad_and_the_ones_around_it_are_not(wrong: Any, text: str) -> None:
    good = {"i": np.arange(3)}
    with pytest.raises(DataError, match=rf"test_function_batches:given.*{text}"):
        rows(good, wrong)
    bad = BadRecords(skip=True)
    after = [] if isinstance(wrong, Exception) else [0, 1, 2]
    assert rows(good, wrong, good, bad=bad) == [0, 1, 2, *after]
    assert sum(bad.counts.values()) >= 1


def test_a_batch_of_too_many_rows_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 4)
    with pytest.raises(DataError, match="it has 5 rows; at most 4 can be in a batch"):
        rows({"i": np.arange(5)})
