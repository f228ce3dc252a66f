"""Every partition has one owner, and both directions of the rule agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.placement import owner_of, partitions_of


@given(partitions=st.integers(1, 40), owners=st.integers(1, 12))
def test_every_partition_has_one_owner(partitions: int, owners: int):
    owned = [list(partitions_of(owner, owners, partitions)) for owner in range(owners)]
    assert sorted(p for some in owned for p in some) == list(range(partitions))
    for owner, some in enumerate(owned):
        assert all(owner_of(partition, owners) == owner for partition in some)
