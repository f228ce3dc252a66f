"""Batches of segments in memory: windows, padding, contexts and facts of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.schema import Field
from headrace_server.leasing.words import Outlook
from tests.unit.segment_player import Player, no_states, same_states

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


@pytest.mark.parametrize("inner", [(), (3,), (2, 2)])
def test_values_of_every_dtype_are_exact_and_windows_are_filled_up_with_zeros(
    inner: tuple[int, ...], tmp_path: Path
):
    steps = [1, 7, 3, 12, 4, 9, 2]
    examples = [
        {
            "k": b"key\0%d" % i,
            **{f"x {dtype}": values(dtype, (t, *inner), 10 * i) for dtype in DTYPES},
            **{f"c {dtype}": values(dtype, inner, i) for dtype in DTYPES},
        }
        for i, t in enumerate(steps)
    ]
    sequences, context = ([f"{of} {dtype}" for dtype in DTYPES] for of in "xc")
    features = {
        "k": hs.scalar("bytes"),
        **{f"x {dtype}": hs.sequence(dtype, inner) for dtype in DTYPES},
        **{f"c {dtype}": hs.fixed(dtype, inner) for dtype in DTYPES},
    }
    pipeline = hs.from_examples(examples, features).batch_sequences_with_states(
        "k", sequences, context, None, STATES, 4, 3
    )
    player = Player(pipeline, tmp_path)
    batches, end = player.play(same_states)
    assert end is Outlook.ENDED and player.slab.used_bytes == 0
    assert [len(taken) for taken in batches] == [3, 3, 3, 2, 1]
    for dtype in DTYPES:
        assert player.feed.schema[f"sequences:x {dtype}"] == Field(dtype, (None, 4, *inner))
    for taken in batches:
        assert not taken["state:s"].any()
        for row, (key, segment, _) in enumerate(taken.rows):
            example = examples[int(key[4:])]
            for name in sequences:
                assert_same(taken["sequences:" + name][row], window(example[name], segment, 4))
            for name in context:
                assert_same(taken["context:" + name][row : row + 1], example[name][None])


@pytest.mark.parametrize(
    "cut",
    [
        {"left": 2, "right": 3, "stride": 3, "phase": "random"},
        {"left": 1, "right": 1},
        {"stride": 2},
        {"pack": True, "order": "lanes", "allow_small_batch": True},
    ],
)
def test_steps_of_strings_lie_where_those_of_numbers_do(cut: dict[str, Any], tmp_path: Path):
    steps = [1, 9, 4, 17, 5, 2, 30, 8]
    numbers = [np.arange(1, t + 1) + 100 * i for i, t in enumerate(steps)]
    examples = [
        {"k": b"%d" % i, "n": n, "s": [b"%d" % x for x in n.tolist()]}
        for i, n in enumerate(numbers)
    ]
    features = {"k": hs.scalar("bytes"), "n": hs.sequence("int64"), "s": hs.sequence("bytes")}
    pipeline = hs.from_examples(examples, features).batch_sequences_with_states(
        "k", ["n", "s"], [], None, STATES, 5, 2, **cut
    )
    batches, end = Player(pipeline, tmp_path).play(same_states)
    assert end is Outlook.ENDED and len(batches) > 4
    for taken in batches:
        texts = taken["sequences:s"].reshape(-1).tolist()
        assert [int(text or 0) for text in texts] == taken["sequences:n"].reshape(-1).tolist()


@pytest.mark.parametrize(
    "cut",
    [
        {"left": 2, "right": 3, "stride": 3, "phase": "random", "order": "lanes"},
        {"right": 1, "order": "lanes", "mask": True, "padding_values": {"n": -1}},
        {"stride": 2, "order": "lanes", "allow_small_batch": True},
        {"order": "lanes", "initial_states": STATES, "state_placement": "trainer"},
    ],
)
def test_batches_that_are_made_in_one_step_are_those_made_alone(
    cut: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They are gathered together, over the borders of chunks and at both ends of their memory."""
    monkeypatch.setattr("headrace_server.reading.intake.Intake.limit", lambda self, most: 6)
    steps = [1, 9, 4, 17, 5, 2, 30, 8, 3, 3, 12, 6, 1, 14, 20]
    numbers = [np.arange(1, t + 1) + 100 * i for i, t in enumerate(steps)]
    examples = [
        {"k": b"%d" % i * (i % 3 + 1), "n": n, "s": [b"%d" % x for x in n.tolist()], "c": i}
        for i, n in enumerate(numbers)
    ]
    features = {
        "k": hs.scalar("bytes"), "n": hs.sequence("int64"), "s": hs.sequence("bytes"),
        "c": hs.scalar("int64"),
    }  # fmt: skip
    given = {"initial_states": {}, "num_unroll": 5, "batch_size": 3, **cut}
    pipeline = hs.from_examples(examples, features).batch_sequences_with_states(
        "k", ["n", "s"], ["c"], **given
    )
    alone, together = Player(pipeline, tmp_path), Player(pipeline, tmp_path)
    together.most = 4
    wanted, _ = alone.play(no_states)
    batches, end = together.play(no_states)
    assert end is Outlook.ENDED and together.together > len(batches) // 3
    for taken, want in zip(batches, wanted, strict=True):
        for name, column in want.columns.items():
            assert np.array_equal(taken[name], column), name
