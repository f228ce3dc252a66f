"""A batch is a mapping from names to arrays, and a description that lies is found before it is
believed."""

import pytest

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import ProtocolError
from headrace_proto.layout import KnownSlots
from headrace_proto.messages import Given
from headrace_proto.schema import Field

SCHEMA = {"x": Field("int64", (None, 2)), "s": Field(BYTES, (None,))}
GOOD = [[0, 48, [3, 2]], [64, 40, [3]]]


def described(x=None, s=None, columns=None, nbytes=128):
    if columns is None:
        columns = [GOOD[0] if x is None else x, GOOD[1] if s is None else s]
    return Given(1, 1, 0, 0, 0, 0, 0, 3, nbytes, columns)


def test_columns_that_were_right_are_right_again_in_a_block_of_that_size_only():
    known = KnownSlots(SCHEMA)
    first = known.of(described(columns=GOOD))
    assert known.of(described(columns=GOOD)) is first
    with pytest.raises(ProtocolError, match="does not lie in its block of 64 bytes"):
        known.of(described(columns=GOOD, nbytes=64))
    with pytest.raises(ProtocolError, match="does not lie in its block of 128 bytes"):
        known.of(described(columns=[[96, 48, [3, 2]], GOOD[1]]))  # alike but for its place


@pytest.mark.parametrize("columns", [[], [GOOD[0]], [*GOOD, GOOD[0]]])
def test_a_batch_has_the_columns_of_its_feed(columns):
    given = Given(1, 1, 0, 0, 0, 0, 0, 3, 128, columns)
    with pytest.raises(ProtocolError, match="does not have the 2 columns of its feed"):
        KnownSlots(SCHEMA).of(given)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ([0, 48, [3, 2] + [1] * 31], "impossible shape"),
        ([1, 48, [3, 2]], "does not lie in its block of 128 bytes"),
        ([128, 48, [3, 2]], "does not lie in its block"),
        ([64, 80, [5, 2]], "does not lie in its block"),
        ([0, 40, [3, 2]], r"40 bytes do not hold int64 of shape \[3, 2\]"),
        ([0, 64, [3, 2]], "64 bytes do not hold"),
        ([0, 48, [2**62, 2]], "48 bytes do not hold"),
        ([0, 48, [2, 3]], r"its shape \[2, 3\] is not one of int64\[\?, 2\]"),
        ([0, 48, [6]], "is not one of int64"),
    ],
)
def test_a_description_that_lies_is_refused_by_its_column(column, text):
    with pytest.raises(ProtocolError, match="column 'x' of a batch is described wrongly") as caught:
        KnownSlots(SCHEMA).of(described(columns=[column, GOOD[1]]))
    assert caught.match(text)
