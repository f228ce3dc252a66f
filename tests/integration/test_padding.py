"""Padding values and masks, beyond what the drawn combinations show: strings, several dimensions
that vary, frameworks, and columns that only reading shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace_server as hs

from .serving import connect


def example(i: int) -> dict[str, Any]:
    return {
        "key": f"k{i}",
        "words": [f"{i}/{k}" for k in range(i)],
        "grid": np.full((i, 1 + i % 2, 2), i, np.int16),
        "on": np.ones(i, bool),
    }


EXAMPLES = [example(i) for i in range(1, 4)]
VALUES = {"words": "<pad>", "grid": -1, "on": True}


def test_rows_are_padded_with_values_of_any_dtype():
    pipeline = hs.from_examples(EXAMPLES).batch(
        3, dynamic_pad=True, pad_to={"words": 4}, padding_values=VALUES, mask=True
    )
    with hs.run(pipeline) as server, connect(server) as feed:
        assert feed.schema["grid_mask"].shape == (3, None, None)
        assert feed.schema["words_mask"].shape == (3, 4)
        (batch,) = feed
    for row, given in enumerate(EXAMPLES):
        i = row + 1
        assert batch["words"][row].tolist() == [*map(str.encode, given["words"])] + [b"<pad>"] * (
            4 - i
        )
        real = np.zeros((3, 2), bool)
        real[:i, : 1 + i % 2] = True
        assert (batch["grid_mask"][row] == real).all()
        assert (batch["grid"][row] == np.where(real[..., None], i, -1)).all()
        assert batch["words_mask"][row].tolist() == [k < i for k in range(4)]
    assert batch["on"].all() and batch["on_mask"].sum() == 6
    assert list(batch)[-3:] == ["words_mask", "grid_mask", "on_mask"]


def test_strings_of_segments_are_padded_and_torch_gets_bool_masks():
    torch = pytest.importorskip("torch")
    pipeline = hs.from_examples(EXAMPLES).batch_sequences_with_states(
        "key",
        {"w": "words", "on": "on"},
        [],
        None,
        {"h": hs.zeros((1,))},
        num_unroll=2,
        batch_size=3,
        left=1,
        padding_values={"w": "<pad>"},
        mask=True,
    )
    with hs.run(pipeline) as server, connect(server, framework="torch") as feed:
        batch = next(iter(feed))
        mask = batch.sequences["w_mask"]
        assert mask.dtype == torch.bool and mask.shape == (3, 3)
        assert mask.sum(1).tolist() == (batch.left_length + batch.length).tolist() == [1, 2, 2]
        first = np.array(batch.sequences["w"], object).reshape(3, 3)[0].tolist()
        assert first == [b"<pad>", b"1/0", b"<pad>"]
        assert not batch.sequences["on"][~batch.sequences["on_mask"]].any()
