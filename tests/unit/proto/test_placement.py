"""Every partition has one owner, and both directions of the rule agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.placement import (
    WHOLE,
    owner_of,
    partitions_of,
    share_of,
)


@given(partitions=st.integers(1, 40), owners=st.integers(1, 12))
def test_every_partition_has_one_owner(partitions: int, owners: int):
    owned = [list(partitions_of(owner, owners, partitions)) for owner in range(owners)]
    assert sorted(p for some in owned for p in some) == list(range(partitions))
    for owner, some in enumerate(owned):
        assert all(owner_of(partition, owners) == owner for partition in some)


@given(partitions=st.integers(1, 60), owners=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_servers_with_different_numbers_of_workers_own_every_partition_once(
    partitions: int, owners: list[int]
):
    servers, found = len(owners), list[int]()
    for index, workers in enumerate(owners):
        for worker in range(workers):
            some = partitions_of(worker, workers, partitions, (index, servers))
            for partition in some:
                assert partition % servers == index
                assert owner_of(partition, workers, (index, servers)) == worker
            found += some
    assert sorted(found) == list(range(partitions))


@pytest.mark.parametrize(
    ("value", "share"), [("0/4", (0, 4)), ("3/4", (3, 4)), ((1, 2), (1, 2)), ([0, 1], WHOLE)]
)
def test_a_share_is_a_pair_or_a_text(value: Any, share: tuple[int, int]):
    assert share_of(value) == share


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, TypeError, "but a NoneType"),
        (2, TypeError, "but an int"),
        ("", ValueError, "two whole numbers"),
        ("1", ValueError, "two whole numbers"),
        ("1/2/3", ValueError, "two whole numbers"),
        ("-1/2", ValueError, "two whole numbers"),
        ("a/b", ValueError, "two whole numbers"),
        ((1.0, 2), ValueError, "two whole numbers"),
        ((True, 2), ValueError, "two whole numbers"),
        ((), ValueError, "two whole numbers"),
        ("0/0", ValueError, r"names 0 servers; their number must be between 1 and 4096"),
        ("0/4097", ValueError, r"must be between 1 and 4096"),
        ("4/4", ValueError, r"is share 4; those of 4 servers are 0 to 3"),
        ((-1, 2), ValueError, r"is share -1"),
    ],
)
def test_a_share_that_can_not_be_is_refused(value: Any, kind: type[Exception], text: str):
    with pytest.raises(kind, match=text):
        share_of(value)
