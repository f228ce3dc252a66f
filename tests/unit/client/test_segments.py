"""The facts of a batch's rows are made when they are asked for and not before."""

import numpy as np
import pytest

from .serving import TAG, columns_of, in_hand, properties

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
    assert batch.key is batch.key and batch.keys()[0] == b"00000_of_00007:a:b"


def test_lanes_are_given_where_rows_keep_them_and_else_refused_with_a_reason():
    assert batch_of(properties(order="lanes"), lane=np.array([3, 1])).lane.tolist() == [3, 1]
    with pytest.raises(AttributeError, match=r"batch\.lane: .* order='arrival'"):
        _ = batch_of().lane


def test_a_column_that_is_asked_for_as_that_of_a_plain_batch_names_the_places_of_columns():
    with pytest.raises(TypeError, match=r"no \['audio'\]: its columns are in batch\.sequences"):
        batch_of()["audio"]
