"""The stored state of a partition, and the change that a commit makes to it, as plain data.

Examples are columns: a commit of a whole batch is a few arrays, and has no object per example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

Key = tuple[int, bytes]  # epoch and key
#: Stands for the key of a sequence whose log has the key.
NO_KEY: Key = 0, b""
#: Rows of the numbers of Examples.
LINE, INDEX, CHUNK, ROW, AT, END, VERSION = range(7)
#: The END of an example that may still grow: beyond all steps.
OPEN = 1 << 40
#: One state of some examples: rows of bytes (uint8), or bytes of different lengths.
Column = np.ndarray | list[bytes]
#: Makes an array of bytes of a shape.
Memory = Callable[[tuple[int, int]], np.ndarray]


@dataclass(slots=True, eq=False)
class Examples:
    """Begun examples, as columns."""

    #: int64, rows as named above.
    numbers: np.ndarray = field(default_factory=lambda: np.zeros((7, 0), np.int64))
    keys: Sequence[Key] = ()
    states: Sequence[Column] = ()

    @classmethod
    def joined(cls, parts: Sequence[Examples]) -> Examples:
        """Return the concatenation of all parts."""
        parts = [part for part in parts if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else cls()
        states: list[Column]
        if len({part.widths for part in parts}) == 1:
            states = [
                _concatenated(column) for column in zip(*(p.states for p in parts), strict=True)
            ]
        else:
            states = [[state for part in parts for state in part.packed()]]
        numbers = np.concatenate([part.numbers for part in parts], axis=1)
        return cls(numbers, list(chain.from_iterable(part.keys for part in parts)), states)

    @classmethod
    def gathered(cls, parts: Sequence[tuple[Examples, np.ndarray]], memory: Memory) -> Examples:
        """Gather rows of the parts by insertion index; copy each state once, to ``memory``."""
        if len({part.widths for part, _ in parts}) != 1:
            joined = cls.joined([part.take(rows) for part, rows in parts])
            return joined.take(np.argsort(joined.numbers[INDEX], kind="stable"))
        numbers = np.concatenate([part.numbers[:, rows] for part, rows in parts], axis=1)
        order = np.argsort(numbers[INDEX], kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        keys = [part.keys[row] for part, rows in parts for row in rows.tolist()]
        return cls(
            numbers[:, order],
            [keys[i] for i in order.tolist()],
            [_gathered(parts, n, places, memory) for n in range(len(parts[0][0].states))],
        )

    def __len__(self) -> int:
        return len(self.keys)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Examples):
            return NotImplemented
        mine, others = self.numbers.tolist(), other.numbers.tolist()
        return (mine, [*self.keys], self.packed()) == (others, [*other.keys], other.packed())

    @property
    def lines(self) -> np.ndarray:
        lines: np.ndarray = self.numbers[LINE]
        return lines

    @property
    def widths(self) -> tuple[int, ...]:
        """Bytes of an example in each column of states; -1 where they differ."""
        return tuple(-1 if isinstance(c, list) else c.shape[1] for c in self.states)

    def take(self, places: np.ndarray) -> Examples:
        """Return some of these examples; do not copy consecutive ones that are more than half."""
        rows = places.tolist()
        span = _span(places) if 2 * len(rows) > len(self) else places
        states = [[c[i] for i in rows] if isinstance(c, list) else c[span] for c in self.states]
        return Examples(self.numbers[:, places], [self.keys[i] for i in rows], states)

    def packed(self) -> list[bytes]:
        """Return the concatenated states of each example."""
        if not self.states:
            return [b""] * len(self)
        columns = [c if isinstance(c, list) else [row.tobytes() for row in c] for c in self.states]
        return [b"".join(row) for row in zip(*columns, strict=True)]


def _gathered(
    parts: Sequence[tuple[Examples, np.ndarray]], number: int, places: np.ndarray, memory: Memory
) -> Column:
    """Gather one state of these rows, each row at its place."""
    first = parts[0][0].states[number]
    if isinstance(first, list):
        values = [part.states[number][row] for part, rows in parts for row in rows.tolist()]
        return [values[i] for i in np.argsort(places).tolist()]
    whole, at = memory((len(places), first.shape[1])), 0
    for part, rows in parts:
        column = part.states[number]
        assert not isinstance(column, list)  # all parts have the same form
        whole[_span(places[at : at + len(rows)])] = column[_span(rows)]
        at += len(rows)
    return whole


def _span(rows: np.ndarray) -> slice | np.ndarray:
    """Return consecutive rows as a slice, which numpy reads without a copy."""
    if len(rows) and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _concatenated(columns: Sequence[Column]) -> Column:
    arrays = [column for column in columns if not isinstance(column, list)]
    if arrays:
        whole: np.ndarray = np.concatenate(arrays)
        return whole
    return [value for column in columns for value in column]


_NO_EXAMPLES = Examples()


@dataclass(slots=True)
class Change:
    """The change of one commit.  Numbers below ``base`` are removed from ``done``."""

    put: Examples = field(default_factory=lambda: _NO_EXAMPLES)
    drop: list[int] = field(default_factory=list)  # lines of examples to drop, after all puts
    done: list[int] = field(default_factory=list)
    base: int | None = None
    chunks: dict[int, bytes] = field(default_factory=dict)  # cursors for reading chunks again
    drop_chunks: list[int] = field(default_factory=list)
    meta: dict[str, bytes] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Return whether anything changes."""
        lists = (self.drop, self.done, self.chunks, self.drop_chunks, self.meta, self.tokens)
        return any(lists) or self.base is not None or len(self.put) > 0


@dataclass(slots=True)
class Saved:
    """The whole stored state of a partition; examples by insertion index."""

    meta: dict[str, bytes]
    examples: Examples
    chunks: dict[int, bytes]
    done: list[int]
    tokens: list[int]
