"""The facts of a batch's rows are made when they are asked for and not before."""

import weakref

import numpy as np
import pytest

from headrace.framework import load
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


def test_a_batch_goes_with_its_last_user_and_not_with_the_collector_of_cycles():
    hands = in_hand(TOLD, columns_of(TOLD))
    batch = hands.batches.pop()
    assert len(batch.sequences["x"]) == len(batch.context["y"]) == 2
    batch.save_state("lstm", np.zeros((2, 3), np.float32))
    batch.save_state("tag", batch.state("tag"))
    gone = weakref.ref(batch)
    del batch
    assert gone() is None


def test_rows_have_their_position_in_their_sequence():
    batch = batch_of(sequence=np.array([0, 1]), length=np.array([2, 1]))
    assert batch.first.tolist() == [True, False] and batch.last.tolist() == [False, True]
    assert batch.sequence.tolist() == [0, 1] and batch.sequence_count.tolist() == [2, 2]
    assert batch.length.tolist() == [2, 1] and batch.total_length.tolist() == [4, 4]
    assert batch.insertion_index.tolist() == [-(2**63), 1 - 2**63]
    assert [a.dtype.name for a in (batch.first, batch.sequence, batch.insertion_index)] == [
        *("bool", "int32", "int64"),
    ]
    assert (batch.batch_size, batch.rows, type(batch.batch_size)) == (2, 2, int)
    assert (batch.token, batch.partition, batch.number) == (1, 0, 1)


def test_an_empty_row_is_not_valid_and_has_no_key():
    batch = batch_of(
        key=[b"a", b""],
        sequence=np.array([1, 0]),
        sequence_count=np.array([2, 0]),
        length=np.array([2, 0]),
    )
    assert batch.valid.tolist() == [True, False]
    assert batch.first.tolist() == [False, False] and batch.last.tolist() == [True, False]
    assert batch.key.tolist() == [b"00001_of_00002:a", b""]
    assert batch.next_key.tolist() == [b"STOP:a", b""]
    assert batch.arrays()["valid"].tolist() == [True, False]
    assert batch_of().valid.tolist() == [True, True]


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


def test_columns_are_mappings_that_know_their_names():
    batch = batch_of()
    assert list(batch.sequences) == ["x"] and dict(batch.context).keys() == {"y"}
    assert batch.sequences["x"].tolist() == [[0, 1], [2, 3]] and "x" in batch.sequences
    assert "y" not in batch.sequences and len(batch.context) == 1
    assert batch.sequences["x"] is batch.sequences["x"]
    with pytest.raises(KeyError, match=r"'z' is not in the sequences.*\['x'\]"):
        batch.sequences["z"]
    with pytest.raises(
        KeyError, match=r"'gru' is not a state of this feed; it has \['lstm', 'tag'\]"
    ):
        batch.state("gru")
    with pytest.raises(KeyError, match=r"did you mean 'lstm'\?"):
        batch.state("lsmt")
    with pytest.raises(KeyError, match=r"\['lstm'\] \(a list\) is not a state of this feed"):
        batch.state(["lstm"])
    with pytest.raises(TypeError, match=r"no \['x'\]: its columns are in batch\.sequences and"):
        batch["x"]
    with pytest.raises(KeyError, match=r"'x' is not a column.*'sequences:x'"):
        batch.array("x")


def test_states_are_those_of_the_batch():
    batch = batch_of(state_lstm=np.full((2, 3), 5), state_tag=[b"a", b"b\0"])
    assert batch.state("lstm").tolist() == [[5] * 3] * 2 and batch.state("tag")[1] == b"b\0"
    assert batch.state("lstm") is batch.state("lstm")


def test_lanes_are_given_where_rows_keep_them_and_else_refused_with_a_reason():
    assert batch_of(properties(order="lanes"), lane=np.array([3, 1])).lane.tolist() == [3, 1]
    with pytest.raises(AttributeError, match=r"batch\.lane: .* order='arrival'"):
        _ = batch_of().lane


def test_a_batch_is_described_in_a_line():
    assert repr(batch_of()) == (
        "<SegmentBatch 0/1 of 2 segments of 2 steps: sequences x: float32[2, 2]; "
        "context y: int64[2]; state lstm: float32[2, 3], tag: bytes[2]>"
    )
    assert "sequences of <SegmentBatch 0/1" in repr(batch_of().sequences)


def test_nothing_is_converted_before_it_is_asked_for():
    class Framework:
        calls = 0

        def numbers(self, array, dtype, aligned=False):
            self.calls += 1
            return array

        strings = numbers

    framework = Framework()
    framework.strings = lambda array: framework.numbers(array, "bytes")
    batch = batch_of(framework=framework)
    assert framework.calls == 0
    _ = batch.key, batch.key, batch.first, batch.sequences["x"], batch.sequences["x"]
    assert framework.calls == 3


def test_strings_that_lie_are_a_protocol_error_when_they_are_read():
    def lie(block, places):
        offset = places[0][0]
        block[offset + 8 : offset + 16] = 0xFF

    hands = in_hand(TOLD)
    hands.deliver(columns_of(TOLD), spoil=lie)
    batch = hands.take()
    with pytest.raises(ProtocolError, match="offsets of an array of strings"):
        _ = batch.key


@pytest.mark.parametrize(
    ("name", "module"), [("tf", "tensorflow"), ("torch", "torch"), ("jax", "jax")]
)
def test_a_batch_speaks_the_language_of_its_framework(name, module):
    pytest.importorskip(module, reason=f"needs {module}")
    face = load(name)
    batch = batch_of(framework=face, sequence=np.array([0, 1]))
    assert face.owns(batch.sequences["x"]) and face.owns(batch.first) and face.owns(batch.length)
    assert np.asarray(batch.first).tolist() == [True, False]
    wanted = [b"00000_of_00002:k0", b"00001_of_00002:k1"]
    assert (batch.key.numpy().tolist() if name == "tf" else batch.key) == wanted
