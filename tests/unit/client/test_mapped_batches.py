"""Mapped batches are listed until they are released, and each release is reported once."""

from headrace.mapped_batches import MappedBatches


def test_batches_that_are_read_are_listed_in_order_until_they_are_released():
    mapped = MappedBatches()
    for token in (12, 11, 13):
        mapped.add(token)
    assert mapped.listed() == (11, 12, 13)
    mapped.release(12)
    assert mapped.listed() == (11, 13) and mapped.to_say() == (12,)
    assert mapped.to_say() == ()


def test_a_session_without_shared_memory_sends_nothing_about_it():
    mapped = MappedBatches()
    assert mapped.listed() is None
    mapped.add(1)
    mapped.release(1)
    assert mapped.listed() == ()
    mapped.used = False  # a new session; what was mapped in the one before is still released
    assert mapped.listed() is None and mapped.to_say() == (1,)


def test_releases_are_sent_in_order_in_messages_of_bounded_size():
    mapped = MappedBatches()
    for token in range(2500):
        mapped.release(token)
    said = []
    while mapped.released:
        said.append(mapped.to_say())
    assert [len(some) for some in said] == [1000, 1000, 500]
    assert [token for some in said for token in some] == list(range(2500))


def test_a_trainer_that_keeps_very_many_batches_lists_none():
    mapped = MappedBatches()
    for token in range(4001):
        mapped.add(token)
    assert mapped.listed() is None
    mapped.release(0)
    assert mapped.listed() == tuple(range(1, 4001))
