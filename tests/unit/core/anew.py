"""A dispatcher of plain batches in a restarted server, for tests."""

from __future__ import annotations

from headrace_proto.messages import Handed
from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import Answer, Batch

TTL = 10.0
TERM = 7
OLD = 6 << 32  # tokens of the server before


class At:
    """A dispatcher of a restarted server, and its effects."""

    def __init__(self, partitions=1, made=0):
        self.d = Dispatcher(range(partitions), TTL, term=TERM)
        for partition in range(partitions):
            self.d.started(partition, made)

    def take(self, *kinds):
        return [e for e in self.d.take_effects() if not kinds or isinstance(e, kinds)]

    def join(self, *sessions, window=0):
        for session in sessions:
            self.d.join(session, 0.0)
            self.d.window(session, window)

    def make(self, number, partition=0):
        batch = Batch(partition, number, 4, "bytes")
        self.d.made(batch)
        return batch

    def claim(self, session, token, number, partition=0):
        self.d.claim(session, place(token, number, partition))


def place(token, number, partition=0):
    return Handed(OLD + token, partition, number, 4)


def committed(session, token):
    return Answer(session, (OLD + token,), ())


def stale(session, token):
    return Answer(session, (), (OLD + token,))
