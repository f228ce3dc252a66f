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
    blocks = [a.allocate(4 * PAGE, 16 * PAGE) for _ in range(4)]
    for block in (blocks[3], blocks[1], blocks[0]):
        a.free(block)
    assert a.allocate(PAGE, 16 * PAGE) == Block(0, PAGE)
    assert a.allocate(8 * PAGE, 16 * PAGE) is None
    assert a.allocate(7 * PAGE, 16 * PAGE) == Block(PAGE, 7 * PAGE)
    assert a.allocate(4 * PAGE, 15 * PAGE) is None
    assert a.allocate(4 * PAGE, 16 * PAGE) == blocks[3]


class ArenaMachine(RuleBasedStateMachine):
    """Requests, growth and frees in any order, compared with a plain list of live blocks."""

    def __init__(self):
        super().__init__()
        self.arena = Arena()
        self.live: list[Block] = []

    @rule(pages=st.integers(1, 12), limit=st.integers(8, 64))
    def allocate(self, pages, limit):
        size, nbytes, limit = self.arena.size, pages * PAGE, limit * PAGE
        lacks = self.arena.lacks(nbytes, limit)
        block = self.arena.allocate(nbytes, limit)
        assert lacks == self.lacking(nbytes, limit) and (block is None) == (lacks != 0)
        if lacks is None:
            return
        if block is None:
            self.arena.grow(lacks)
            assert self.arena.size == size + lacks
            block = self.arena.allocate(nbytes, limit)
        assert block.nbytes == nbytes and block.offset % PAGE == 0
        assert block.offset + nbytes <= limit
        self.live.append(block)

    def lacking(self, size, limit):
        """The bytes by which no gap below a limit, nor the end, has room for a block."""
        end = 0
        for block in sorted(self.live, key=lambda b: b.offset):
            if block.offset - end >= size and end + size <= limit:
                return 0
            end = block.offset + block.nbytes
        return max(0, end + size - self.arena.size) if end + size <= limit else None

    @rule(least=st.integers(0, 64))
    def shrink(self, least):
        size = self.arena.size
        end = max((block.offset + block.nbytes for block in self.live), default=0)
        assert self.arena.shrink(least * PAGE) == size - self.arena.size
        assert self.arena.size == min(size, max(end, least * PAGE))

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
