"""Copies of one feed's stores that are being made, for snapshots.

begin(ticket) ─► every partition ─► answer() by each ─► take_done()
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .events import Copied

__all__ = ["Copies"]


@dataclass(slots=True)
class _Copying:
    waiting: set[int]
    fault: str = ""


class Copies:
    """All copies of one feed that are not done."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self._partitions = tuple(partitions)
        self._open: dict[int, _Copying] = {}  # by ticket

    def begin(self, ticket: int) -> None:
        """All partitions are asked for a copy."""
        self._open[ticket] = _Copying(set(self._partitions))

    def answer(self, message: Copied) -> None:
        """A partition is copied, or can not be."""
        copying = self._open.get(message.ticket)
        if copying is not None:
            copying.waiting.discard(message.partition)
            if message.fault and not copying.fault:
                copying.fault = f"partition {message.partition}: {message.fault}"

    def take_done(self) -> list[tuple[int, str]]:
        """Tickets that all partitions have answered, once each, and why there is no copy."""
        if not self._open:
            return []
        done = [(t, c.fault) for t, c in self._open.items() if not c.waiting]
        for ticket, _ in done:
            del self._open[ticket]
        return done

    def give_up(self) -> list[int]:
        """The feed has failed: tickets to which no answer comes."""
        tickets = list(self._open)
        self._open.clear()
        return tickets
