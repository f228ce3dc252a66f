"""The base of the machines of plain partitions and of segments: it numbers and keeps orders.

    propose() ─► Order with its place ── stored ─► apply() ─► carried out where it was given

An order takes effect after so many rows of the source, so a later life makes the same batches.  It
is after all rows that an earlier life has read: these are read again as they were.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..leasing.words import Batch, Order, Slot, Turn
from .input import Input
from .plan import Plan, State, Target

#: Answer to a change of batches that comes when all are made.
TOO_LATE = "all batches of the feed were made before"
#: Number of stored orders; of older ones only the effect is stored.
REMEMBERED = 64
#: Number of batches after the next one up to which a trainer may hold some of an earlier life.
MOST_AHEAD = 4096


class Machine(ABC):
    """One partition.  See ``leasing.words.Partition`` and ``partition.partition_run.Run``."""

    input: Input
    _ended: bool  # whether it has drafted all
    ahead = lanes = False
    left_out = 0  # rows of incomplete rounds

    def __init__(self, number: int) -> None:
        self.number = number
        self.run = self.world = 0
        self.gone: list[Batch] = []
        #: Those with proportions of classes, and that of a mix.
        self.targets: Sequence[Target] = ()
        self.mix: Target | None = None
        self.orders: list[Order] = []
        self._pending: deque[Order] = deque()  # orders whose place is not reached
        #: Batches that are to be written: drafted ones, and those that came back.
        self.unwritten: deque[Plan] = deque()

    @property
    def epoch(self) -> int:
        """The epoch of batches now; 0 where batches cross epochs."""
        return 0 if self.input.across_batches else self.input.epoch

    @property
    def finished(self) -> bool:
        """Whether it has made all."""
        return self._ended and not self.unwritten

    @property
    def made_none(self) -> bool:
        """Whether it has made no batch yet."""
        return not self.input.next_number

    def _unwritten_turns(self, slot: Slot) -> list[Turn]:
        return [plan.batch.turn for plan in self.unwritten if plan.batch.slot == slot]

    def reading(self) -> State:
        """Return the state of the input where an order that comes now takes effect."""
        return self.input.reading()

    def bring_forward(self, slot: Slot) -> bool:
        """Let a slot's first unwritten batch be written next; return whether there is one."""
        of_slot = (plan for plan in self.unwritten if plan.batch.slot == slot)
        first = min(of_slot, key=lambda plan: plan.batch.turn, default=None)
        if first is not None:
            self.unwritten.remove(first)
            self.unwritten.appendleft(first)
        return first is not None

    @abstractmethod
    def _place(self, kind: str) -> tuple[int, int] | None:
        """Return the next batch, and the first that an order of this kind changes.

        None: ask again after another step, which makes batches that an earlier life has handed out.
        ValueError where it is too late.
        """

    def propose(self, kind: str, what: Any) -> Order | None:
        """Return an order with its place, the next row of the source; None: see ``_place``."""
        # one that is repeated, as after the death of the server, changes nothing more
        alike = [one for one in self.orders if one.kind == kind]
        for order in alike if kind == "close" else alike[-1:]:
            if order.what == what:
                return order
        place = self._place(kind)
        if place is None:
            return None
        count = self.orders[-1].count + 1 if self.orders else 1
        # what an earlier life has read is read again first, unless it is dropped
        here = self.input.read if (kind, what) == ("close", True) else self.reading()["read"]
        read = max([here, *(earlier.read for earlier in self._pending)])
        order = Order(count, read, place[0], kind, what, place[1])
        self.orders = [*self.orders, order][-REMEMBERED:]
        self._pending.append(order)
        return order

    def apply(self, order: Order) -> None:
        """Carry out an order, which is stored."""
        self._carry_out()

    def _up_to_order(self, limit: int) -> int:
        """Carry out the orders whose place is reached; bound a read by the place of the next."""
        self._carry_out()
        left = self._pending[0].read - self.input.read if self._pending else 0
        return min(limit, left) if left > 0 else limit

    def _carry_out(self) -> None:
        """Carry out the orders whose place is reached."""
        while self._pending and self._reached(self._pending[0]):
            order = self._pending.popleft()
            if order.kind == "close":
                self._close(order.what)
            elif order.kind == "batch_size":
                self._resize(order.what)
            else:
                target = self.targets[0] if order.kind == "target" else self.mix
                assert target is not None
                target.set_target(order.what, order.since)

    def _reached(self, order: Order) -> bool:
        return order.read <= self.input.read

    def _close(self, cancel: bool) -> None:
        """Read nothing more; with ``cancel`` drop what waits."""
        self.input.close(cancel)

    @abstractmethod
    def _resize(self, batch_sizes: Sequence[int]) -> None:
        """Use other sizes for the batches that are not formed."""

    # Queries

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Return counts of rows, or segments, that wait."""

    @abstractmethod
    def unfinished(self) -> tuple[int, int]:
        """Return how many rows are read and in no batch, and of how many the batch is uncommitted.

        The first are examples where the machine cuts them; the second are rows of batches.
        """

    def seek(self, key: bytes) -> list[list[object]]:
        """Return a key's examples: epoch, segment, number of segments, place, batch number."""
        return []
