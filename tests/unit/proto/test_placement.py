"""Every partition has one owner, and both directions of the rule agree."""

from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.placement import (
    owner_of,
    partitions_of,
)


@given(partitions=st.integers(1, 40), owners=st.integers(1, 12))
def test_every_partition_has_one_owner(partitions, owners):
    owned = [list(partitions_of(owner, owners, partitions)) for owner in range(owners)]
    assert sorted(p for some in owned for p in some) == list(range(partitions))
    for owner, some in enumerate(owned):
        assert all(owner_of(partition, owners) == owner for partition in some)


@given(partitions=st.integers(1, 60), owners=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_servers_with_different_numbers_of_workers_own_every_partition_once(partitions, owners):
    servers, found = len(owners), list[int]()
    for index, workers in enumerate(owners):
        for worker in range(workers):
            some = partitions_of(worker, workers, partitions, (index, servers))
            for partition in some:
                assert partition % servers == index
                assert owner_of(partition, workers, (index, servers)) == worker
            found += some
    assert sorted(found) == list(range(partitions))
