"""The facts of a batch's rows are made when they are asked for and not before."""

import numpy as np
import pytest

from headrace.segments import keys_later
from headrace_proto.errors import ProtocolError
from headrace_proto.segment_layout import SegmentLayout

from .serving import TAG, columns_of, given_of, in_hand, properties, schema_of

TOLD = properties((["lstm", "float32", [3]], TAG))


def batch_of(told=TOLD, framework=None, **given):
    return in_hand(told, columns_of(told, **given), framework=framework).batches[0]


def test_keys_name_the_segment_and_next_keys_the_following_one():
    batch = batch_of(
        key=[b"a:b", b"", b"\xff"],
        rows=3,
        sequence=np.array([0, 6, 99999]),
        sequence_count=np.array([7, 7, 100001]),
    )
    assert batch.key.dtype == object
    assert batch.key.tolist() == [
        b"00000_of_00007:a:b",
        b"00006_of_00007:",
        b"99999_of_100001:\xff",
    ]
    assert batch.next_key.tolist() == [
        *(b"00001_of_00007:a:b", b"STOP:", b"100000_of_100001:\xff"),
    ]
    assert batch.original_key.tolist() == [b"a:b", b"", b"\xff"]
    assert batch.key is batch.key and batch.keys(1) == [b"00000_of_00007:a:b"]


def keys_in(**given):
    """The block of a batch, and what finds its keys there."""
    given, block = given_of(TOLD, 1, columns_of(TOLD, **given))
    layout = SegmentLayout(schema_of(TOLD), TOLD)
    return block, given.rows, block.data, layout.places(given)


def test_first_keys_are_made_after_the_batch_is_gone_too():
    block, *where = keys_in(sequence=np.array([0, 1]))
    two, all_of_them = keys_later(*where, upto=2), keys_later(*where, upto=9)
    block[:] = 0xFF  # its memory is another's
    assert two() == all_of_them() == [b"00000_of_00002:k0", b"00001_of_00002:k1"]


@pytest.mark.parametrize("end", [-1, 2**62])
def test_first_keys_of_strings_that_lie_are_a_protocol_error_when_they_are_made(end):
    block, rows, view, places = keys_in()
    block[places["@key"].offset :][:24].view(np.int64)[:] = 0, 1, end
    make = keys_later(rows, view, places, 2)
    with pytest.raises(ProtocolError, match="offsets of an array of strings"):
        make()


def test_lanes_are_given_where_rows_keep_them_and_else_refused_with_a_reason():
    assert batch_of(properties(order="lanes"), lane=np.array([3, 1])).lane.tolist() == [3, 1]
    with pytest.raises(AttributeError, match=r"batch\.lane: .* order='arrival'"):
        _ = batch_of().lane


def test_strings_that_lie_are_a_protocol_error_when_they_are_read():
    def lie(block, places):
        offset = places[0][0]
        block[offset + 8 : offset + 16] = 0xFF

    hands = in_hand(TOLD)
    hands.deliver(columns_of(TOLD), spoil=lie)
    batch = hands.take()
    with pytest.raises(ProtocolError, match="offsets of an array of strings"):
        _ = batch.key
