"""States become the block that a server reads, copied once where possible."""

import gc

import numpy as np
import pytest

from headrace.state_block import BlockMaker, FreeBuffers, StateBuffer, Upload
from headrace_proto import limits
from headrace_proto.errors import LimitExceeded
from headrace_proto.layout import arrange
from headrace_proto.segment_layout import State
from headrace_proto.state_buffers import file_bytes

from .serving import LSTM, TAG, states_in

A, B = State("a", "float32", (3,)), State("b", "int8", ())
TOLD = {"states": [["a", "float32", [3]], ["b", "int8", []]]}


def maker(*states):
    return BlockMaker({state.name: state for state in states})


def test_states_lie_where_the_layout_says_in_any_order_of_saving():
    upload = Upload(maker(A, B), 2)
    upload.put(B, np.array([7, 8], np.int8))
    upload.put(A, np.arange(6, dtype=np.float32).reshape(2, 3))
    columns, block = upload.finish()
    slots, nbytes = arrange([("float32", (2, 3), 0), ("int8", (2,), 0)])
    assert columns == [[s.offset, s.nbytes, list(s.shape)] for s in slots] and len(block) == nbytes
    got = states_in(TOLD, columns, block)
    assert got["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and got["b"].tolist() == [7, 8]


def test_a_value_may_be_overwritten_as_soon_as_it_was_put():
    for states in ((A,), (A, State("t", "bytes", ()))):
        upload = Upload(maker(*states), 1)
        value = np.ones((1, 3), np.float32)
        upload.put(A, value)
        value[:] = 9
        if len(states) == 2:
            upload.put(states[1], [b"x"])
        columns, block = upload.finish()
        assert states_in(TOLD | {"states": TOLD["states"][:1]}, columns[:1], block)["a"].max() == 1


def test_strings_and_numbers_share_a_block():
    state, tag = State("lstm", "float32", (3,)), State("tag", "bytes", ())
    upload = Upload(maker(state, tag), 2)
    upload.put(tag, [b"long\0", b""])
    upload.put(state, np.ones((2, 3), np.float32))
    got = states_in({"states": [LSTM, TAG]}, *upload.finish())
    assert got["tag"].tolist() == [b"long\0", b""] and got["lstm"].sum() == 6


def test_a_block_is_used_again_only_when_nobody_holds_it():
    made = maker(A, B)
    first = Upload(made, 2).finish()[1]
    second = Upload(made, 2).finish()[1]
    assert not np.shares_memory(first, second)
    address = first.ctypes.data
    del first
    gc.collect()
    assert Upload(made, 2).finish()[1].ctypes.data == address


def test_more_than_a_message_holds_is_refused_with_the_limit():
    rows = limits.MAX_UPLOAD_BYTES // 12 + 1
    with pytest.raises(LimitExceeded, match=rf"states a .* a trainer holds {2**26}: use smaller"):
        Upload(maker(A), rows)


def test_numbers_go_into_a_state_buffer_where_one_is_free_and_strings_never(tmp_path):
    path = tmp_path / "trainer-1"
    with path.open("wb") as file:
        file.truncate(file_bytes(1, 128))
    buffers = FreeBuffers(str(path), 128, bytes(16))
    blocks = []
    for _ in range(2):
        upload = Upload(maker(A, B), 2, buffers)
        upload.put(B, np.array([7, 8], np.int8))
        upload.put(A, np.arange(6, dtype=np.float32).reshape(2, 3))
        columns, block = upload.finish()
        blocks.append(block)
        array = block.array if isinstance(block, StateBuffer) else block
        got = states_in(TOLD, columns, array)
        assert got["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and got["b"].tolist() == [7, 8]
    assert [isinstance(block, StateBuffer) for block in blocks] == [True, False]
    blocks.clear()
    upload = Upload(maker(A, State("tag", "bytes", ())), 1, buffers)
    upload.put(A, np.ones((1, 3), np.float32))
    upload.put(State("tag", "bytes", ()), [b"x"])
    assert not isinstance(upload.finish()[1], StateBuffer)
