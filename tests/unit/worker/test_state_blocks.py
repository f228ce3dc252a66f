"""A block that does not fit its description is found before a worker copies from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace_proto.schema import Field
from headrace_server.worker.state_blocks import StateBlocks

BLOCKS = StateBlocks([Field("bytes", ()), Field("float32", (2,))], 1024)
GOOD: list[Any] = [[0, 40, [2]], [64, 16, [2, 2]]]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (GOOD, ""),
        (GOOD[:1], "2 states are saved together"),
        ("ab", "2 states are saved together"),
        ([[0, 40, [3]], GOOD[1]], "a state of shape"),
        ([GOOD[0], [64, 16, [4, 1]]], "a state of shape"),
        ([GOOD[0], [64, 17, [2, 2]]], "described wrongly"),
        ([GOOD[0], [128, 16, [2, 2]]], "described wrongly"),
        ([GOOD[0], [64, 16, [2.0, 2]]], "described wrongly"),
        ([GOOD[0], [64, 16]], "described wrongly"),
        ([GOOD[0], 5], "described wrongly"),
    ],
)
def test_invalid_states_are_refused_by_their_description(columns: Any, words: str):
    fault = BLOCKS.fault_of_columns(2, columns, 80)
    assert words in fault and bool(fault) == bool(words)


def test_columns_that_were_right_are_right_again_for_as_many_rows_and_bytes_only():
    assert [BLOCKS.fault_of_columns(2, GOOD, 80) for _ in range(2)] == ["", ""]
    assert "a state of shape" in BLOCKS.fault_of_columns(3, GOOD, 80)
    assert "described wrongly" in BLOCKS.fault_of_columns(2, GOOD, 64)


def states(offsets: list[int]) -> bytes:
    return np.array(offsets, np.int64).tobytes().ljust(80, b"x")


def test_strings_whose_offsets_lie_are_found_in_the_block():
    assert BLOCKS.fault_of_block(2, GOOD, states([0, 3, 16])) == ""
    assert "offsets" in BLOCKS.fault_of_block(2, GOOD, states([0, 3, 17]))
    assert "offsets" in BLOCKS.fault_of_block(2, GOOD, states([0, -1, 3]))
    assert "2 states" in BLOCKS.fault_of_block(2, [], states([0, 3, 16]))


def test_a_feed_whose_states_are_not_known_yet_takes_no_block():
    assert StateBlocks([], 1024).fault_of_block(2, GOOD, states([0, 3, 16])) == (
        "0 states are saved together"
    )


@pytest.mark.parametrize(("most", "refused"), [(21, False), (20, True)])
def test_strings_count_as_they_are_saved_against_what_one_example_may_have(
    most: int, refused: bool
):
    blocks = StateBlocks([Field("bytes", ()), Field("float32", (2,))], most)
    fault = blocks.fault_of_block(2, GOOD, states([0, 3, 16]))  # 13 bytes and 8 of numbers
    assert ("have 21 bytes, more than the server's max_state_bytes=20" in fault) is refused


def test_an_array_of_strings_in_each_row_counts_whole():
    blocks = StateBlocks([Field("bytes", (2,))], 15)
    columns = [[0, 56, [2, 2]]]
    block = np.array([0, 3, 5, 6, 16], np.int64).tobytes().ljust(56, b"x")
    assert blocks.fault_of_block(2, columns, block) == ""
    longer = np.array([0, 0, 0, 0, 16], np.int64).tobytes().ljust(56, b"x")
    assert "max_state_bytes=15" in blocks.fault_of_block(2, columns, longer)


def test_a_buffer_holds_the_numbers_of_a_batch_and_there_is_none_for_strings():
    numbers = [Field("float32", (2,)), Field("int8", ())]
    assert StateBlocks(numbers, 1024, 5).buffer_bytes == 64 + 64
    assert StateBlocks(numbers, 1024).buffer_bytes == 0
    assert StateBlocks([], 1024, 5).buffer_bytes == 0
    assert StateBlocks([*numbers, Field("bytes", ())], 1024, 5).buffer_bytes == 0
