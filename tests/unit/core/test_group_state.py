"""The places of a group, and the batches that wait in each."""

from __future__ import annotations

import pytest

from headrace_server.core.dispatch_effects import Batch, JoinRefused
from headrace_server.core.group_state import (
    LONGEST_NAME,
    MOST_MEMBERS,
    Group,
    GroupBatch,
    MemberPlace,
    check_group,
)

from .greetings import hello


def taken(group: Group, nonce: bytes, session: int) -> MemberPlace:
    member = group.place_for(nonce)
    member.session = session
    return member


def waiting(member: MemberPlace) -> list[int]:
    return [token for token, _ in member.waiting()]


def test_a_trainer_takes_its_own_place_again_else_the_first_that_is_free():
    group = Group("g", 2, -1, -1, 0)
    one, two, mine = taken(group, b"1", 1), taken(group, b"2", 2), hello(b"3", members=2)
    assert "members=2 are there already" in group.fault(mine)
    one.session = two.session = 0
    assert group.place_for(b"2") is two and group.place_for(b"3") is one
    assert group.members == [one, two] and not group.fault(mine)


def test_in_a_place_wait_batches_that_are_not_committed_there_in_the_order_of_tokens():
    group = Group("g", 2, -1, -1, 0)
    one = taken(group, b"1", 1)
    batches = [Batch(0, number, 1) for number in range(3)]
    for token in (5, 3, 4):
        group.batches[token] = GroupBatch(batches[token - 3])
    group.batches[4].done.add(one)
    group.batches[6] = GroupBatch(None)  # its claim is not judged
    assert waiting(taken(group, b"2", 2)) == [3, 4, 5]
    one.session = 0
    assert waiting(group.place_for(b"3")) == [3, 5]
    group.batches[1] = GroupBatch(batches[0])
    assert waiting(one) == [1, 3, 5]
    one.has(3), one.has(4)
    assert waiting(one) == [1, 5] and one.sent == {3: 0}
    group.drop(3)
    assert waiting(one) == [1, 5] and one.sent == {} and 3 not in group.batches


def test_a_group_takes_as_much_as_its_slowest_member_once_all_are_there():
    group = Group("g", 2, -1, -1, 0)
    one = taken(group, b"1", 1)
    one.window = 4
    assert group.credits == 0
    two = taken(group, b"2", 2)
    two.window, two.seq = 3, 1
    assert group.credits == 2
    group.batches[1] = GroupBatch(Batch(0, 0, 1), done={one})
    assert group.credits == 1
    group.claimed.add(9)
    assert group.credits == 0


@pytest.mark.parametrize(
    ("name", "members", "text"),
    [
        ("", 2, "members=2 without group="),
        ("g", 0, "members=0 is not 1"),
        ("g", MOST_MEMBERS + 1, "members=1025 is not 1 … 1024"),
        ("g" * (LONGEST_NAME + 1), 2, "more than 100 characters"),
    ],
)
def test_an_invalid_group_is_refused(name: str, members: int, text: str):
    with pytest.raises(JoinRefused, match=text):
        check_group(name, members)
