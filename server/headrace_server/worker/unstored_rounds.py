"""Rounds of ranks are stored before their batches go out.

    Dealt ─► stored with its partition …
    Send  ─► … is it?  yes ─► outbox
                       no  ─► waits, and all later batches and notices of the feed wait, too

So a later process deals the same rounds to the same ranks.  A notice that overtook a batch would
let its trainer take a later one of another owner first.
"""

from __future__ import annotations

from collections import deque

from headrace_proto.codec import pack
from headrace_proto.messages import EpochBegun, Following, Idle, Passed

from ..core.dispatch_effects import Dealt, Send
from .desk import Desk
from .outbox import Outbox
from .partitions import Partitions

_Effect = Send | EpochBegun | Following | Idle | Passed


class UnstoredRounds:
    """The batches, notices and rounds of all feeds of an owner, on their way to the outbox."""

    def __init__(self, partitions: Partitions, outbox: Outbox) -> None:
        self._partitions, self._stores = partitions, partitions.stores
        self._outbox = outbox
        self._unstored: set[tuple[str, int]] = set()  # partitions whose rounds are being stored …
        self._waiting: dict[Desk, deque[_Effect]] = {}  # … and what waits for it
        self._last: dict[int, int] = {}  # number of the last waiting delivery, by session

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

    def deliver(self, desk: Desk, effect: _Effect) -> None:
        """Send a batch once its round is stored, and a notice after all batches before it."""
        waiting = self._waiting.get(desk)
        if not waiting:
            if not isinstance(effect, Send):
                self._outbox.tell_turn(effect)
                return
            if not self._unstored or self._is_stored(desk, effect.batch.partition):
                self._outbox.deliver(desk, effect)
                return
            waiting = self._waiting[desk] = deque()
        if isinstance(effect, Send):
            session = effect.session
            if effect.seq <= self._last.get(session, 0):  # sent again: it has reconnected
                others = (one for one in waiting if one.session != session)
                waiting = self._waiting[desk] = deque(others)
            self._last[session] = effect.seq
        waiting.append(effect)

    def deliver_stored(self) -> None:
        """Send batches whose rounds are stored by now."""
        for desk, waiting in list(self._waiting.items()) if self._waiting else ():
            while waiting:
                effect = waiting[0]
                if isinstance(effect, Send) and not self._is_stored(desk, effect.batch.partition):
                    break
                waiting.popleft()
                if not isinstance(effect, Send):
                    self._outbox.tell_turn(effect)
                elif desk.dispatcher.holds(effect.session, effect.token):
                    self._outbox.deliver(desk, effect)
            if not waiting:
                del self._waiting[desk]
        if not self._waiting:
            self._last.clear()

    def _is_stored(self, desk: Desk, partition: int) -> bool:
        """Return whether all rounds dealt of a partition are stored."""
        name = desk.name, partition
        if name in self._unstored and self._stores.settled(name):
            self._unstored.discard(name)
        return name not in self._unstored
