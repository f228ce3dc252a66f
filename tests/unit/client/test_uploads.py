"""Saves are sent once, and again after each reconnection until they are answered."""

from headrace.uploads import Uploads
from headrace_proto.messages import Save, Step


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
    assert uploads.saves_to_say() == []


def test_thousands_of_saves_are_sent_in_messages_of_bounded_size():
    uploads = Uploads()
    for token in range(2500):
        uploads.save(token, [], None)
    assert [len(some) for some in uploads.saves_to_say()] == [1000, 1000, 500]


def test_a_save_is_resent_after_a_reconnection_until_it_is_answered():
    uploads = Uploads()
    uploads.save(1, [], b"one")
    uploads.save(2, [], b"two")
    uploads.saves_to_say()
    assert uploads.answered(1) and not uploads.answered(1) and not uploads.answered(9)
    uploads.reopened()
    assert not uploads.settled
    assert uploads.saves_to_say() == [(Save(2, 1, []),)]
    assert uploads.answered(2) and uploads.settled
    uploads.reopened()
