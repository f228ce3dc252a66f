"""A mapping that remembers its last entries, where trainers determine how many there are."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(OrderedDict[K, V]):
    """At most ``most`` entries: a further one takes the place of the oldest.

    To find the oldest entry a dict passes over all that were deleted before it: 25 µs where 65,536
    stay.  An ordered one does not.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._most:
            self.popitem(last=False)

    def first(self, key: K, value: V) -> V:
        """Return the value that a key was given first: this one, if it is new."""
        if key not in self:
            self[key] = value
        return self[key]
