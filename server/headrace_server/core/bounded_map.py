"""A mapping that remembers its last entries, where trainers determine how many there are."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(dict[K, V]):
    """At most ``most`` entries: a further one takes the place of the oldest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next(iter(self))]

    def first(self, key: K, value: V) -> V:
        """Return the value that a key was given first: this one, if it is new."""
        if key not in self:
            self[key] = value
        return self[key]
