"""Copies of one feed's stores that are being made, for snapshots.

    begin(ticket) ─► Copy to every partition's worker ─► answer() by each ─► take_done()

A worker that begins anew is told again what its partitions have not answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .worker_messages import Copied, Copy

__all__ = ["Copies"]


@dataclass(slots=True)
class _Copying:
    directory: str
    waiting: set[int]
    fault: str = ""


class Copies:
    """All copies of one feed that are not done."""

    def __init__(self, feed: str, partitions: Iterable[int]) -> None:
        self._feed = feed
        self._partitions = tuple(partitions)
        self._open: dict[int, _Copying] = {}  # by ticket

    def begin(self, ticket: int, directory: str) -> list[Copy]:
        """What is to be said to the workers of the partitions."""
        self._open[ticket] = _Copying(directory, set(self._partitions))
        return [Copy(self._feed, p, ticket, directory) for p in self._partitions]

    def answer(self, message: Copied) -> None:
        """A partition is copied, or can not be."""
        copying = self._open.get(message.request)
        if copying is not None:
            copying.waiting.discard(message.partition)
            if message.fault and not copying.fault:
                copying.fault = f"partition {message.partition}: {message.fault}"

    def of_a_new_worker(self, partitions: set[int]) -> Iterator[Copy]:
        """What partitions have not answered whose worker died."""
        for ticket, copying in self._open.items():
            for partition in sorted(copying.waiting & partitions):
                yield Copy(self._feed, partition, ticket, copying.directory)

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
