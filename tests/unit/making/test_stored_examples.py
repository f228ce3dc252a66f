"""After a partition's death at any moment, its stored record is enough to resume exactly."""

from __future__ import annotations

import contextlib
import copy
import random
from typing import Any

import pytest

from headrace_server.leasing.protocol import ANYONE
from headrace_server.making.stored_examples import Commit, StoredExamples
from headrace_server.shaping.admission import FIRST_INDEX
from headrace_server.shaping.input import Input
from headrace_server.shaping.plan import Plan, Read
from headrace_server.shaping.segments import Segments
from headrace_server.shaping.stored_state import Change, Saved
from tests.examples import some
from tests.unit.changes import Example, examples_of, listed


class Stored:
    """The content of a store after changes."""

    def __init__(self) -> None:
        self.examples: dict[int, Example] = {}
        self.chunks: dict[int, bytes] = {}
        self.meta: dict[str, bytes] = {}
        self.marks: set[int] = set()

    def apply(self, change: Change) -> None:
        self.examples.update((e.line, e) for e in listed(change.put))
        for line in change.drop:
            del self.examples[line]
        self.chunks.update(change.chunks)
        for number in change.drop_chunks:
            del self.chunks[number]
        assert not self.marks & set(change.done)
        self.marks.update(change.done)
        if change.base is not None:
            self.marks = {mark for mark in self.marks if mark >= change.base}
        self.meta.update(change.meta)
        assert {e.chunk for e in self.examples.values()} == set(self.chunks)

    @property
    def saved(self) -> Saved:
        examples = sorted(self.examples.values(), key=lambda e: e.index)
        return Saved(self.meta, examples_of(examples), self.chunks, sorted(self.marks), [])


class Truth:
    """The true progress of each line, by committed changes."""

    def __init__(self) -> None:
        self.segments: dict[int, int] = {}  # line → segments that are done
        self.index: dict[int, int] = {}
        self.refused: set[int] = set()


class World:
    """A partition with the real machine, over lines whose facts are known."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        n = self.lines = chance.randrange(5, 80)
        self.counts = [chance.choice([1, 1, 2, 3, 5]) for _ in range(n)]
        self.keys = [b"%d" % line for line in range(n)]
        for line in range(1, n):
            if self.counts[line - 1] > 1 and chance.random() < 0.15:
                self.keys[line] = self.keys[line - 1]
        self.batch_size = chance.randrange(1, 5)
        self.capacity = chance.choice([None, self.batch_size, 12])
        self.stored, self.truth = Stored(), Truth()
        self.pending: list[tuple[Change, Truth]] = []
        self.begin()

    # Lives

    def begin(self) -> None:
        """A life, from what is stored."""
        self.record = StoredExamples()
        self.machine = Segments(0, self.batch_size, self.capacity, True)
        self.machine.input = Input(self.machine, 0)
        self.machine._asking = ANYONE  # this world reads when it likes
        self.out: list[Plan] = []
        self.token = 0
        self.unsettled: list[Commit] = []
        self.states: dict[int, bytes] = {}  # by slot
        self.position = self.chunk = 0
        self.seen = copy.deepcopy(self.truth)
        self.known = set(self.truth.segments) | self.truth.refused  # of earlier lives
        self.firsts: dict[int, int] = {}
        if "base" not in self.stored.meta:
            assert not self.truth.segments and not self.truth.refused
            return
        saved = copy.deepcopy(self.stored.saved)
        cursor, examples = self.record.resume(saved), saved.examples
        self.position = cursor["position"]
        self.chunk = max([cursor["chunk"], *saved.chunks]) + 1
        assert cursor["stages"] == ["as of", cursor["line"]]
        assert self.position == cursor["line"]
        going = {n: s for n, s in self.truth.segments.items() if s < self.counts[n]}
        order = sorted(going, key=self.truth.index.__getitem__)
        lines, indices, chunks, rows, segments, counts, _ = examples.numbers.tolist()
        assert lines == order
        assert segments == [going[line] for line in order]
        assert counts == [self.counts[line] for line in order]
        assert indices == [self.truth.index[line] for line in order]
        assert list(examples.keys) == [(0, self.keys[line]) for line in order]
        assert examples.packed() == [b"%d after %d" % (line, going[line]) for line in order]
        for chunk, row, line in zip(chunks, rows, order, strict=True):
            read, stages = self.record.reread(chunk)
            assert read == Read(chunk, 0, read.position, read.limit)
            assert read.position + row == line and row < read.limit
            assert stages == ["as of", read.position]
        slots = self.machine.resume(examples, cursor["index"], cursor["line"])
        self.record.in_slots(slots, examples.lines)

    def crash(self) -> None:
        """Die; of what is not committed a part is, and in its order."""
        self.commit(self.chance.randint(0, len(self.pending)))
        self.pending.clear()
        self.begin()

    def submit(self, change: Change) -> None:
        assert not self.unsettled
        self.pending.append((change, copy.deepcopy(self.seen)))

    def commit(self, n: int) -> None:
        for change, truth in self.pending[:n]:
            self.stored.apply(change)
            self.truth = truth
        del self.pending[:n]

    # Work

    def step(self) -> None:
        what = self.chance.random()
        if what < 0.3 and self.machine.hungry:
            self.read()
        elif what < 0.6:
            self.out += self.machine.next_draft() or ()
            self.refused()
        elif what < 0.9 and self.out:
            self.save(self.out.pop(self.chance.randrange(len(self.out))))
        else:
            self.commit(self.chance.randint(0, len(self.pending)))
        # Chunks can be read again while a line of theirs is not done, and are known for no longer.
        done = self.seen.segments
        lines = (set(range(self.position)) | done.keys()) - self.seen.refused
        going = [n for n in lines if done.get(n, 0) < self.counts[n]]
        reads = self.reads()
        there = {n for r in reads for n in range(r.position, r.position + r.limit)}
        assert there >= set(going)
        assert self.unsettled or len(reads) <= len(going)

    def reads(self) -> list[Read]:
        """The reads of all chunks that can be read again."""
        found = []
        for chunk in range(self.chunk + 1):
            with contextlib.suppress(KeyError):
                found.append(self.record.reread(chunk)[0])
        return found

    def read(self) -> None:
        if self.position == self.lines:
            self.machine.finish()
            self.refused()
            return
        self.settle()
        limit = self.chance.randrange(1, 9)
        rows = 0 if self.chance.random() < 0.1 else min(limit, self.lines - self.position)
        read = Read(self.chunk, 0, self.position, limit)
        cursor = {"position": self.position, "index": self.machine.next_index}
        line, marks = self.record.read(read, rows, ["as of", self.position], cursor)
        assert line == self.position
        lines = range(line, line + rows)
        for row, n in enumerate(lines):
            assert bool(marks is not None and marks[row]) == (n in self.known)
        facts: Any = {
            "key": [(0, self.keys[n]) for n in lines],
            "count": [self.counts[n] for n in lines],
            "line": line,
            "known": marks,
        }
        self.machine.offer(read.chunk, rows, facts)
        self.position += rows
        self.chunk += 1
        self.firsts[read.chunk] = line
        self.refused()

    def refused(self) -> None:
        for chunk, row in self.machine.take_refused():
            self.settle()
            self.seen.refused.add(self.firsts[chunk] + row)
            self.submit(self.record.refused(chunk, row))

    def save(self, plan: Plan) -> None:
        self.token += 1
        batch = self.machine.commit(plan.batch, self.token).rows
        for line, segment, index in zip(
            batch.lines.tolist(), batch.segments.tolist(), batch.indices.tolist(), strict=True
        ):
            assert self.seen.segments.get(line, 0) == segment
            assert self.seen.index.setdefault(line, index) == index
            self.seen.segments[line] = segment + 1
        lines, segments = batch.lines.tolist(), batch.segments.tolist()
        keys = [(0, self.keys[line]) for line in lines]
        self.unsettled.append((batch, keys))
        after = zip(batch.slots.tolist(), lines, segments, strict=True)
        self.states.update((slot, b"%d after %d" % (line, s + 1)) for slot, line, s in after)
        self.seen_saved = copy.deepcopy(self.seen)
        if self.chance.random() < 0.5:
            self.settle()
        self.refused()

    def settle(self) -> None:
        """Submit one change of the commits since the last one."""
        if self.unsettled:
            change = self.record.saved(
                self.unsettled, lambda slots: [[self.states[slot] for slot in slots.tolist()]]
            )
            self.pending.append((change, self.seen_saved))
            self.unsettled = []


@pytest.mark.parametrize("seed", range(some(150)))
def test_every_line_ends_once_however_often_the_partition_dies(seed: int):
    world = World(seed)
    crashes = world.chance.randrange(12)
    for _ in range(crashes):
        for _ in range(world.chance.randrange(60)):
            world.step()
        world.crash()
    for _ in range(10_000):
        if world.machine.done:
            break
        world.step()
    world.settle()
    world.commit(len(world.pending))
    truth = world.truth
    assert truth.segments.keys() | truth.refused == set(range(world.lines))
    assert not truth.segments.keys() & truth.refused
    assert all(world.counts[line] == done for line, done in truth.segments.items())
    # As if nothing had happened: indices without gaps, in the order of the lines.
    ordered = [truth.index[line] for line in sorted(truth.segments)]
    assert ordered == list(range(FIRST_INDEX, FIRST_INDEX + len(ordered)))
    assert not world.stored.examples and not world.stored.chunks
    world.begin()
    while world.position < world.lines:
        world.read()
    world.machine.finish()
    assert world.machine.done and world.machine.next_draft() is None
