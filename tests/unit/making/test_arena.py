"""Blocks never overlap, all bytes are accounted for, and free memory is never lost."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace_server.making.arena import PAGE, Arena, Block
from tests.examples import some


def test_the_lowest_address_is_used_first():
    a = Arena()
    a.grow(16 * PAGE)
    blocks = [a.allocate(4 * PAGE) for _ in range(4)]
    for block in (blocks[3], blocks[1], blocks[0]):
        a.free(block)
    assert a.allocate(PAGE) == Block(0, 0, PAGE)
    assert a.allocate(8 * PAGE) is None
    assert a.allocate(7 * PAGE) == Block(0, PAGE, 7 * PAGE)
    assert a.allocate(4 * PAGE) == blocks[3]


class ArenaMachine(RuleBasedStateMachine):
    """Requests, growth and frees in any order, compared with a plain list of live blocks."""

    def __init__(self):
        super().__init__()
        self.arena = Arena()
        self.live: list[Block] = []

    @rule(pages=st.integers(1, 12))
    def allocate(self, pages):
        lacks, size = self.arena.lacks(pages * PAGE), self.arena.size
        block = self.arena.allocate(pages * PAGE)
        assert lacks == self.lacking(pages * PAGE) and (block is None) == (lacks > 0)
        if block is None:
            self.arena.grow(lacks)
            assert self.arena.size == size + lacks
            block = self.arena.allocate(pages * PAGE)
        assert block.nbytes == pages * PAGE and block.offset % PAGE == 0
        self.live.append(block)

    def lacking(self, size):
        """The bytes by which no gap, nor the end, has room for a block."""
        end = 0
        for block in sorted(self.live, key=lambda b: b.offset):
            if block.offset - end >= size:
                return 0
            end = block.offset + block.nbytes
        return max(0, size - (self.arena.size - end))

    @rule(pages=st.integers(1, 12))
    def grow(self, pages):
        self.arena.grow(pages * PAGE)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        block = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.arena.free(block)
        with pytest.raises(ValueError, match="not occupied"):
            self.arena.free(block)

    @invariant()
    def blocks_lie_apart_within_the_range_and_every_byte_is_accounted_for(self):
        end = 0
        for block in sorted(self.live, key=lambda b: b.offset):
            assert block.offset >= end
            end = block.offset + block.nbytes
        assert end <= self.arena.size
        assert self.arena.used_bytes == sum(block.nbytes for block in self.live)


ArenaMachine.TestCase.settings = settings(
    max_examples=some(80), stateful_step_count=50, deadline=None, derandomize=True
)
TestArenaMachine = ArenaMachine.TestCase
