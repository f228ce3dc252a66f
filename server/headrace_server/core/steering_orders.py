"""Orders that change what a partition makes: the end of its input, other classes, other sizes.

    given(read, number, order) ─► listed, and stored with the partition
    restore(count)             ─► those that the cursor does not show are pending
    due(read, number)          ─► each at the place where it was given

A later process makes batches again from an earlier cursor.  It makes the same ones only if every
order takes effect after the same number of rows and of batches as when it was given.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

#: Maximum number of stored orders; the cursor includes the effect of older ones.
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Order:
    """One order, by its ``kind``.

    "close" says whether to cancel, "target" has proportions of classes, "batch_size" a size for
    each bucket.
    """

    count: int  # number of orders up to this one
    read: int  # number of rows read from the source before it
    number: int  # of the first batch planned after it
    kind: str
    what: Any
    since: int = 0  # the first batch that it affects

    def to_plain(self) -> list[Any]:
        return [self.count, self.read, self.number, self.kind, self.what, self.since]


class Orders:
    """All orders of one partition."""

    def __init__(self) -> None:
        self._given: list[Order] = []
        self._pending: deque[Order] = deque()

    @property
    def count(self) -> int:
        """Number of orders that have taken effect."""
        if self._pending:
            return self._pending[0].count - 1
        return self._given[-1].count if self._given else 0

    @property
    def waits(self) -> bool:
        """Whether an order of an earlier process is pending."""
        return bool(self._pending)

    def given(self, read: int, number: int, kind: str, what: Any, since: int = 0) -> Order:
        """Add an order.  While others are pending it takes effect right after them."""
        if self._pending:
            last = self._pending[-1]
            read, number, since = last.read, last.number, max(since, last.since, last.number)
        count = self._given[-1].count + 1 if self._given else 1
        order = Order(count, read, number, kind, what, since)
        self._given = [*self._given, order][-_REMEMBERED:]
        if self._pending:
            self._pending.append(order)
        return order

    def await_place(self, order: Order) -> None:
        """Let the last order take effect later, at its place."""
        self._pending.append(order)

    def will(self, kind: str) -> bool:
        """Return whether an order of this kind is pending."""
        return any(order.kind == kind for order in self._pending)

    def known(self, kind: str, what: Any) -> bool:
        """Return whether an equal order was given before."""
        return any((order.kind, order.what) == (kind, what) for order in self._given)

    def to_plain(self) -> list[Any]:
        """Return the orders in their stored form."""
        return [order.to_plain() for order in self._given]

    def load(self, plain: list[Any]) -> None:
        """Load the stored orders of an earlier process."""
        self._given = [Order(*one) for one in plain]

    def restore(self, count: int) -> None:
        """Resume from a cursor at which ``count`` orders had taken effect."""
        self._pending = deque(order for order in self._given if order.count > count)

    def limit(self, read: int, limit: int) -> int:
        """Return the maximum number of rows of a read that stops at the place of an order."""
        left = self._pending[0].read - read if self._pending else 0
        return min(limit, left) if left > 0 else limit

    def due(self, read: int, number: int) -> Order | None:
        """Remove the next pending order if its place is reached.

        An order that had to wait for its batch has its place after the rows that are read by then.
        """
        if self._pending:
            order = self._pending[0]
            if read >= order.read and number >= order.number:
                there = replace(order, read=read)
                self._given = [there if one is order else one for one in self._given]
                return self._pending.popleft()
        return None
