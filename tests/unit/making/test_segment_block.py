"""Batches of segments in memory: windows, padding, contexts and facts of rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace_server as hs
from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.layout import aligned_bytes, arrange, strings_at
from headrace_proto.schema import Field
from headrace_server.leasing.protocol import Outlook
from headrace_server.making.segment_block import write_strings
from headrace_server.pipeline.builder import Pipeline
from headrace_server.shaping.admission import FIRST_INDEX
from tests.unit.segment_player import Player, Taken, same_states

STATES = {"s": hs.zeros((2,))}
DTYPES = [
    "float32",
    "float64",
    "float16",
    "int64",
    "int8",
    "uint16",
    "bool",
    "complex64",
    "complex128",
    "bfloat16",
    "bytes",
]


def texts(shape: tuple[int, ...], seed: int) -> np.ndarray:
    out = np.empty(shape, object)
    flat = [b"%d\0" % (seed + i) * ((seed + i) % 4) for i in range(out.size)]
    out.reshape(-1)[:] = flat
    return out


def values(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    if dtype == BYTES:
        return texts(shape, seed)
    numbers = np.arange(seed + 1, seed + 1 + int(np.prod(shape))).reshape(shape) % 100
    if dtype.startswith("complex"):
        return (numbers + 1j * seed).astype(dtype)
    return numbers.astype(numpy_dtype(dtype))


def window(sequence: np.ndarray, segment: int, unroll: int) -> np.ndarray:
    """The steps of a segment by definition, filled up with what is zero."""
    part = sequence[segment * unroll : (segment + 1) * unroll]
    shape = (unroll - len(part), *sequence.shape[1:])
    if sequence.dtype == object:
        return np.concatenate([part, np.full(shape, b"", object)])
    return np.concatenate([part, np.zeros(shape, sequence.dtype)])


def assert_same(got: np.ndarray, want: Any) -> None:
    assert got.dtype == np.asarray(want).dtype and got.shape == np.shape(want)
    assert np.array_equal(got, want)


def check(
    batches: list[Taken],
    examples: list[Mapping[str, Any]],
    unroll: int,
    sequences: list[str],
    context: list[str],
    length: str | None = None,
) -> None:
    """Check each row against the definition, and that every segment came once and in order."""
    numbers = {example["k"]: i for i, example in enumerate(examples)}
    seen: dict[bytes, int] = {}
    for taken in batches:
        for row, (key, segment, count) in enumerate(taken.rows):
            example = examples[numbers[key]]
            steps = len(example[sequences[0]])
            total = steps if length is None else int(example[length])
            assert segment == seen.get(key, 0)
            seen[key] = segment + 1
            assert count == -(-steps // unroll)
            assert taken["@total_length"][row] == total
            assert taken["@length"][row] == min(unroll, max(0, total - segment * unroll))
            assert taken["@insertion_index"][row] == FIRST_INDEX + numbers[key]
            for name in sequences:
                want = window(np.asarray(example[name]), segment, unroll)
                assert_same(taken["sequences:" + name][row], want)
            for name in context:
                want = np.asarray([example[name]], object if name == "text" else None)
                assert_same(taken["context:" + name][row : row + 1], want)
    assert seen == {e["k"]: -(-len(e[sequences[0]]) // unroll) for e in examples}


def played(pipeline: Pipeline, directory: Path) -> tuple[Player, list[Taken]]:
    player = Player(pipeline, directory)
    batches, end = player.play(same_states)
    assert end is Outlook.ENDED and player.slab.used_bytes == 0
    return player, batches


@pytest.mark.parametrize("inner", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_of_every_dtype_are_exact_and_filled_up_with_zeros(
    dtype: str, inner: tuple[int, ...], tmp_path: Path
):
    steps = [1, 7, 3, 12, 4, 9, 2]
    examples = [
        {"k": b"key\0%d" % i, "x": values(dtype, (t, *inner), 10 * i)} for i, t in enumerate(steps)
    ]
    features = {"k": hs.scalar("bytes"), "x": hs.sequence(dtype, inner)}
    pipeline = hs.from_examples(examples, features).batch_sequences_with_states(
        "k", ["x"], [], None, STATES, 4, 3
    )
    player, batches = played(pipeline, tmp_path)
    assert player.feed.schema["sequences:x"] == Field(dtype, (None, 4, *inner))
    assert [len(taken) for taken in batches] == [3, 3, 3, 2, 1]
    for taken in batches:
        assert not taken["state:s"].any()
    check(batches, examples, 4, ["x"], [])


def test_contexts_of_every_kind_are_repeated_in_each_segment(tmp_path: Path):
    examples = [
        {
            "k": b"%d" % i,
            "x": np.zeros(5, np.float32),
            "n": np.int32(i),
            "flag": bool(i % 2),
            "m": np.full((2, 3), i, np.float16),
            "b": np.full(2, i, ml_dtypes.bfloat16),
            "text": b"t" * i,
            "many": texts((2, 2), i),
        }
        for i in range(7)
    ]
    features = {
        "k": hs.scalar("bytes"),
        "x": hs.sequence("float32"),
        "n": hs.scalar("int32"),
        "flag": hs.scalar("bool"),
        "m": hs.fixed("float16", (2, 3)),
        "b": hs.fixed("bfloat16", (2,)),
        "text": hs.scalar("bytes"),
        "many": hs.fixed("bytes", (2, 2)),
    }
    context = ["b", "flag", "m", "many", "n", "text"]
    pipeline = hs.from_examples(examples, features).batch_sequences_with_states(
        "k", ["x"], context, None, STATES, 2, 3
    )
    player, batches = played(pipeline, tmp_path)
    assert list(player.feed.schema) == [
        *("@key", "@sequence", "@sequence_count", "@length", "@total_length"),
        *("@insertion_index", "sequences:x", *("context:" + name for name in context), "state:s"),
    ]
    check(batches, examples, 2, ["x"], context)


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_strings_that_were_written_are_read_back(strings: list[bytes]):
    slots, nbytes = arrange([("bool", (1,), 0), (BYTES, (len(strings),), sum(map(len, strings)))])
    block = aligned_bytes(nbytes)
    block[:] = 0xFF
    write_strings(block, slots[1], strings)
    assert strings_at(block, slots[1]).tolist() == strings
    end = slots[1].offset + slots[1].nbytes
    assert (block[end:] == 0xFF).all() and (block[: slots[1].offset] == 0xFF).all()
