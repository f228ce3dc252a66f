"""What a commit changes in what is kept of a partition, and all of that, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Change", "Example", "Saved"]


@dataclass(slots=True)
class Example:
    """An example that has begun: where it lies, how far it is, and its states."""

    line: int  # number of the example as it was read
    index: int  # insertion index
    chunk: int
    row: int
    segment: int  # the next
    count: int
    key: bytes
    state: bytes


@dataclass(slots=True)
class Change:
    """What one commit changes.  ``base``: what is done below it is not listed any more."""

    put: list[Example] = field(default_factory=list)
    drop: list[int] = field(default_factory=list)  # lines of examples
    done: list[int] = field(default_factory=list)
    base: int | None = None
    chunks: dict[int, bytes] = field(default_factory=dict)  # how to read them again
    drop_chunks: list[int] = field(default_factory=list)
    meta: dict[str, bytes] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Saved:
    """All that is kept of a partition."""

    meta: dict[str, bytes]
    examples: list[Example]
    chunks: dict[int, bytes]
    done: list[int]
    tokens: list[int]
