"""Requests of one feed's trainers for other proportions of classes.

    ask() ─► asked ─► all partitions ─► answer() by each ─► take_answered() ─► the trainer

A request is answered when every partition has said from which batch on it can show, or has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .events import Retargeted

__all__ = ["Retargeting", "Retargets"]


@dataclass(slots=True)
class Retargeting:
    """One trainer's request, and what partitions have answered."""

    session: int
    request: int
    waiting: set[int]
    since: list[list[int]] = field(default_factory=list)
    fault: str = ""


class Retargets:
    """All requests of one feed."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self._running = set(partitions)
        self._open: dict[int, Retargeting] = {}  # those that are not answered, by number
        self._count = 0
        self.asked: list[tuple[int, tuple[float, ...]]] = []  # numbers and proportions, in order

    def ask(self, session: int, request: int, probs: tuple[float, ...]) -> None:
        """A trainer wants other proportions."""
        self._count += 1
        self.asked.append((self._count, probs))
        self._open[self._count] = Retargeting(session, request, set(self._running))

    def answer(self, message: Retargeted) -> None:
        """A partition has taken a request in, or says why it can not."""
        asked = self._open.get(message.request)
        if asked is not None and message.partition in asked.waiting:
            asked.waiting.discard(message.partition)
            asked.fault = asked.fault or message.fault
            asked.since.append([message.partition, message.since])

    def partition_ended(self, partition: int) -> None:
        """A partition has made all its batches: nothing can show in it any more."""
        self._running.discard(partition)
        for asked in self._open.values():
            asked.waiting.discard(partition)

    def take_answered(self) -> list[Retargeting]:
        """The requests that all partitions have answered, once each."""
        if not self._open:
            return []
        done = {n: asked for n, asked in self._open.items() if not asked.waiting}
        for number, asked in done.items():
            del self._open[number]
            if not asked.since:
                asked.fault = asked.fault or "all batches of the feed were made before"
        return list(done.values())
