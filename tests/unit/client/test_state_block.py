"""States become the block that a server reads, copied once where possible."""

import numpy as np
import pytest

from headrace.state_block import BlockMaker, Upload
from headrace_proto import limits
from headrace_proto.errors import LimitExceeded
from headrace_proto.layout import arrange
from headrace_proto.segment_layout import State

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


def test_strings_and_numbers_share_a_block():
    state, tag = State("lstm", "float32", (3,)), State("tag", "bytes", ())
    upload = Upload(maker(state, tag), 2)
    upload.put(tag, [b"long\0", b""])
    upload.put(state, np.ones((2, 3), np.float32))
    got = states_in({"states": [LSTM, TAG]}, *upload.finish())
    assert got["tag"].tolist() == [b"long\0", b""] and got["lstm"].sum() == 6


def test_more_than_a_message_holds_is_refused_with_the_limit():
    rows = limits.MAX_UPLOAD_BYTES // 12 + 1
    with pytest.raises(LimitExceeded, match=rf"states a .* a trainer holds {2**26}: use smaller"):
        Upload(maker(A), rows)
