"""After commits in any order, reading from the base without the listed lines gives the rest."""

from __future__ import annotations

import random

import pytest

from headrace_server.core.stored_progress import Numbers, OpenLines
from tests.examples import some
from tests.footprint import entries


class LineWorld:
    """Lines, their record, and the lines that really are open."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.open: dict[int, int] = {}  # line → chunk
        self.read = 0
        self.base = 0  # as noted
        self.passed: set[int] = set()
        self.begin(0)

    def begin(self, first: int) -> None:
        """A life: lines from here on are read, and those that were passed over closed at once."""
        self.lines = OpenLines(first)
        self.chunk = self.chance.randrange(1000)
        self.known = set(self.passed)
        self.open = {}
        self.read = first

    def note(self, moved: bool) -> None:
        if moved:
            self.base = int(self.lines.base_cursor)
            assert self.base == self.lines.base_line
            self.passed = {line for line in self.passed if line >= self.base}

    def step(self) -> None:
        if not self.open or self.chance.random() < 0.2:
            rows = self.chance.choice([0, 1, 1, 3, 8])
            self.chunk += 1
            self.note(self.lines.read(self.chunk, rows, b"%d" % self.read))
            fresh = range(self.read, self.read + rows)
            self.read += rows
            closed = [line for line in fresh if line in self.known]
            self.open.update((line, self.chunk) for line in fresh if line not in self.known)
            self.note(self.lines.closed([self.chunk] * len(closed)))
        else:
            some = self.chance.sample(sorted(self.open), self.chance.randint(1, len(self.open)))
            self.passed.update(some)
            self.note(self.lines.closed([self.open.pop(line) for line in some]))


@pytest.mark.parametrize("seed", range(some(80)))
def test_reading_on_from_the_base_less_what_is_listed_gives_the_open_lines(seed: int):
    world = LineWorld(seed)
    for _ in range(4):
        for _ in range(world.chance.randrange(60)):
            world.step()
            before = {line for line in world.known if line >= world.read}
            again = set(range(world.base, world.read)) - world.passed
            assert again - before == set(world.open)
            # No list and no table is longer than it must be.
            assert all(line >= world.base for line in world.passed)
            assert entries(world.lines) <= len(set(world.open.values())) + 1
        world.begin(world.base)


def test_the_base_stays_at_the_oldest_chunk_with_an_open_line():
    lines = OpenLines()
    assert lines.read(1, 2, b"a")
    assert not lines.read(2, 1, b"b")
    assert not lines.read(3, 1, b"c")
    assert not lines.closed([2, 1])
    assert (lines.base, lines.base_line, lines.base_cursor) == (1, 0, b"a")
    assert lines.closed([1])
    assert (lines.base, lines.base_line, lines.base_cursor) == (3, 3, b"c")
    assert not lines.closed([3])  # it is the newest: reading goes on from it
    assert lines.base_cursor == b"c" and not lines.is_open(3)
    assert lines.read(4, 1, b"d")
    assert (lines.base, lines.base_line, lines.next) == (4, 4, 5)


def test_chunks_without_lines_move_the_base_on():
    lines = OpenLines(7)
    assert [lines.read(n, 0, b"%d" % n) for n in range(3)] == [True, True, True]
    assert (lines.base_cursor, lines.base_line) == (b"2", 7)


def test_a_line_that_is_closed_twice_is_refused():
    lines = OpenLines()
    lines.read(1, 1, b"")
    lines.closed([1])
    with pytest.raises(ValueError, match="no line of chunk 1 is open"):
        lines.closed([1])
    with pytest.raises(ValueError, match="no line of chunk 9 is open"):
        lines.closed([9])


@pytest.mark.parametrize("seed", range(some(80)))
def test_making_on_from_the_base_less_what_is_done_gives_the_batches_that_are_not(seed: int):
    chance = random.Random(seed)
    base, listed, really = 0, set[int](), set[int]()
    for _ in range(4):
        numbers, made = Numbers(base, listed), base
        out: list[int] = []
        for _ in range(chance.randrange(60)):
            if not out or chance.random() < 0.4:
                numbers.made(made, b"after %d" % made)
                if not numbers.is_done(made):
                    out.append(made)
                made += 1
            else:
                number = out.pop(chance.randrange(len(out)))
                really.add(number)
                listed.add(number)
                moved = numbers.done(number)
                assert numbers.done(number) is None
                if moved is not None:
                    assert moved[0] > base
                    assert moved[1] == b"after %d" % (moved[0] - 1)
                    base = moved[0]
                    listed = {n for n in listed if n >= base}
            assert {n for n in range(made) if n >= base and n not in listed} == set(out)
            assert all(numbers.is_done(n) == (n in really) for n in range(made))
            oldest = min(out, default=made)
            assert entries(numbers) <= made - base + len(numbers.above)
            assert base <= oldest


def test_the_base_moves_as_far_as_a_cursor_is_known():
    numbers = Numbers(3, [4, 5])
    numbers.made(3, b"after 3")
    assert numbers.done(3) == (4, b"after 3")  # 4 and 5 are done, and were not made again yet
    numbers.made(4, b"after 4")
    numbers.made(5, b"after 5")
    numbers.made(6, b"after 6")
    assert numbers.done(6) == (7, b"after 6")
    assert entries(numbers) == 0
    numbers.made(2, b"old")
    assert entries(numbers) == 0


def test_a_batch_that_is_done_out_of_turn_waits_for_those_before_it():
    numbers = Numbers()
    for number in range(4):
        numbers.made(number, b"%d" % number)
    assert numbers.done(2) is None
    assert numbers.done(1) is None
    assert numbers.done(0) == (3, b"2")
    assert numbers.is_done(1) and not numbers.is_done(3)


def test_the_first_open_batch_comes_after_those_that_are_done_without_a_gap() -> None:
    numbers = Numbers(3, done=[3, 4, 6])
    assert numbers.first_open == 5 and numbers.base == 3, "no cursor is known between them"
    numbers.done(5)
    assert numbers.first_open == 7
