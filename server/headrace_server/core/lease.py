"""Leases: which trainer holds which batch, until when, and whose commit counts.

    grant ─► held ──commit──► settled
               │ ▲
      take_back│ │grant again, with a new token
               ▼ │
              free

A token is larger than every token before it.  Of the holders that a batch ever had only the last
one can commit it, also when its lease has ended but nobody got the batch since: work is kept, not
wasted.  A commit that comes twice is answered as the first one was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

__all__ = ["Lease", "LeaseTable", "Verdict"]

B = TypeVar("B", bound=Hashable)

#: Settled tokens that are remembered, so that a commit that is sent again finds its answer.
_REMEMBERED = 65_536


class Verdict(Enum):
    """What a commit is answered."""

    COMMITTED = "committed"  # it counts
    DUPLICATE = "duplicate"  # it counted already, by this same token
    STALE = "stale"  # the batch went to somebody else, or never was this token's


@dataclass(slots=True)
class Lease(Generic[B]):
    token: int
    batch: B
    session: int
    deadline: float
    since: float
    seq: int


class LeaseTable(Generic[B]):
    """All leases of one feed."""

    def __init__(self, ttl_s: float, term: int = 0) -> None:
        self.ttl_s = ttl_s
        self._first = self._counter = term << 32
        self._held: dict[int, Lease[B]] = {}
        self._by_session: dict[int, dict[int, Lease[B]]] = {}
        self._free_tokens: dict[int, B] = {}  # last tokens of batches whose lease has ended
        self._last_token: dict[B, int] = {}
        self._settled: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def count(self, session: int) -> int:
        """How many leases a session has."""
        return len(self._by_session.get(session, ()))

    def holds(self, session: int, token: int) -> bool:
        """Whether this lease stands, and is this session's."""
        return token in self._by_session.get(session, ())

    def grant(self, batch: B, session: int, seq: int, now: float) -> Lease[B]:
        """A new lease; earlier tokens of the batch are void from here on."""
        last = self._last_token.get(batch)
        if last in self._held:
            raise ValueError(f"batch {batch} is leased already")
        if last is not None:
            self._free_tokens.pop(last, None)
        self._counter += 1
        lease = Lease(self._counter, batch, session, now + self.ttl_s, now, seq)
        self._held[lease.token] = lease
        self._by_session.setdefault(session, {})[lease.token] = lease
        self._last_token[batch] = lease.token
        return lease

    def commit(self, token: int, session: int) -> tuple[Verdict, B | None]:
        """Judge a commit; the batch is given where it counts for the first time."""
        lease = self._held.get(token)
        if lease is not None:
            if lease.session != session:
                return Verdict.STALE, None
            self._remove(lease)
            batch = lease.batch
        elif token in self._free_tokens:
            batch = self._free_tokens.pop(token)
        elif token in self._settled:
            return Verdict.DUPLICATE, None
        else:
            return Verdict.STALE, None
        del self._last_token[batch]
        self._settled[token] = None
        if len(self._settled) > _REMEMBERED:
            self._settled.popitem(last=False)
        return Verdict.COMMITTED, batch

    def admit(self, token: int, batch: B, session: int, now: float) -> None:
        """A lease that an earlier server has granted stands again."""
        self._free_tokens[token] = batch
        self._last_token[batch] = token
        self.adopt(token, session, now)

    def remember(self, token: int) -> None:
        """A commit of this token was kept under an earlier server."""
        self._settled[token] = None

    def issued(self, token: int) -> bool:
        """Whether this token was given out here."""
        return self._first < token <= self._counter

    def knows(self, token: int) -> bool:
        """Whether a commit of this token can be judged."""
        return token in self._held or token in self._free_tokens or token in self._settled

    def batch_of(self, token: int, session: int) -> B | None:
        """What a commit of this token by this session would count for."""
        lease = self._held.get(token)
        if lease is None:
            return self._free_tokens.get(token)
        return lease.batch if lease.session == session else None

    def held(self) -> Iterable[Lease[B]]:
        """All leases, in the order of their grant."""
        return self._held.values()

    def take_back(self, lease: Lease[B]) -> B:
        """End a lease without commit; the batch may be granted again."""
        self._remove(lease)
        self._free_tokens[lease.token] = lease.batch
        return lease.batch

    def adopt(self, token: int, session: int, now: float) -> B | None:
        """A trainer that was given up is back under another session and still holds this.

        The batch when nobody got it meanwhile: the lease stands again.
        """
        batch = self._free_tokens.pop(token, None)
        if batch is not None:
            lease = Lease(token, batch, session, now + self.ttl_s, now, 0)
            self._held[token] = lease
            self._by_session.setdefault(session, {})[token] = lease
        return batch

    def void(self, batch: B) -> int | None:
        """The batch is nobody's any more: a late commit of its last holder does not count.

        Its token, if it was anybody's.
        """
        token = self._last_token.get(batch)
        if token in self._held:
            raise ValueError(f"batch {batch} is leased")
        if token is not None:
            del self._last_token[batch], self._free_tokens[token]
        return token

    def _remove(self, lease: Lease[B]) -> None:
        del self._held[lease.token]
        mine = self._by_session[lease.session]
        del mine[lease.token]
        if not mine:
            del self._by_session[lease.session]

    def of_session(self, session: int) -> list[Lease[B]]:
        return list(self._by_session.get(session, {}).values())

    def renew(self, session: int, now: float) -> None:
        """The session is alive: extend its leases by the TTL."""
        for lease in self._by_session.get(session, {}).values():
            lease.deadline = now + self.ttl_s

    def expired(self, now: float) -> list[Lease[B]]:
        """Leases past their deadline, in the order of their grant."""
        return [lease for lease in self._held.values() if lease.deadline <= now]

    def oldest(self) -> Lease[B] | None:
        """The lease that was granted first of those that are held."""
        return next(iter(self._held.values()), None)
