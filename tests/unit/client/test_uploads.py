"""Saves and flushes are said once, and again after a reconnection until they are answered."""

import pytest

from headrace.uploads import StatesPart, Uploads
from headrace_proto.messages import Flush, Flushed, Save, Step


def part(*rows):
    return StatesPart(rows, [[0, 4, [len(rows)]]], b"block of %d" % rows[0])


def test_states_with_bytes_take_a_message_each_and_those_without_go_together():
    uploads = Uploads()
    uploads.save(1, [[0, 4, [1]]], b"one")
    uploads.save(2, [], None)
    uploads.save(3, [[0, 4, [1]]], b"three")
    uploads.save(4, [], None)
    groups = uploads.saves_to_say()
    assert groups == [
        (Save(1, 1, [[0, 4, [1]]]),),
        (Save(3, 1, [[0, 4, [1]]]),),
        (Save(2), Save(4)),
    ]
    assert [uploads.frames_of(Step(7, 0, saves=some)) for some in groups] == [
        [b"one"],
        [b"three"],
        [],
    ]
    assert uploads.saves_to_say() == [] and not uploads.due


def test_thousands_of_saves_are_said_in_messages_of_bounded_size():
    uploads = Uploads()
    for token in range(2500):
        uploads.save(token, [], None)
    assert [len(some) for some in uploads.saves_to_say()] == [1000, 1000, 500]


@pytest.mark.parametrize("anew", [False, True])
def test_a_save_is_said_again_in_any_session_until_it_is_answered(anew):
    uploads = Uploads()
    uploads.save(1, [], b"one")
    uploads.save(2, [], b"two")
    uploads.saves_to_say()
    assert uploads.answered(1) and not uploads.answered(1) and not uploads.answered(9)
    uploads.reopened(8, anew)
    assert uploads.due and not uploads.settled
    assert uploads.saves_to_say() == [(Save(2, 1, []),)]
    assert uploads.answered(2) and uploads.settled
    uploads.reopened(8, anew)
    assert not uploads.due


def test_a_flush_is_several_messages_with_a_block_each_and_one_answer():
    uploads = Uploads()
    uploads.flush(5, 77, [part(0, 2), part(3)])
    first, second = uploads.flushes_to_say(7)
    assert first == Flush(7, 5, 77, (0, 2), [[0, 4, [2]]], True)
    assert second == Flush(7, 5, 77, (3,), [[0, 4, [1]]], False)
    assert uploads.frames_of(first) == [b"block of 0"]
    assert uploads.frames_of(second) == [b"block of 3"]
    assert uploads.flushes_to_say(7) == [] and uploads.flushed is None
    uploads.on_flushed(Flushed(7, 4))  # of an earlier one
    assert uploads.flushed is None
    uploads.on_flushed(Flushed(7, 5))
    assert uploads.flushed == Flushed(7, 5)


def test_a_flush_is_said_again_in_the_same_session_and_is_lost_with_it():
    uploads = Uploads()
    uploads.flush(5, 77, [part(0)])
    uploads.flushes_to_say(7)
    uploads.reopened(7, False)
    assert uploads.due and len(uploads.flushes_to_say(7)) == 1
    uploads.reopened(8, True)
    assert uploads.flushes_to_say(8) == []
    assert uploads.flushed is not None
    assert (uploads.flushed.request, uploads.flushed.code) == (5, "stale")
    assert "session was lost" in uploads.flushed.text
