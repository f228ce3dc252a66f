"""A port that records the calls of a desk."""

from __future__ import annotations

from typing import Any, NamedTuple


class Welcome(NamedTuple):
    next: dict
    stale: list
    others: int
    run: int


class Refused(NamedTuple):
    code: str
    text: str


class Unknown(NamedTuple):
    greets: bool = True


class Give(NamedTuple):
    request: int
    token: int
    batch: Any
    live: bool
    body: Any  # the batch may be gone before the message leaves


class Idle(NamedTuple):
    request: int
    live: bool


class Over(NamedTuple):
    request: int
    partition: int
    epoch: int
    also: tuple


class Answer(NamedTuple):
    committed: tuple = ()
    stale: tuple = ()
    faults: tuple = ()


class Port:
    """Records messages by session, entries to be stored, and batches that are gone."""

    def __init__(self):
        self.sent, self.log, self.freed = [], [], []

    def __getattr__(self, name):
        if (kind := _KINDS.get(name)) is not None:
            return lambda session, *what: self.sent.append((session, kind(*what)))
        raise AttributeError(name)

    def give(self, session, batch, live):
        self.sent.append((session, Give(batch.request, batch.token, batch, live, batch.body)))

    def committed(self, partition, token, rows):
        self.log.append(("commit", partition))

    def changed(self, partition, why):
        self.log.append((why, partition))

    def joined(self, session, run, rank, birth):
        self.log.append(("join", session, run, rank, birth))

    def left(self, session):
        self.log.append(("leave", session))

    def make(self, partition, slot, epoch, most):
        return None

    def gone(self, batch):
        self.freed.append(batch)


_KINDS = {
    "welcome": Welcome,
    "refuse": Refused,
    "idle": Idle,
    "over": Over,
    "answer": Answer,
}
