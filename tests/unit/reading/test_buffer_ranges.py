"""Stretches of buffers are found and moved whole, long ones and short ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.reading.buffer_ranges import gather, join_buffers, ranges

_DATA = np.arange(5000).astype(np.uint8)
_PIECES = st.lists(st.tuples(st.integers(0, 2500), st.integers(0, 2500)), max_size=6)


def _arrays(pieces: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pieces, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(_PIECES)
def test_gathered_stretches_are_those_of_the_buffer(pieces: list[tuple[int, int]]) -> None:
    want = b"".join(_DATA[a : a + n].tobytes() for a, n in pieces)
    assert gather(_DATA, *_arrays(pieces)).tobytes() == want


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), max_size=6))
def test_ranges_count_up_from_each_start(pieces: list[tuple[int, int]]) -> None:
    want = [a + i for a, n in pieces for i in range(n)]
    assert ranges(*_arrays(pieces)).tolist() == want


@given(st.lists(_PIECES, min_size=1, max_size=4))
def test_joined_buffers_hold_every_stretch_at_its_offset(
    parts: list[list[tuple[int, int]]],
) -> None:
    arrays = [_arrays(part) for part in parts]
    data, starts = join_buffers(
        [_DATA.copy() for _ in parts], [a for a, _ in arrays], [n for _, n in arrays]
    )
    sizes = np.concatenate([n for _, n in arrays])
    got = [data[a : a + n].tobytes() for a, n in zip(starts, sizes, strict=True)]
    assert got == [_DATA[a : a + n].tobytes() for part in parts for a, n in part]
