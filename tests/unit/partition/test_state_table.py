"""The next segment gets the state saved after the last one, for any trainer and any backlog."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_server.leasing.words import ANYONE, Outlook
from headrace_server.making.segment_cutting import StateSource
from headrace_server.making.state_table import HandedStates, state_columns, stored_states
from headrace_server.pipeline.builder import Pipeline
from headrace_server.shaping.stored_state import Examples
from tests.footprint import entries
from tests.unit.segment_player import Player, Taken

#: Name → dtype and shape of every state.
KINDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "byte": ("int8", (3,)),
    "flag": ("bool", ()),
    "half": ("bfloat16", (2, 2)),
    "number": ("float32", ()),
    "own": ("float64", (2,)),
    "owntext": (BYTES, ()),
    "text": (BYTES, (2,)),
}
INITIAL: dict[str, Any] = {
    "byte": np.array([1, -2, 3], np.int8),
    "flag": True,
    "half": np.full((2, 2), 1.5, ml_dtypes.bfloat16),
    "number": hs.zeros(()),
    "own": "start",
    "owntext": "word",
    "text": [b"a\0", b""],
}


def value(name: str, key: bytes, segment: int) -> np.ndarray:
    """The state after a segment: unlike for all names, keys and segments."""
    dtype, shape = KINDS[name]
    seed = zlib.crc32(b"%s %s %d" % (name.encode(), key, segment))
    if dtype == BYTES:
        out = np.empty(shape, object)
        out[...] = b"%x" % seed * (seed % 3)
        return out
    return np.asarray(np.full(shape, seed % 251) % (2 if dtype == "bool" else 100)).astype(
        numpy_dtype(dtype)
    )


def initial(name: str, key: bytes) -> Any:
    """Return the states of the first segment."""
    number = int(key[1:])
    if name == "own":
        return np.array([number, -number], np.float64)
    if name == "owntext":
        return b"w" * (number % 5)
    if name == "number":
        return np.float32(0)
    return np.asarray(INITIAL[name], object if name == "text" else None)


def seen(name: str, key: bytes, segment: int) -> Any:
    return value(name, key, segment - 1) if segment else initial(name, key)


def states_after(taken: Taken, names: Any = KINDS) -> dict[str, np.ndarray]:
    """Return the states that a trainer saves for all rows of a batch."""
    out = {}
    for name in names:
        dtype, shape = KINDS[name]
        array = np.empty((len(taken), *shape), object if dtype == BYTES else numpy_dtype(dtype))
        for row, (key, segment, _) in enumerate(taken.rows):
            array[row] = value(name, key, segment)[()]
        out[name] = array
    return out


def source(steps: list[int]) -> Pipeline:
    features = {
        "k": hs.scalar("bytes"),
        "x": hs.sequence("int8"),
        "start": hs.fixed("float64", (2,)),
        "word": hs.scalar("bytes"),
    }
    rows = [
        {"k": b"k%d" % i, "x": np.zeros(t, np.int8), "start": [i, -i], "word": b"w" * (i % 5)}
        for i, t in enumerate(steps)
    ]
    return hs.from_examples(rows, features)


def stateful(
    steps: list[int], batch_size: int, states: Mapping[str, Any] = INITIAL, **more: Any
) -> Pipeline:
    return source(steps).batch_sequences_with_states(
        "k", ["x"], [], None, states, 1, batch_size, **more
    )


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_tables_grow_while_batches_are_out_and_lose_nothing(order: str, tmp_path: Path):
    steps = [1 + i % 3 for i in range(6000)]
    states = {name: INITIAL[name] for name in ("own", "text")}
    player = Player(stateful(steps, 500, states, order=order, capacity=None), tmp_path, 4096)
    random = Random(4)
    out: list[Taken] = []
    rows, sizes = 0, list[int]()
    while True:
        trainers = 9 if order == "lanes" and len(sizes) > 2 else 1
        slot = b"trainer %d" % random.randrange(trainers) if order == "lanes" else ANYONE
        taken = player.take(slot)
        if taken is Outlook.ENDED:
            break
        if isinstance(taken, Taken):
            out.append(taken)
            rows += len(taken)
        if out and (taken is Outlook.IDLE or len(out) > min(len(sizes), 8)):
            done = out.pop(random.randrange(len(out)))
            for name in states:
                for row, (key, segment, _) in enumerate(done.rows):
                    assert np.array_equal(done["state:" + name][row], seen(name, key, segment))
            assert player.save(done, states_after(done, states)) is None
            sizes.append(player.feed.cutting.machine.entries.size)
    assert rows == sum(steps)
    assert sizes[0] < sizes[-1], "they grew after states were saved"


# States at the trainer


def at_trainer(
    steps: list[int], batch_size: int, states: Mapping[str, Any] = INITIAL, **more: Any
) -> Pipeline:
    return stateful(steps, batch_size, states, order="lanes", state_placement="trainer", **more)


def test_flushes_that_are_too_old_or_of_rows_that_are_none_change_nothing(tmp_path: Path):
    player = Player(at_trainer([9, 1, 9], 3), tmp_path)
    kept = entries(player.feed.states)
    first, second = player.take(b"one"), player.take(b"one")

    def flush(taken: Taken, rows: list[int], given: Taken = first) -> None:
        states = states_after(given)
        player.flush(taken, rows, {name: array[: len(rows)] for name, array in states.items()})

    flush(first, [0])  # before it is saved
    assert player.save(first) is None and player.save(second) is None
    flush(first, [0])  # a later one is saved
    flush(second, [0, 3])
    flush(second, [-1])
    flush(second, [])
    assert entries(player.feed.states) == kept
    flush(second, [0, 1], second)
    assert entries(player.feed.states) > kept
    player.feed.machine.leave(b"one")
    flush(second, [0])  # its trainer is gone
    other = player.take(b"other")
    assert other.rows == [(b"k0", 2, 9), (b"k2", 2, 9)] and other["@starts"].tolist() == [0, 1]
    for name in KINDS:
        for row, which in enumerate(other["@state_of"].tolist()):
            key, segment, _ = other.rows[row]
            assert np.array_equal(other["state:" + name][which], seen(name, key, segment)), name


# The tables by themselves


def plain(name: str, kind: str, dtype: str, shape: list[int], value: Any) -> StateSource:
    return StateSource.of(
        {"name": name, "kind": kind, "dtype": dtype, "shape": shape, "value": value}
    )


@pytest.mark.parametrize("texts", [False, True])
def test_states_are_stored_and_read_back_whole_or_some_of_them(texts: bool):
    declared = [plain("n", "zeros", "int16", [2], None), plain("x", "zeros", "float64", [], None)]
    arrays = [np.arange(8, dtype=np.int16).reshape(4, 2), np.arange(4) * 0.5]
    if texts:
        declared.append(plain("t", "zeros", BYTES, [2], None))
        arrays.append(np.array([[b"a", b""], [b"bc", b"d"], [b"", b""], [b"e", b"f"]], object))
    for rows in ([0, 1, 2, 3], [3, 1]):
        at = np.array(rows, np.int64)
        columns = state_columns([array[at] for array in arrays])
        numbers = np.zeros((7, len(rows)), np.int64)
        keys = [(0, b"")] * len(rows)
        stored = Examples(numbers, keys, columns)
        as_one = Examples(numbers, keys, [stored.packed()])
        for examples in (stored, as_one):
            back = stored_states(declared, examples)
            for array, one in zip(arrays, back, strict=True):
                assert one.dtype == array.dtype and one.tolist() == array[at].tolist()
    wrong = Examples(np.zeros((6, 1), np.int64), [(0, b"")], [[b"123"]])
    with pytest.raises((ValueError, TypeError)):
        stored_states(declared, wrong)


def test_handed_states_do_not_keep_the_block_in_which_they_came():
    handed = HandedStates([plain("n", "zeros", "int16", [2], None)])
    before = entries(handed)
    block = np.array([[1, 2], [3, 4]], np.int16)
    handed.put(np.array([5]), [block[1:]])
    held = weakref.ref(block)
    del block
    assert held() is None
    row = {"starts": np.array([0]), "first": np.array([1]), "entries": np.array([5])}
    batch: Any = SimpleNamespace(**row)
    columns, rows = handed.columns(batch, {})
    assert rows == 1 and columns["state:n"].tolist()[-1] == [3, 4]
    handed.forget(np.array([4, 5]))
    assert entries(handed) != before
    handed.forget(np.array([4]))
    assert entries(handed) == before


def test_constants_are_handed_once_for_all_rows_that_begin_with_them():
    handed = HandedStates(
        [plain("n", "constant", "int16", [2], np.array([7, 8], np.int16).tobytes())]
    )
    rows = {"starts": np.arange(3), "first": np.zeros(3, np.int64), "entries": np.arange(3)}
    batch: Any = SimpleNamespace(**rows, chunks=np.zeros(3, np.int64), rows=np.arange(3))
    offers: Any = {0: None}
    columns, count = handed.columns(batch, offers)
    assert count == 1 and columns["@state_of"].tolist() == [0, 0, 0]
    assert columns["state:n"].tolist() == [[7, 8]]
