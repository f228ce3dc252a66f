"""Saves are sent once, and again after each reconnection until they are answered."""

from headrace.free_buffers import FreeBuffers
from headrace.uploads import Uploads
from headrace_proto.messages import Save, Step
from headrace_proto.state_buffers import FIRST_BUFFER, file_bytes


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
    for token in (1, 1, 9):
        uploads.answered(token)
    assert 1 not in uploads and 2 in uploads
    uploads.reopened()
    assert not uploads.settled
    assert uploads.saves_to_say() == [(Save(2, 1, []),)]
    uploads.answered(2)
    assert uploads.settled
    uploads.reopened()


def test_states_in_a_buffer_are_named_in_its_session_and_sent_as_bytes_in_another(tmp_path):
    """1. A save names its buffer.  2. Its session is lost: another has other buffers, or none.
    3. The buffer is free once the save is answered, though a socket may still send its bytes."""
    path = tmp_path / "trainer-1"
    with path.open("wb") as file:
        file.truncate(file_bytes(1, 64))
    buffers, others = FreeBuffers(str(path), 64, bytes(16)), FreeBuffers(str(path), 64, bytes(16))
    buffer = buffers.take(8)
    buffer.array[:] = 3
    uploads = Uploads()
    uploads.save(1, [], buffer)
    del buffer
    (named,) = uploads.saves_to_say(buffers)
    assert named == (Save(1, FIRST_BUFFER, []),)
    assert uploads.frames_of(Step(7, 0, saves=named)) == []
    for session in (others, None):
        uploads.reopened()
        (sent,) = uploads.saves_to_say(session)
        assert sent == (Save(1, 1, []),)
        (frame,) = uploads.frames_of(Step(8, 0, saves=sent))
        assert frame == b"\3" * 64
    assert buffers.take(8) is None
    uploads.answered(1)
    taken = buffers.take(8)
    taken.array[:] = 9
    assert frame == b"\3" * 64
