"""Blocks never overlap, all bytes are accounted for, and free memory is never lost."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace_server.making.arena import Arena, Block
from tests.examples import some

PAGE = 4096


def pages(n):
    return n * PAGE


def arena(budget=16, segment=8):
    return Arena(pages(budget), pages(segment))


def test_the_lowest_address_is_used_first():
    a = arena()
    blocks = [a.allocate(pages(4)) for _ in range(4)]
    for block in (blocks[3], blocks[1], blocks[0]):
        a.free(block)
    assert a.allocate(1) == Block(0, 0, PAGE)
    assert a.allocate(pages(8)) is None
    assert a.allocate(pages(7)) == Block(0, PAGE, pages(7))
    assert a.allocate(pages(4)) == blocks[3]


def test_a_second_free_is_refused_and_changes_nothing():
    a = arena()
    first, second = a.allocate(1), a.allocate(1)
    a.free(first)
    with pytest.raises(ValueError, match="freed before"):
        a.free(first)
    assert a.used_bytes == PAGE
    assert a.allocate(1) == first
    a.free(second)


def test_empty_segments_go_newest_first_and_only_for_a_request_that_needs_their_room():
    """1. Four segments of four pages fill the budget.  2. All are freed: none goes.  3. A request
    of four pages uses the first.  4. One of eight needs two to go: the newest two."""
    a = arena(budget=16, segment=4)
    for block in [a.allocate(pages(4)) for _ in range(4)]:
        a.free(block)
    assert a.retired == [] and a.reserved_bytes == pages(16)
    assert a.allocate(pages(4)) == Block(0, 0, pages(4))
    assert a.allocate(pages(8)) == Block(4, 0, pages(8))
    assert a.retired == [3, 2] and a.size_of(4) == pages(8)
    assert a.reserved_bytes == pages(16)


class ArenaMachine(RuleBasedStateMachine):
    """Requests and frees in any order, compared with a plain list of live blocks."""

    BUDGET, SEGMENT = 40, 8

    def __init__(self):
        super().__init__()
        self.arena = arena(self.BUDGET, self.SEGMENT)
        self.live: list[Block] = []
        self.segments: dict[int, int] = {}
        self.seen: set[int] = set()

    @rule(nbytes=st.integers(0, pages(12)) | st.sampled_from([pages(1), pages(20), pages(40)]))
    def allocate(self, nbytes):
        admitted = self.arena.admits(nbytes)
        block = self.arena.allocate(nbytes)
        assert admitted == (block is not None)
        while self.arena.retired:
            number = self.arena.retired.pop()
            del self.segments[number]
            assert all(b.segment != number for b in self.live)
        if block is not None and block.segment not in self.segments:
            assert block.segment not in self.seen
            self.seen.add(block.segment)
            self.segments[block.segment] = self.arena.size_of(block.segment)
        if block is None:
            assert self.live, "an arena without live blocks has room for all within its budget"
            self.no_room_was_true(max(1, -(-nbytes // PAGE)) * PAGE)
            return
        assert block.nbytes == max(1, -(-nbytes // PAGE)) * PAGE and block.offset % PAGE == 0
        self.live.append(block)

    def no_room_was_true(self, size):
        free = dict(self.segments)
        for number, total in self.segments.items():
            edges = sorted((b.offset, b.nbytes) for b in self.live if b.segment == number)
            end = 0
            for offset, nbytes in [*edges, (total, 0)]:
                assert offset - end < size
                end = offset + nbytes
            if edges:
                del free[number]
        left = self.arena.budget_bytes - sum(self.segments.values()) + sum(free.values())
        assert left < size

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        block = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.arena.free(block)
        with pytest.raises(ValueError, match="not occupied"):
            self.arena.free(block)

    @precondition(lambda self: self.live)
    @rule()
    def free_all_leaves_one_range_per_segment(self):
        while self.live:
            self.arena.free(self.live.pop())
        sizes = sorted(self.segments.values(), reverse=True)
        wholes = [self.arena.allocate(size, grow=False) for size in sizes]
        assert all(block is not None and block.offset == 0 for block in wholes)
        for block in wholes:
            self.arena.free(block)

    @invariant()
    def blocks_lie_apart_and_within_their_segments(self):
        ends: dict[int, int] = {}
        for block in sorted(self.live, key=lambda b: (b.segment, b.offset)):
            assert block.offset >= ends.get(block.segment, 0)
            ends[block.segment] = block.offset + block.nbytes
            assert ends[block.segment] <= self.segments[block.segment]

    @invariant()
    def every_byte_is_accounted_for(self):
        used = sum(block.nbytes for block in self.live)
        assert self.arena.used_bytes == used
        assert self.arena.reserved_bytes == sum(self.segments.values()) <= pages(self.BUDGET)


ArenaMachine.TestCase.settings = settings(
    max_examples=some(80), stateful_step_count=50, deadline=None, derandomize=True
)
TestArenaMachine = ArenaMachine.TestCase
