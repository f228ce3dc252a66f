"""The final states that a partition keeps, and which of them a new example starts from.

    example ends ─► add() ─┬─► latest of its key ─► latest(key)   the next example of that key
                           └─► ring of the last ones ─► drawn()   any other new example

An entry is a number in ascending order; the caller holds the states.  It is dropped
once neither part has it: the newest ``most`` keys and ``size`` entries of the ring are kept.
The age of an entry is the number of examples that came in since.  So a feed with one trainer
starts every example from the same state in each run.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Entry:
    key: bytes
    index: int  # its insertion index


class FinalStates:
    """``most`` 0 keeps none by key, ``size`` 0 has no ring; ``max_age`` None is any age."""

    def __init__(self, most: int = 0, max_age: int | None = None, size: int = 0) -> None:
        self._most, self._max_age, self._size = most, max_age, size
        self._entries: dict[int, _Entry] = {}
        self._of_key: OrderedDict[bytes, int] = OrderedDict()  # the latest ended one is last
        self._ring: deque[int] = deque()
        self.next = 0  # number of the next entry
        self.forgotten = 0  # number of keys dropped because of ``most``
        self.expired = 0  # number of keys whose state became too old

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: bytes, index: int, number: int | None = None) -> list[int]:
        """Add the state of an example that ended; return the entries that are dropped for it.

        ``number``: of an entry from the journal; those come in their order.
        """
        number = self.next if number is None else number
        self.next = number + 1
        self._entries[number] = _Entry(key, index)
        left: list[int] = []
        if self._most:
            before = self._of_key.pop(key, None)
            if before is not None:
                left.append(before)
            self._of_key[key] = number
            left += self._expire(index)
            if len(self._of_key) > self._most:
                left.append(self._of_key.popitem(last=False)[1])
                self.forgotten += 1
        if self._size:
            self._ring.append(number)
            if len(self._ring) > self._size:
                left.append(self._ring.popleft())
        return [one for one in dict.fromkeys(left) if self._drop(one)]

    def _expire(self, index: int) -> list[int]:
        expired: list[int] = []
        while self._of_key:
            key, number = next(iter(self._of_key.items()))
            if not self._is_old(number, index):
                break
            del self._of_key[key]
            expired.append(number)
        self.expired += len(expired)
        return expired

    def _is_old(self, number: int, index: int) -> bool:
        return self._max_age is not None and index - self._entries[number].index > self._max_age

    def _drop(self, number: int) -> bool:
        """Drop an entry if neither part has it any more; return whether it was dropped."""
        entry = self._entries[number]
        if self._of_key.get(entry.key) == number or (self._ring and number >= self._ring[0]):
            return False
        del self._entries[number]
        return True

    def latest(self, key: bytes, index: int) -> int | None:
        """Return the entry of an earlier example of this key; None if there is none."""
        number = self._of_key.get(key)
        return None if number is None or self._is_old(number, index) else number

    def drawn(self, where: float, key: bytes) -> int | None:
        """Return the entry at this fraction (0 … 1) of the ring, or the next one of another key."""
        count = len(self._ring)
        first = int(where * count)
        for place in range(first, first + count):
            number = self._ring[place % count]
            if self._entries[number].key != key:
                return number
        return None
