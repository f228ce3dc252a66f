"""Leases: which trainer holds which batch, until when, and which trainer's commit counts.

    grant ─► held ── commit ──► saving ── stored, refused ──► answered
               │ ▲                 ▲
     take back │ │ adopt           │
               ▼ │                 │
              free ─── commit ─────┘
                └── grant to another, void ──► over

The table ``LEASE`` has the states of a token, and what each event changes.  A token is larger than
every token before it.  Only the last holder of a batch can commit it, also when its lease has ended
but no trainer got the batch since, so its work is not lost.  A commit is answered when its
partition has stored it; a repeated commit gets the same answer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..process.bounded_map import BoundedMap
from ..shaping.transitions import Transitions
from .dispatch_effects import Batch, Effect, Freed, Send
from .open_epochs import OpenEpochs
from .trainers import Trainer, Trainers

#: Number of answered and of stale tokens that are remembered, for resent commits.
_REMEMBERED = 65_536

#: Token, code and text of a commit that was not stored.
Fault = tuple[int, str, str]


class CommitVerdict(Enum):
    """The outcome of a commit."""

    COMMITTED = "StoreCommit"  # it counts, and is to be stored
    WAITING = "Answer, when it is stored"  # it was sent before
    DUPLICATE = "Answer, as before"
    STALE = "Answer: stale"  # another trainer has the batch, or the token was never its lease

    def __str__(self) -> str:
        return self.value


HELD, FREE, SAVING, ANSWERED, OVER = STATES = ("held", "free", "saving", "answered", "over")

_COMMIT = {
    HELD: (SAVING, CommitVerdict.COMMITTED),
    FREE: (SAVING, CommitVerdict.COMMITTED),
    SAVING: (SAVING, CommitVerdict.WAITING),
    ANSWERED: (ANSWERED, CommitVerdict.DUPLICATE),
    OVER: (OVER, CommitVerdict.STALE),
}
_COMMIT_BY_OTHERS = {**_COMMIT, HELD: (HELD, CommitVerdict.STALE)}
_NOT_STORED = "has no commit that is being stored", (HELD, FREE, ANSWERED, OVER)
_KNOWN = "is known already", (HELD, FREE, SAVING, ANSWERED)

LEASE = Transitions(
    "lease",
    STATES,
    moves={
        "commit": _COMMIT,
        "commit by others": _COMMIT_BY_OTHERS,
        "stored": {SAVING: (ANSWERED, "Answer: committed")},
        "refused": {SAVING: (ANSWERED, "Answer: fault")},
        "take back": {HELD: (FREE, None)},
        "adopt": {**{state: (state, None) for state in STATES}, FREE: (HELD, None)},
        "grant again": {FREE: (OVER, "Send, under a new token"), OVER: (OVER, "Send")},
        "void": {FREE: (OVER, None), OVER: (OVER, None)},
        "admit": {OVER: (FREE, None)},
        "remember": {OVER: (ANSWERED, None)},
    },
    errors={
        "stored": _NOT_STORED,
        "refused": _NOT_STORED,
        "take back": ("is in nobody's hands", (FREE, SAVING, ANSWERED, OVER)),
        "grant again": ("is leased already", (HELD, SAVING, ANSWERED)),
        "void": ("is leased", (HELD, SAVING, ANSWERED)),
        "admit": _KNOWN,
        "remember": _KNOWN,
    },
)


@dataclass(slots=True)
class Lease:
    """One token; each holder of a batch has another one."""

    token: int
    batch: Batch
    session: int  # the session that holds it, or has committed it
    deadline: float
    since: float
    seq: int
    state: str = HELD
    asked: tuple[int, ...] = ()  # other sessions to answer when the commit is stored

    def __str__(self) -> str:
        return f"batch {self.batch}, token {self.token} of trainer {self.session},"


class LeaseTable:
    """All leases of one feed, and the commits that are being stored."""

    def __init__(self, ttl_s: float, term: int = 0) -> None:
        self.ttl_s = ttl_s
        self.first = self._counter = term << 32
        self._leases: dict[int, Lease] = {}  # by token: held, free and saving, as granted
        self._of_batch: dict[Batch, Lease] = {}  # the last lease of each batch
        self.by_session: dict[int, dict[int, Lease]] = {}  # held leases
        self._answers: BoundedMap[int, Fault | None] = BoundedMap(_REMEMBERED)  # by token
        # tokens that were counted as stale
        self._stale: BoundedMap[int, None] = BoundedMap(_REMEMBERED)
        self.unstored: dict[int, int] = {}  # by session: commits that are being stored

    def __len__(self) -> int:
        """Return the number of leases that are held."""
        return sum(map(len, self.by_session.values()))

    def holds(self, session: int, token: int) -> bool:
        """Return whether a session holds this lease."""
        return token in self.by_session.get(session, ())

    def state(self, token: int) -> str:
        """Return the state of a token."""
        lease = self._leases.get(token)
        if lease is not None:
            return lease.state
        return ANSWERED if token in self._answers else OVER

    # A batch

    def grant(self, batch: Batch, session: int, seq: int, now: float) -> Lease:
        """Lease a batch; its earlier tokens become invalid."""
        last = self._of_batch.get(batch)
        if last is not None:
            last.state, _ = LEASE.follow("grant again", last.state, last)
            del self._leases[last.token]
        self._counter = token = self._counter + 1
        lease = Lease(token, batch, session, now + self.ttl_s, now, seq)
        self._of_batch[batch] = lease
        self._hold(lease)
        return lease

    def _hold(self, lease: Lease) -> None:
        self._leases[lease.token] = lease
        self.by_session.setdefault(lease.session, {})[lease.token] = lease

    def _release(self, lease: Lease) -> None:
        mine = self.by_session[lease.session]
        del mine[lease.token]
        if not mine:
            del self.by_session[lease.session]

    def take_back(self, lease: Lease) -> Batch:
        """End a lease without commit; the batch may be granted again."""
        lease.state, _ = LEASE.follow("take back", lease.state, lease)
        self._release(lease)
        return lease.batch

    def void(self, batch: Batch) -> None:
        """Invalidate all leases of a batch: a late commit of its last holder does not count."""
        lease = self._of_batch.get(batch)
        if lease is not None:
            lease.state, _ = LEASE.follow("void", lease.state, lease)
            del self._of_batch[batch], self._leases[lease.token]

    def adopt(self, token: int, session: int, now: float) -> Batch | None:
        """Renew an ended lease for a trainer that is back as another session.

        Return the batch, if no trainer got it meanwhile.
        """
        lease = self._leases.get(token)
        if lease is None or lease.state is (following := LEASE.on("adopt")[lease.state][0]):
            return None
        lease.state = following
        lease.session, lease.deadline, lease.since, lease.seq = session, now + self.ttl_s, now, 0
        del self._leases[token]  # reinsert it as the newest of the held ones
        self._hold(lease)
        return lease.batch

    # Its commit

    def commit(self, token: int, session: int) -> tuple[CommitVerdict, Lease | None]:
        """Judge a commit; return also the lease where the commit is to be stored."""
        lease = self._leases.get(token)
        if lease is None:
            return _COMMIT[ANSWERED if token in self._answers else OVER][1], None
        before = lease.state
        moves = _COMMIT if lease.session == session else _COMMIT_BY_OTHERS
        lease.state, verdict = moves[before]
        if verdict is CommitVerdict.COMMITTED:
            if before is HELD:
                self._release(lease)
            lease.session = session
            self.unstored[session] = self.unstored.get(session, 0) + 1
            return verdict, lease
        if verdict is CommitVerdict.WAITING and session not in (lease.session, *lease.asked):
            lease.asked += (session,)
        return verdict, None

    def stored(self, lease: Lease, code: str = "", text: str = "") -> None:
        """End a commit: its partition has stored it, or reports a fault."""
        lease.state, _ = LEASE.follow("refused" if code else "stored", lease.state, lease)
        session, token = lease.session, lease.token
        del self._leases[token], self._of_batch[lease.batch]
        left = self.unstored.pop(session) - 1
        if left:
            self.unstored[session] = left
        self._answers[token] = (token, code, text) if code else None

    def fault(self, token: int) -> Fault | None:
        """Return why a commit that was answered was not stored; None where it was."""
        return self._answers.get(token)

    def is_newly_stale(self, token: int) -> bool:
        """Return whether to count a late commit: once, however often it is sent."""
        new = token not in self._stale
        self._stale[token] = None
        return new

    # An earlier server

    def remember(self, token: int) -> None:
        """Note that an earlier server has stored the commit of a token."""
        LEASE.follow("remember", self.state(token), f"token {token}")
        self._answers[token] = None

    def admit(self, token: int, batch: Batch, session: int, now: float) -> None:
        """Make a lease of an earlier server valid again."""
        state, _ = LEASE.follow("admit", self.state(token), f"token {token}")
        lease = Lease(token, batch, session, now, now, 0, state)
        self._leases[token] = self._of_batch[batch] = lease
        self.adopt(token, session, now)

    def issued(self, token: int) -> bool:
        """Return whether this token was issued, here or by an earlier server."""
        return 0 < token <= self._counter

    # Queries

    def batch_of(self, token: int, session: int) -> Batch | None:
        """Return the batch for which a commit of this token by this session would count."""
        lease = self._leases.get(token)
        if lease is None or lease.state is SAVING:
            return None
        return lease.batch if lease.state is FREE or lease.session == session else None

    def held(self) -> Iterator[Lease]:
        """Yield all leases that are held, in the order of their grant."""
        return (lease for lease in self._leases.values() if lease.state is HELD)

    def of_session(self, session: int) -> list[Lease]:
        """Return the leases that a session holds."""
        return list(self.by_session.get(session, {}).values())

    def renew(self, session: int, now: float) -> None:
        """Extend the leases of a session, which is alive, by the TTL."""
        for lease in self.by_session.get(session, {}).values():
            lease.deadline = now + self.ttl_s

    def expired(self, now: float) -> list[Lease]:
        """Return the leases past their deadline, in the order of their grant."""
        over = (lease for lease in self._leases.values() if lease.deadline <= now)
        return [lease for lease in over if lease.state is HELD]

    def oldest(self) -> Lease | None:
        """Return the lease that was granted first of those that are held."""
        return next(self.held(), None)


class BatchLifecycle:
    """The batches that one feed has made, its trainers, and pending effects.

        made ─► grant ─► a trainer's ─► let_go ─► settle     Freed: once, when nobody has it pinned,
                  ▲          │                               since it was let go of or void
                  └─ take_back ─────► void

    A batch is let go when its commit is judged, and settled when the commit is stored.  It is
    pinned by a trainer that maps it, or by a frame that is still being sent.
    """

    def __init__(self, lease_ttl_s: float, term: int, trainers: Trainers) -> None:
        self.trainers = trainers
        self.leases = LeaseTable(lease_ttl_s, term)
        self.claims: Mapping[int, Any] = {}  # by token: batches of an earlier life, see claims.py
        self.effects: list[Effect] = []
        self.open = 0  # number of batches made that are neither settled nor void
        self.epochs: OpenEpochs | None = None  # where batches end with their epoch
        self.counts = {"batches": 0, "rows": 0, "redelivered": 0, "stale": 0, "expired": 0}
        self.dropped: dict[str, int] = {}

    def grant(self, trainer: Trainer, batch: Batch) -> None:
        """Lease a batch to a trainer, and send it."""
        session = trainer.session
        trainer.seq = seq = trainer.seq + 1
        trainer.idle = False
        lease = self.leases.grant(batch, session, seq, trainer.seen)
        self.effects.append(Send(session, seq, lease.token, batch))

    def resend(self, trainer: Trainer, last_seq: int, leases: Iterable[Lease]) -> None:
        """Resend leases after a delivery, and number the next ones after them.

        A batch that went to others meanwhile leaves no gap in the numbers, for a trainer computes
        its window from the number of its last delivery.  A batch that it has saved meanwhile has
        arrived.
        """
        trainer.seq = last_seq
        for lease in leases:
            held = self.leases.holds(trainer.session, lease.token)
            if held:
                self.effects.append(Send(trainer.session, lease.seq, lease.token, lease.batch))
            if held or lease.state in (SAVING, ANSWERED):
                trainer.seq = max(trainer.seq, lease.seq)

    def take_back(self, lease: Lease) -> Batch:
        """End a lease without commit."""
        self.counts["redelivered"] += 1
        return self.leases.take_back(lease)

    def settle(self, batch: Batch) -> None:
        """Count a batch whose commit is stored, and close it."""
        self.counts["batches"] += 1
        self.counts["rows"] += batch.filled
        self.close(batch)

    def void(self, batch: Batch) -> None:
        """Drop a batch that no trainer holds, without a commit."""
        self.leases.void(batch)
        self.close(batch)

    def drop(self, batch: Batch, reason: str) -> None:
        """Void a batch, and count its rows."""
        self.dropped[reason] = self.dropped.get(reason, 0) + batch.rows
        self.void(batch)

    def close(self, batch: Batch) -> None:
        """Count a batch as settled or void, and let it go."""
        self.open -= 1
        if self.epochs is not None:
            self.epochs.closed(batch.epoch)
        if not batch.let_go:
            self.let_go(batch)

    def let_go(self, batch: Batch) -> None:
        """Free the bytes of a batch that no trainer gets again, once its last pin is gone."""
        batch.let_go = True
        if not batch.pins:
            self._free(batch)

    def pin(self, batch: Batch, holder: Hashable) -> None:
        """Keep the bytes of a batch for a reader."""
        if batch.freed:
            raise ValueError(f"batch {batch.order} is free: its bytes may be another's by now")
        batch.pins.add(holder)

    def unpin(self, batch: Batch, holder: Hashable) -> None:
        """End the use by a reader."""
        if holder in batch.pins:
            batch.pins.discard(holder)
            if batch.let_go and not batch.pins:
                self._free(batch)

    def _free(self, batch: Batch) -> None:
        batch.freed = True
        self.effects.append(Freed(batch))
