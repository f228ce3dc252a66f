"""Partitions of segments begin an epoch together, and trainers learn of a committed one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.core.open_epochs import OpenEpochs


def test_partitions_rest_until_all_of_their_epoch_do_and_begin_the_next_together():
    epochs = OpenEpochs([0, 2, 4])
    assert epochs.rest(2, 0) == [] and epochs.is_ahead(2) and not epochs.is_ahead(0)
    assert epochs.rest(0, 0) == []
    assert epochs.rest(4, 0) == [0, 2, 4] and epochs.current == 1 == epochs.last
    assert not any(epochs.is_ahead(partition) for partition in (0, 2, 4))


def test_a_partition_that_reports_a_finished_epoch_again_does_not_rest():
    epochs = OpenEpochs([0, 1])
    epochs.rest(0, 0), epochs.rest(1, 0)
    assert epochs.rest(0, 0) == [] and not epochs.is_ahead(0)


def test_a_partition_that_has_ended_is_not_waited_for():
    epochs = OpenEpochs([0, 1])
    assert epochs.rest(0, 0) == [] and epochs.end(1) == [0]
    assert epochs.end(0) == [] and epochs.current == 1


def test_a_partition_that_an_earlier_server_left_in_a_later_epoch_is_ahead_of_the_others():
    epochs = OpenEpochs([0, 1])
    epochs.begin(0, 3), epochs.begin(1, 2)
    assert epochs.is_ahead(0) and not epochs.is_ahead(1) and epochs.current == 2
    assert epochs.rest(1, 2) == [1]
    assert not epochs.is_ahead(0) and not epochs.is_ahead(1) and epochs.current == 3


def test_an_epoch_is_current_until_its_last_batch_is_settled():
    epochs = OpenEpochs([0])
    assert epochs.first_open is None
    epochs.made(0), epochs.made(0), epochs.made(1)
    epochs.begin(0, 1)
    assert (epochs.current, epochs.first_open) == (0, 0)
    epochs.closed(0), epochs.closed(0)
    assert (epochs.current, epochs.first_open) == (1, 1)
    epochs.closed(1), epochs.end(0)
    assert (epochs.current, epochs.first_open, epochs.last) == (1, None, 1)


@given(order=st.permutations([(p, e) for p in range(3) for e in range(4)]), ends=st.integers(0, 3))
def test_no_partition_is_asked_while_another_is_in_an_earlier_epoch(order, ends):
    """Partition 0 ends with epoch ``ends``, the others with 3; each rests when it is its turn."""
    epochs, at = OpenEpochs(range(3)), dict.fromkeys(range(3), 0)
    for _ in range(12):  # at least one partition can go on each time
        for partition, epoch in order:
            if at.get(partition) != epoch or epochs.is_ahead(partition):
                continue
            last = epoch == (ends if partition == 0 else 3)
            begun = epochs.end(partition) if last else epochs.rest(partition, epoch)
            if last:
                del at[partition]
            for one in begun:
                assert not epochs.is_ahead(one)
                at[one] += 1
            assert all(epochs.is_ahead(one) or at[one] == min(at.values()) for one in at)
    assert not at


@pytest.mark.parametrize("partition", [0, 1])
def test_notes_on_an_ended_partition_change_nothing(partition):
    epochs = OpenEpochs([0, 1])
    epochs.end(partition)
    epochs.begin(partition, 5)
    assert epochs.rest(partition, 5) == [] and epochs.current == 0
    assert not epochs.is_ahead(partition)
