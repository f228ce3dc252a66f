"""A batch is a mapping from names to arrays, and a description that lies is found before it is
believed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import Batch, KnownSlots
from headrace.framework import NumpyFramework
from headrace_proto.dtypes import BYTES
from headrace_proto.errors import ProtocolError
from headrace_proto.layout import aligned_bytes, array_at, slots_of
from headrace_proto.messages import Given
from headrace_proto.schema import Field

# What is in it


# What is refused

SCHEMA = {"x": Field("int64", (None, 2)), "s": Field(BYTES, (None,))}
GOOD = [[0, 48, [3, 2]], [64, 40, [3]]]


def described(x=None, s=None, columns=None, nbytes=128):
    if columns is None:
        columns = [GOOD[0] if x is None else x, GOOD[1] if s is None else s]
    return Given(1, 1, 0, 0, 0, 0, 0, 3, nbytes, columns)


def test_columns_that_were_right_are_right_again_in_a_block_of_that_size_only():
    known = KnownSlots()
    first = known.of(described(columns=GOOD), SCHEMA)
    assert known.of(described(columns=GOOD), SCHEMA) is first
    with pytest.raises(ProtocolError, match="does not lie in its block of 64 bytes"):
        known.of(described(columns=GOOD, nbytes=64), SCHEMA)
    equal = [[0, 48.0, [3, 2]], GOOD[1]]
    assert equal == GOOD
    with pytest.raises(ProtocolError, match=r"are not \[offset, nbytes"):
        known.of(described(columns=equal), SCHEMA)


@pytest.mark.parametrize("columns", [None, {}, "xs", [], [GOOD[0]], [*GOOD, GOOD[0]]])
def test_a_batch_has_the_columns_of_its_feed(columns):
    given = Given(1, 1, 0, 0, 0, 0, 0, 3, 128, columns)
    with pytest.raises(ProtocolError, match="does not have the 2 columns of its feed"):
        slots_of(given, SCHEMA)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (None, "column 'x' of a batch is described wrongly"),
        (7, "column 'x'"),
        ([], "column 'x'"),
        ([0, 48], "column 'x'"),
        ([0, 48, [3, 2], 0], "column 'x'"),
        ([0, 48, 6], "column 'x'"),
        ([0, 48, None], "column 'x'"),
        ([0.0, 48, [3, 2]], "are not .offset, nbytes"),
        ([0, 48.0, [3, 2]], "are not .offset, nbytes"),
        ([0, 48, [3.0, 2]], "are not .offset, nbytes"),
        (["0", 48, [3, 2]], "are not .offset, nbytes"),
        ([0, 48, ["3", 2]], "are not .offset, nbytes"),
        ([False, 48, [3, 2]], "are not .offset, nbytes"),
        ([0, 48, [-3, -2]], "impossible shape"),
        ([0, 48, [3, 2] + [1] * 31], "impossible shape"),
        ([1, 48, [3, 2]], "does not lie in its block of 128 bytes"),
        ([-64, 48, [3, 2]], "does not lie in its block"),
        ([128, 48, [3, 2]], "does not lie in its block"),
        ([64, 80, [5, 2]], "does not lie in its block"),
        ([0, -48, [3, 2]], "does not lie in its block"),
        ([0, 40, [3, 2]], r"40 bytes do not hold int64 of shape \[3, 2\]"),
        ([0, 64, [3, 2]], "64 bytes do not hold"),
        ([0, 48, [2**62, 2]], "48 bytes do not hold"),
        ([0, 48, [2, 3]], r"its shape \[2, 3\] is not one of int64\[\?, 2\]"),
        ([0, 48, [6]], "is not one of int64"),
    ],
)
def test_a_description_that_lies_is_refused_by_its_column(column, text):
    with pytest.raises(ProtocolError, match="column 'x' of a batch is described wrongly") as caught:
        slots_of(described(columns=[column, GOOD[1]]), SCHEMA)
    assert caught.match(text)


@pytest.mark.parametrize(
    "offsets", [[1, 2, 3, 4], [0, 3, 2, 4], [0, 0, 0, 9], [0, -1, 0, 0], [0, 0, 0, -1]]
)
def test_offsets_of_strings_that_lie_are_refused_when_they_are_read(offsets):
    slots = slots_of(described(), SCHEMA)
    block = aligned_bytes(128)
    block[64:96] = np.array(offsets, "<i8").view(np.uint8)
    batch = Batch(described(), slots, block, NumpyFramework())
    with pytest.raises(ProtocolError, match="the offsets of an array of strings do not fit"):
        batch["s"]


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats()
        | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=20,
    )
)
def test_no_description_is_worse_than_a_protocol_error(column):
    try:
        slots = slots_of(described(x=column), SCHEMA) if column is not None else {}
    except ProtocolError:
        return
    if slots:
        array_at(aligned_bytes(128), slots["x"])
