"""A list of columns that was checked is not checked again; those that lie are in refusals."""

import pytest

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import ProtocolError
from headrace_proto.layout import KnownSlots
from headrace_proto.messages import Given
from headrace_proto.schema import Field

SCHEMA = {"x": Field("int64", (None, 2)), "s": Field(BYTES, (None,))}
GOOD = [[0, 48, [3, 2]], [64, 40, [3]]]


def described(columns, nbytes=128):
    return Given(1, 1, 0, 0, 0, 0, 0, 3, nbytes, columns=columns)


def test_columns_that_were_right_are_right_again_in_a_block_of_that_size_only():
    known = KnownSlots(SCHEMA)
    first = known.of(described(GOOD))
    assert known.of(described(GOOD)) is first
    with pytest.raises(ProtocolError, match="does not lie in its block of 64 bytes"):
        known.of(described(GOOD, nbytes=64))
    with pytest.raises(ProtocolError, match="does not lie in its block of 128 bytes"):
        known.of(described([[96, 48, [3, 2]], GOOD[1]]))  # alike but for its place
