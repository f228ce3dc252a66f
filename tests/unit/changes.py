"""Random changes of a partition, and the state that they lead to."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headrace_server.shaping.stored_state import Change, Examples, Key, Saved


@dataclass(frozen=True, slots=True)
class Example:
    """One begun example: its place, its progress and its states."""

    line: int  # number of the example as it was read
    index: int  # insertion index
    chunk: int
    row: int
    segment: int  # the next
    count: int
    version: int  # token of its last commit
    key: Key
    state: bytes  # all its states, concatenated


def examples_of(examples: Iterable[Example]) -> Examples:
    """Examples as columns; their states become one column."""
    rows = [*examples]
    numbers = [(e.line, e.index, e.chunk, e.row, e.segment, e.count, e.version) for e in rows]
    columns = np.array(numbers, np.int64).reshape(-1, 7).T.copy()
    return Examples(columns, [e.key for e in rows], [[e.state for e in rows]])


def listed(examples: Examples) -> list[Example]:
    """Each example as an object."""
    rows = zip(*examples.numbers.tolist(), examples.keys, examples.packed(), strict=True)
    return [Example(*row) for row in rows]


class Model:
    """The expected content of a store, as dicts."""

    def __init__(self) -> None:
        self.examples: dict[int, Example] = {}
        self.chunks: dict[int, bytes] = {}
        self.meta: dict[str, bytes] = {}
        self.numbers: set[int] = set()
        self.tokens: list[int] = []

    def apply(self, change: Change) -> None:
        self.examples.update((e.line, e) for e in listed(change.put))
        for line in change.drop:
            self.examples.pop(line, None)
        self.chunks.update(change.chunks)
        for number in change.drop_chunks:
            self.chunks.pop(number, None)
        self.numbers.update(change.done)
        if change.base is not None:
            self.numbers = {n for n in self.numbers if n >= change.base}
        self.meta.update(change.meta)
        self.tokens += change.tokens

    @property
    def saved(self) -> Saved:
        examples = sorted(self.examples.values(), key=lambda e: e.index)
        of = examples_of(examples)
        return Saved(self.meta, of, self.chunks, sorted(self.numbers), self.tokens)


def example(chance: random.Random, line: int) -> Example:
    segment = chance.randrange(9)
    state = chance.randbytes(chance.choice([0, 1, 100, 5000]))
    index = line - 2**63 + (chance.randrange(4096) << 51)
    key = chance.randrange(3), chance.randbytes(chance.randrange(9))
    version = chance.randrange(2**62)
    return Example(line, index, line // 7, line % 7, segment, 9, version, key, state)


def some_examples(chance: random.Random, lines: list[int]) -> Examples:
    """Their states are of one size, in two columns, or differ in size."""
    put = examples_of([example(chance, line) for line in lines])
    if lines and chance.random() < 0.5:
        put.states = [
            np.frombuffer(chance.randbytes(width * len(lines)), np.uint8).reshape(len(lines), width)
            for width in (chance.choice([0, 3, 2000]), 5)
        ]
    return put


def random_change(chance: random.Random) -> Change:
    """Over few lines and numbers, so that each is put and dropped again and again."""

    def some(most: int) -> list[int]:
        return chance.sample(range(40), chance.randrange(most))

    return Change(
        put=some_examples(chance, some(8)),
        drop=some(4),
        done=some(6),
        base=chance.randrange(40) if chance.random() < 0.3 else None,
        chunks={number: chance.randbytes(20) for number in some(4)},
        drop_chunks=some(4),
        meta={name: chance.randbytes(9) for name in chance.sample("abç", chance.randrange(3))},
        tokens=[chance.randrange(2**62) for _ in range(chance.randrange(3))],
    )


def begun(chunks, rows, counts, segments, indices, lines, keys):  # type: ignore[no-untyped-def]
    """Begun examples by column, without states."""
    versions = [7] * len(keys)
    numbers = np.array([lines, indices, chunks, rows, segments, counts, versions], np.int64)
    return Examples(numbers, keys)
