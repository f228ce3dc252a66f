"""A dispatcher of segments, and all its effects, for tests."""

from __future__ import annotations

from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import Batch, Send

TTL = 10.0


class At:
    """A dispatcher, and all its effects so far."""

    def __init__(self, partitions=1, order="arrival", shared=False, **options):
        self.d = Dispatcher(range(partitions), TTL, order=order, shared=shared, **options)
        self.batches = {}
        self.said = []

    def act(self):
        """A round is over."""
        self.said += self.d.take_effects()

    def take(self, kind=object):
        self.act()
        said, self.said = self.said, []
        return [e for e in said if isinstance(e, kind)]

    def join(self, *sessions, window=0, now=0.0):
        for session in sessions:
            self.d.join(session, now)
            self.d.window(session, window)
            self.act()

    def make(self, partition, number, stripe=0, rows=2):
        batch = Batch(partition, number, rows, "bytes", {"stripe": stripe})
        self.batches[partition, number] = batch
        self.d.made(batch)
        self.act()
        return batch

    def sent(self, *orders, session=1, window=64):
        """Batches in a trainer's hands: their tokens."""
        self.join(session, window=window)
        for partition, number in orders:
            self.make(partition, number)
        return [e.token for e in self.take(Send)]


def lanes(partitions=1, **options):
    return At(partitions, "lanes", **options)
