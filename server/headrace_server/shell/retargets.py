"""Requests of one feed's trainers for other proportions of classes.

    ask() ─► asked ─► all workers ─► answer() by each partition ─► take_answered() ─► the trainer

A request is answered when every partition has said from which batch on it can show, or has ended.
The last one that a partition could draw holds: workers that start later are told it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .worker_messages import Retarget, Retargeted

__all__ = ["Retargeting", "Retargets"]


@dataclass(slots=True)
class Retargeting:
    """One trainer's request, and what partitions have answered."""

    session: int
    request: int
    probs: tuple[float, ...]
    waiting: set[int]
    since: list[list[int]] = field(default_factory=list)
    fault: str = ""


class Retargets:
    """All requests of one feed."""

    def __init__(self, feed: str, partitions: Iterable[int]) -> None:
        self._feed = feed
        self._running = set(partitions)
        self._holds: Retargeting | None = None  # the last one that could be drawn
        self._number_of_holding = 0
        self._open: dict[int, Retargeting] = {}  # those that are not answered, by number
        self._count = 0
        self.asked: list[Retarget] = []  # in their order, to be told to workers

    def ask(self, session: int, request: int, probs: tuple[float, ...]) -> None:
        """A trainer wants other proportions."""
        self._count += 1
        self.asked.append(Retarget(self._feed, self._count, probs))
        self._open[self._count] = Retargeting(session, request, probs, set(self._running))

    def answer(self, message: Retargeted) -> None:
        """A partition has taken a request in, or says why it can not."""
        asked = self._open.get(message.request)
        if asked is not None and message.partition in asked.waiting:
            asked.waiting.discard(message.partition)
            asked.fault = asked.fault or message.fault
            asked.since.append([message.partition, message.since])
            if not message.fault:
                self._holds, self._number_of_holding = asked, message.request

    def partition_ended(self, partition: int) -> None:
        """A partition has made all its batches: nothing can show in it any more."""
        self._running.discard(partition)
        for asked in self._open.values():
            asked.waiting.discard(partition)

    def of_a_new_worker(self) -> list[Retarget]:
        """What holds already, and what is asked and not answered."""
        every = dict(self._open)
        if self._holds is not None:
            every = {self._number_of_holding: self._holds, **every}
        return [Retarget(self._feed, n, a.probs, a.since) for n, a in every.items()]

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
