"""Rounds of ranks are stored before their batches go out.

    Dealt ─► stored with its partition …
    Send  ─► … is it?  yes ─► outbox
                       no  ─► waits, and all later batches of the feed wait, too

So a later process deals the same rounds to the same ranks.
"""

from __future__ import annotations

from collections import deque

from headrace_proto.codec import pack

from ..core.dispatch_effects import Dealt, Send
from .desk import Desk
from .outbox import Outbox
from .partitions import Partitions


class UnstoredRounds:
    """The batches and rounds of all feeds of an owner, on their way to the outbox."""

    def __init__(self, partitions: Partitions, outbox: Outbox) -> None:
        self._partitions, self._stores = partitions, partitions.stores
        self._outbox = outbox
        self._unstored: set[tuple[str, int]] = set()  # partitions whose rounds are being stored …
        self._waiting: dict[Desk, deque[Send]] = {}  # … and the batches that wait for it

    def dealt(self, desk: Desk, effect: Dealt) -> None:
        """Have the rounds of some partitions stored."""
        for partition in effect.partitions:
            name = desk.name, partition
            # This may run while a partition works.
            if desk.dispatcher.segmented:  # the partition knows which segments are in its rounds
                self._partitions.store_rounds(name)
            else:
                rounds = desk.dispatcher.rounds_dealt(partition)
                self._stores.note(name, "dealt", pack(rounds.to_plain()))
            if not self._stores.settled(name):
                self._unstored.add(name)

    def deliver(self, desk: Desk, effect: Send) -> None:
        """Send a batch once its round is stored."""
        waiting = self._waiting.get(desk)
        if waiting:  # a trainer gets its batches in order
            waiting.append(effect)
        elif not self._unstored or self._is_stored(desk, effect.batch.partition):
            self._outbox.deliver(desk, effect)
        else:
            self._waiting[desk] = deque([effect])

    def deliver_stored(self) -> None:
        """Send batches whose rounds are stored by now."""
        for desk, waiting in list(self._waiting.items()) if self._waiting else ():
            while waiting and self._is_stored(desk, waiting[0].batch.partition):
                effect = waiting.popleft()
                if desk.dispatcher.holds(effect.session, effect.token):
                    self._outbox.deliver(desk, effect)
            if not waiting:
                del self._waiting[desk]

    def _is_stored(self, desk: Desk, partition: int) -> bool:
        """Return whether all rounds dealt of a partition are stored."""
        name = desk.name, partition
        if name in self._unstored and self._stores.settled(name):
            self._unstored.discard(name)
        return name not in self._unstored
