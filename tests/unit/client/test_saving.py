"""A batch of segments is committed by its last state, once, and by nothing else."""

import os
import re
import threading

import numpy as np
import pytest

from headrace.state_block import FreeBuffers, StateBuffer
from headrace_proto.errors import StaleLease, StateError
from headrace_proto.messages import Answered
from headrace_proto.state_buffers import file_bytes

from .serving import LSTM, TAG, columns_of, in_hand, properties, states_in

ONE = properties()
TWO = properties((LSTM, TAG))
VALUE = np.arange(6, dtype=np.float32).reshape(2, 3)


def hands_of(told=ONE, batches=1, **options):
    return in_hand(told, *(columns_of(told) for _ in range(batches)), **options)


def test_states_go_into_a_buffer_once_the_session_has_sent_a_batch_by_reference(tmp_path):
    """Before that the owner may not have made the session's file long enough for buffers."""
    path, hands = tmp_path / "trainer-1", hands_of(batches=2)
    path.write_bytes(b"")
    hands.link.session.buffers = FreeBuffers(str(path), 64, bytes(16))
    first, second = hands.batches
    first.save_state("lstm", VALUE)
    assert not isinstance(hands.link.saved[first.token][1], StateBuffer)
    os.truncate(path, file_bytes(1, 64))
    hands.link.session.mapped.last = 1
    second.save_state("lstm", VALUE)
    columns, buffer, _ = hands.link.saved[second.token]
    assert isinstance(buffer, StateBuffer)
    assert states_in(ONE, columns, buffer.array)["lstm"].tolist() == VALUE.tolist()


def test_a_second_save_is_refused_and_the_first_stands():
    hands = hands_of(TWO)
    batch = hands.batches[0]
    batch.save_state("lstm", VALUE)
    with pytest.raises(StateError, match="state 'lstm' of batch 0/1 is saved already"):
        batch.save_state("lstm", VALUE * 0)
    batch.save_state("tag", [b"", b""])
    assert states_in(TWO, *hands.link.saved[1])["lstm"].tolist() == VALUE.tolist()
    with pytest.raises(StateError):
        batch.save_state("lstm", VALUE)


@pytest.mark.parametrize("placement", ["server", "trainer"])
@pytest.mark.parametrize("late", [False, True])
def test_a_save_that_ctrl_c_ends_stands_or_can_be_repeated(placement, late):
    """It stands where the session has it already."""
    told = properties((LSTM, TAG), placement, "lanes")
    hands = hands_of(told)
    batch, send = hands.batches[0], hands.link.save
    batch.save_state("lstm", VALUE)

    def interrupted(*arguments):
        if late:
            send(*arguments)
        raise KeyboardInterrupt

    hands.link.save = interrupted
    with pytest.raises(KeyboardInterrupt):
        batch.save_state("tag", [b"a", b"b"])
    hands.link.save = send
    if late:
        with pytest.raises(StateError, match="is saved already, and that stands"):
            batch.save_state("tag", [b"c", b"d"])
    else:
        batch.save_state("tag", [b"a", b"b"])
    assert list(hands.link.saved) == [1]
    if placement == "server":
        got = states_in(told, *hands.link.saved[1])
        assert got["lstm"].tolist() == VALUE.tolist() and got["tag"].tolist() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("name", "value", "kind", "text"),
    [
        ("gru", VALUE, KeyError, r"'gru' is not a state of this feed; it has \['lstm', 'tag'\]"),
        (["lstm"], VALUE, KeyError, r"\['lstm'\] \(a list\) is not a state of .*'tag'\]"),
        (VALUE, "lstm", KeyError, r"array\(\[\[.*\) \(an ndarray\) is not a state of this feed"),
        (None, VALUE, KeyError, r"None \(a NoneType\) is not a state of this feed; it has"),
        (
            "lstm",
            VALUE[:1],
            ValueError,
            r"state 'lstm': got float32\[1, 3\], wanted float32\[2, 3\]",
        ),
        ("lstm", VALUE.astype(int), ValueError, "got int64"),
        ("tag", ["a", "b"], ValueError, "state 'tag': element 0 is 'a' of type str"),
        ("tag", VALUE, ValueError, "state 'tag': got float32"),
    ],
)
@pytest.mark.parametrize("placement", ["server", "trainer"])
def test_an_invalid_state_is_refused_at_once_and_nothing_is_sent(
    name, value, kind, text, placement
):
    hands = hands_of(properties((LSTM, TAG), placement, "lanes"))
    batch = hands.batches[0]
    with pytest.raises(kind, match=text):
        batch.save_state(name, value)
    assert hands.link.saved == {} and len(hands.link.trainer.hands) == 1
    batch.save_state("lstm", VALUE)
    batch.save_state("tag", [b"a", b"b"])
    assert list(hands.link.saved) == [1]


def test_a_save_that_is_overtaken_while_its_value_is_read_is_refused():
    hands = hands_of(TWO)
    batch = hands.batches[0]

    class Overtaken:
        def __array__(self, dtype=None, copy=None):
            batch.save_state("lstm", VALUE)
            return VALUE * 0

    with pytest.raises(StateError, match="saved already"):
        batch.save_state("lstm", Overtaken())
    batch.save_state("tag", [b"a", b"b"])
    assert states_in(TWO, *hands.link.saved[1])["lstm"].tolist() == VALUE.tolist()


def test_with_states_in_the_trainer_a_batch_of_a_lost_session_is_stale_and_goes_back():
    hands = hands_of(properties(placement="trainer", order="lanes"))
    hands.link.lose()
    with pytest.raises(StaleLease, match=r"batch 0/1 \(token 1, 2 rows\): .*lost"):
        hands.batches[0].save_state("lstm", VALUE)
    assert hands.link.returned == [1] and hands.link.saved == {}


def test_a_save_waits_for_a_flush_in_another_thread_and_a_flush_for_a_save():
    """The server takes a flush after the last save alone: one before or behind it is refused."""
    told = properties(placement="trainer", order="lanes")
    hands = in_hand(told, columns_of(told, count=4))
    hands.batches[0].save_state("lstm", VALUE)
    hands.deliver(columns_of(told, sequence=1, count=4))
    said, saving = [], threading.Thread(target=lambda: hands.take().save_state("lstm", VALUE))
    save = hands.link.save

    def ask(flush, *of):
        if not said:
            saving.start()
            saving.join(0.1)
        said.append(("flush", flush.parts[0][0][0], len(hands.link.saved)))
        return Answered(1, 1)

    def saved(token, *states):
        flushing = threading.Thread(target=hands.saving.flush)
        flushing.start()
        flushing.join(0.1)
        said.append(("save", token))
        flushings.append(flushing)
        return save(token, *states)

    flushings = []
    hands.link.ask, hands.link.save = ask, saved
    hands.saving.flush()
    saving.join()
    for flushing in flushings:
        flushing.join()
    assert said == [("flush", 1, 1), ("save", 2), ("flush", 2, 2)]


def test_a_deadline_names_the_states_that_are_owed_and_for_how_long():
    hands = hands_of(TWO, batches=2)
    batch = hands.batches[0]
    batch.save_state("lstm", VALUE)
    text = hands.saving.explain(hands.link.looked_at + 61.2)
    assert text == (
        ".  This trainer has not saved state 'tag' of 2 segments (00000_of_00002:k0, "
        "00000_of_00002:k1) that it took 61 s ago as batch 0/1, and states of 1 later batches"
    )
    many = in_hand(TWO, columns_of(TWO, rows=4))
    text = many.saving.explain(many.link.looked_at)
    assert re.search(r"states 'lstm', 'tag' of 4 segments \(.*:k0, .*:k1, .*:k2, …\)", text)
    assert hands_of(batches=0).saving.explain(0) == ""
