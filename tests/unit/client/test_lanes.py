"""States that stay with the trainer come back to their rows."""

import contextlib

import numpy as np
import pytest

from headrace import state_block
from headrace.batch_memory import BatchGone
from headrace.connecting import load
from headrace.framework import NUMPY
from headrace.state_block import BlockMaker
from headrace_proto.errors import ProtocolError
from headrace_proto.segment_layout import SegmentLayout

from .serving import LSTM, TAG, columns_of, in_hand, properties, schema_of, states_in

TOLD = properties((LSTM, TAG), "trainer", "lanes")
NUMBERS = properties((LSTM,), "trainer", "lanes")
NONE = np.zeros(0, np.int32)
FACES = ["numpy", "tf", "torch", "jax"]


def face_of(name):
    module = {"tf": "tensorflow"}.get(name, name)
    pytest.importorskip(module, reason=f"needs {module}")
    return load(name)


def saved(hands, number, face=NUMPY):
    """Save the last batch with a state of its lane and its number in each row."""
    batch = hands.batches[-1]
    rows = batch.array("@lane") * 10 + number
    value = np.repeat(rows[:, None], 3, 1).astype(np.float32)
    given = face.numbers(value, "float32")
    batch.save_state("lstm", given)
    with contextlib.suppress(KeyError):  # without that state
        batch.state("tag")
        batch.save_state("tag", [b"%d" % row for row in rows])
    return given


def following(hands, **given):
    hands.deliver(columns_of(TOLD, **given))
    return hands.take()


def lstm(batch):
    return np.asarray(batch.state("lstm"))[:, 0].tolist()


def tags(batch):
    value = batch.state("tag")
    return (value.numpy() if hasattr(value, "numpy") else np.array(value, object)).tolist()


@pytest.mark.parametrize("name", FACES)
def test_new_sequences_begin_with_the_states_that_the_server_sends(name):
    given = {
        "state_of": np.array([1, -1, 0]),
        "state_lstm": np.array([[5.0] * 3, [6.0] * 3]),
        "state_tag": [b"five", b"six"],
    }
    columns = columns_of(TOLD, rows=3, **given)
    batch = in_hand(TOLD, columns, framework=face_of(name)).batches[0]
    assert lstm(batch) == [6, 0, 5] and tags(batch) == [b"six", b"", b"five"]


@pytest.mark.parametrize("name", FACES)
def test_a_row_that_begins_is_set_and_the_others_go_on(name):
    hands = in_hand(TOLD, columns_of(TOLD, rows=3), framework=face_of(name))
    given = saved(hands, 1, face_of(name))
    batch = following(
        hands,
        rows=3,
        starts=np.array([1]),
        state_of=np.array([0]),
        state_lstm=np.full((1, 3), 7),
        state_tag=[b"new"],
    )
    assert lstm(batch) == [1, 7, 21] and tags(batch) == [b"1", b"new", b"21"]
    assert np.asarray(given)[:, 0].tolist() == [1, 11, 21]  # what was saved is not written to


@pytest.mark.parametrize("name", FACES)
def test_rows_that_move_or_go_take_their_states_along(name):
    hands = in_hand(TOLD, columns_of(TOLD, rows=4), framework=face_of(name))
    saved(hands, 1, face_of(name))
    batch = following(
        hands, rows=3, sequence=1, lane=np.array([3, 0, 2]), starts=NONE, state_of=NONE
    )
    assert lstm(batch) == [31, 1, 21] and tags(batch) == [b"31", b"1", b"21"]
    saved(hands, 2, face_of(name))
    batch = following(
        hands, rows=2, lane=np.array([1, 2]), starts=np.array([0]), state_of=np.array([-1])
    )
    assert lstm(batch) == [0, 22] and tags(batch) == [b"", b"22"]


def test_a_variable_of_tensorflow_may_be_trained_on_after_it_was_saved():
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    hands = in_hand(NUMBERS, columns_of(NUMBERS), framework=face_of("tf"))
    variable = tf.Variable(np.ones((2, 3), np.float32))
    hands.batches[0].save_state("lstm", variable)
    variable.assign(variable * 9)
    hands.deliver(columns_of(NUMBERS, sequence=1))
    assert lstm(hands.take()) == [1, 1]


def test_a_state_of_another_framework_comes_back_in_that_of_the_feed():
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    hands = in_hand(NUMBERS, columns_of(NUMBERS), framework=face_of("torch"))
    value = np.ones((2, 3), np.float32)
    hands.batches[0].save_state("lstm", value)
    value[:] = 9
    hands.deliver(columns_of(NUMBERS, sequence=1))
    state = hands.take().state("lstm")
    assert isinstance(state, torch.Tensor) and state.sum() == 6


def test_after_a_batch_that_was_rejected_the_ones_that_continue_it_go_back():
    hands = in_hand(NUMBERS, columns_of(NUMBERS))
    saved(hands, 1)
    hands.deliver(columns_of(NUMBERS, sequence=1))
    hands.saving._give_up(0, hands.take().token)
    hands.deliver(columns_of(NUMBERS, sequence=1))
    with pytest.raises(BatchGone):
        hands.take()
    hands.saving._give_up(0, hands.last)
    hands.deliver(columns_of(NUMBERS))
    assert lstm(hands.take()) == [0, 0] and hands.link.returned == [2, 3]


@pytest.mark.parametrize("first", [0, 1])
def test_a_row_that_goes_on_without_a_kept_state_is_a_protocol_error(first):
    starts = [1 - first]  # the other row goes on
    given = {"starts": np.array(starts), "state_of": np.array([-1])}
    with pytest.raises(ProtocolError, match=f"batch 0/1 of lanes goes on in lane {first}"):
        in_hand(NUMBERS, columns_of(NUMBERS, **given))


# Handing over


def flushed(hands, face=NUMPY):
    maker = BlockMaker(SegmentLayout(schema_of(TOLD), TOLD).states)
    (kept,) = hands.saving._lanes.values()
    parts = maker.parts(kept.states, np.flatnonzero(kept.goes_on).tolist(), face)
    return [(rows, states_in(TOLD, columns, block)) for rows, columns, block in parts]


def test_flushed_states_are_sent_in_parts_of_bounded_size(monkeypatch):
    hands = in_hand(TOLD, columns_of(TOLD, rows=4))
    saved(hands, 1)
    monkeypatch.setattr(state_block, "_PART_BYTES", 50)
    assert [rows for rows, _ in flushed(hands)] == [(0, 1), (2, 3)]
    monkeypatch.setattr(state_block, "_PART_BYTES", 1)  # at least one row to each
    assert [rows for rows, _ in flushed(hands)] == [(0,), (1,), (2,), (3,)]
