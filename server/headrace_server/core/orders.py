"""Orders that change what a partition makes: the end of its input, other proportions of classes.

    given(read, number, order) ─► listed, and stored with the partition
    restore(count)             ─► those that the cursor does not show are pending
    due(read, number)          ─► each at the place where it was given

A later life makes batches again from an earlier cursor.  It makes the same ones only if every order
takes effect after as many rows of the source and as many batches as in the life that got it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

__all__ = ["Order", "Orders"]

#: Orders that are stored; of proportions older ones are in the cursor long since.
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Order:
    """``kind`` is "close", with whether to cancel, or "target", with proportions."""

    count: int  # of the orders up to and with this one
    read: int  # rows of the source that were read before
    number: int  # of the first batch that was not planned before
    kind: str
    what: Any
    since: int = 0  # the first batch that shows it

    def to_plain(self) -> list[Any]:
        return [self.count, self.read, self.number, self.kind, self.what, self.since]


class Orders:
    """All orders of one partition."""

    def __init__(self) -> None:
        self._given: list[Order] = []
        self._pending: deque[Order] = deque()

    @property
    def count(self) -> int:
        """How many have taken effect."""
        if self._pending:
            return self._pending[0].count - 1
        return self._given[-1].count if self._given else 0

    @property
    def waits(self) -> bool:
        """Whether an order of an earlier life is pending."""
        return bool(self._pending)

    def given(self, read: int, number: int, kind: str, what: Any, since: int = 0) -> Order:
        """An order has come.  While others are pending it takes effect right after them."""
        if self._pending:
            last = self._pending[-1]
            read, number, since = last.read, last.number, max(since, last.since, last.number)
        count = self._given[-1].count + 1 if self._given else 1
        order = Order(count, read, number, kind, what, since)
        self._given = [*self._given, order][-_REMEMBERED:]
        if self._pending:
            self._pending.append(order)
        return order

    def known(self, kind: str, what: Any) -> bool:
        """Whether such an order was given before."""
        return any((order.kind, order.what) == (kind, what) for order in self._given)

    def to_plain(self) -> list[Any]:
        """All that is stored."""
        return [order.to_plain() for order in self._given]

    def load(self, plain: list[Any]) -> None:
        """What an earlier life has stored."""
        self._given = [Order(*one) for one in plain]

    def restore(self, count: int) -> None:
        """Go on from a cursor at which so many had taken effect."""
        self._pending = deque(order for order in self._given if order.count > count)

    def limit(self, read: int, limit: int) -> int:
        """How many rows may be read at once, so that none passes the place of an order."""
        left = self._pending[0].read - read if self._pending else 0
        return min(limit, left) if left > 0 else limit

    def due(self, read: int, number: int) -> Order | None:
        """The next pending order, where its place is reached."""
        if self._pending:
            order = self._pending[0]
            if read >= order.read and number >= order.number:
                return self._pending.popleft()
        return None
