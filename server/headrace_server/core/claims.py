"""Batches of an earlier server that trainers still hold; each is reserved for its trainer.

    add() ─► Claim ─► partition ─► judged() ─┬─ "yes"   the lease stands again
                   made(): it is here ───────┤  "done"  the commit was stored before
                                             └─ "no"    the batch goes to others

The table ``CLAIM`` has the states of a claim.  No other trainer gets a claimed batch until its
partition has judged the claim.  Every method returns the claims that it has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..shaping.transitions import Transitions
from .dispatch_effects import Batch, Claim
from .lease import BatchLifecycle
from .plain_supply import PlainSupply
from .segment_supply import SegmentSupply


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A commit that an earlier server acknowledged, in the form of a claim.

        ask() ─► Claim ─► worker ─► judged() ─► found: the trainer's commits since count
                                            └─► gone: Rewound, and none of them counts

    Until the partition has answered, the trainer gets no batch, and its commits wait.
    """

    token: int
    partition: int
    number: int = -1  # it claims no batch, but asks whether the commit is known
    segments: bytes = b""


class Recalls:
    """The trainers of one feed that rely on such commits."""

    def __init__(self) -> None:
        self._asked: set[tuple[int, int]] = set()  # tokens, and sessions that rely on them
        self.doubted: dict[int, list[tuple[int, Any]]] = {}  # by session: its commits since

    def ask(self, session: int, token: int) -> None:
        """Note that a session relies on a commit."""
        self._asked.add((token, session))
        self.doubted.setdefault(session, [])

    def waits(self, session: int, token: int, payload: Any) -> bool:
        """Hold back a commit of a session while a question is open; return whether it waits."""
        waiting = self.doubted.get(session)
        if waiting is None:
            return False
        waiting.append((token, payload))
        return True

    def judged(self, token: int) -> list[int]:
        """Return the sessions that rely on a commit which a partition has judged."""
        asked = sorted(pair for pair in self._asked if pair[0] == token)
        self._asked.difference_update(asked)
        return [session for _, session in asked]

    def forsake(self, session: int) -> None:
        """Ignore all commits of a session until it has left: one that it relies on is gone."""
        self.doubted[session] = []

    def believe(self, session: int) -> list[tuple[int, Any]]:
        """Return the commits that were held back, once no question about the session is open."""
        if any(of == session for _, of in self._asked):
            return []
        return self.doubted.pop(session, [])

    def leave(self, session: int) -> None:
        """Forget a session, with all its commits."""
        self._asked = {pair for pair in self._asked if pair[1] != session}
        self.doubted.pop(session, None)


Supply = PlainSupply | SegmentSupply

QUEUED, ASKED, ALLOWED, ENDED = STATES = ("queued", "asked", "allowed", "ended")
STANDS, DONE, GONE = "the lease stands again", "its commit was stored", "the batch goes to others"

_WAITS_FOR_NONE = "waits for no batch", (QUEUED, ENDED)
_JUDGED_LATE = "was not asked about", (QUEUED, ALLOWED, ENDED)

CLAIM = Transitions(
    "claim",
    STATES,
    moves={
        "ask": {QUEUED: (ASKED, "Claim")},
        "yes": {ASKED: (ENDED, STANDS)},
        "yes, to be made": {ASKED: (ALLOWED, None)},
        "done": {ASKED: (ENDED, DONE)},
        "no": {ASKED: (ENDED, GONE)},
        "made": {ASKED: (ASKED, None), ALLOWED: (ENDED, STANDS)},
        "never made": {ASKED: (ASKED, None), ALLOWED: (ENDED, GONE)},
    },
    errors={
        "ask": ("was asked about already", (ASKED, ALLOWED, ENDED)),
        **dict.fromkeys(("yes", "yes, to be made", "done", "no"), _JUDGED_LATE),
        **dict.fromkeys(("made", "never made"), _WAITS_FOR_NONE),
    },
)


@dataclass(slots=True)
class ClaimedBatch:
    """A batch of an earlier server that a trainer holds."""

    session: int
    held: Any
    name: tuple[int, ...] = ()  # of its batch, where batches are made again under their names
    expected: bool = False  # whether a commit will come: the trainer sent it to the earlier server
    end: str = ""  # STANDS, DONE or GONE
    batch: Batch | None = None  # reserved for it
    saved: bool = False  # whether its commit came before the verdict …
    payload: Any = None  # … and the payload of that commit
    state: str = QUEUED

    def ends(self, event: str) -> bool:
        """Change the state by an event; return whether the claim has ended."""
        self.state, end = CLAIM.follow(event, self.state, self)
        self.end = end or ""
        return self.state is ENDED

    def __str__(self) -> str:
        return f"the claim of trainer {self.session} on token {self.held.token}"


class Claims(ABC):
    """The claims on batches of one supply."""

    def __init__(
        self,
        lifecycle: BatchLifecycle,
        supply: Supply,
        before: Claims | None = None,
    ) -> None:
        """``before``: the claims on batches of an earlier supply, which are void."""
        self._lifecycle = lifecycle
        self._supply = supply
        self.by_token: dict[int, ClaimedBatch] = {}
        # whether trainers of an earlier server may still greet
        self.others_come: bool = before is not None and before.others_come
        # by token: partition of void claims whose verdict may still come
        self._void: dict[int, int] = {} if before is None else before._drop()
        lifecycle.claims = self.by_token

    def _drop(self) -> dict[int, int]:
        for token, claim in self.by_token.items():
            if claim.batch is not None:
                self._lifecycle.void(claim.batch)
            elif not self._supply.world:
                self._void[token] = claim.held.partition
        return self._void

    def _ask(self, claim: ClaimedBatch) -> None:
        """Have the partition judge a claim."""
        claim.ends("ask")
        self._lifecycle.effects.append(Claim(claim.held.partition, claim.held))

    @abstractmethod
    def add(self, session: int, held: Any, saved: bool) -> Iterable[ClaimedBatch]:
        """Note that a new session holds a batch, or (``saved``) has sent its commit."""

    def judged(self, token: int, verdict: str, number: int) -> Iterable[ClaimedBatch]:
        """Take a partition's verdict: "done" earlier, "yes" it can be, as ``number``, or "no"."""
        claim = self.by_token.get(token)
        if claim is None:
            partition = self._void.pop(token, -1)
            if verdict == "yes" and partition >= 0:
                self._supply.claimed_in_vain(partition)
            return ()
        return self._judged(claim, verdict, number)

    @abstractmethod
    def _judged(self, claim: ClaimedBatch, verdict: str, number: int) -> Iterable[ClaimedBatch]:
        """Take the verdict on an open claim."""

    def made(self, batch: Batch) -> Iterable[ClaimedBatch]:
        """Note that a batch was made."""
        return ()

    def partition_ended(self, number: int) -> Iterable[ClaimedBatch]:
        """Note that no more batches of a partition will come."""
        return ()

    def arrived(self, partition: int, token: int) -> None:
        """Note that a commit is stored or will not come, for which other claims may have waited."""
        return

    def wait_for_others(self, others_come: bool) -> None:
        """Set whether trainers of an earlier server are still to greet this one."""
        self.others_come = others_come


class NamedClaims(Claims):
    """Claims on batches that are made again under the names that they had.

    A plain batch has a number, and the member of a round a rank.
    """

    def __init__(
        self,
        lifecycle: BatchLifecycle,
        supply: Supply,
        before: Claims | None = None,
    ) -> None:
        super().__init__(lifecycle, supply, before)
        self._last: dict[tuple[int, ...], int] = {}  # by batch: the token of its last holder

    def add(self, session: int, held: Any, saved: bool) -> Iterable[ClaimedBatch]:
        """Claim a batch for its last holder: the one with the highest token."""
        token, name = held.token, self._supply.name_of_claim(session, held)
        if name is None:
            return ()
        claim = self.by_token[token] = ClaimedBatch(session, held, name, saved)
        self._ask(claim)
        rival_token = self._last.get(name, -1)
        if rival_token > token:
            return ()
        self._last[name] = token
        rival = self.by_token.get(rival_token)
        if rival is None:
            claim.batch = self._supply.pick(name)
            return ()
        claim.batch, rival.batch = rival.batch, None
        return self._after("never made", rival)

    def made(self, batch: Batch) -> Iterable[ClaimedBatch]:
        name = self._supply.name_of(batch)
        token = self._last.get(name)
        if token is None:
            return ()
        claim = self.by_token[token]
        claim.batch = self._supply.pick(name)
        return self._after("made", claim)

    def _judged(self, claim: ClaimedBatch, verdict: str, number: int) -> Iterable[ClaimedBatch]:
        if verdict == "yes" and claim.batch is None:
            comes = self._is_last(claim) and self._supply.will_make(claim.name)
            verdict = "yes, to be made" if comes else "no"
        return self._after(verdict, claim)

    def _is_last(self, claim: ClaimedBatch) -> bool:
        return bool(self._last.get(claim.name) == claim.held.token)

    def partition_ended(self, number: int) -> Iterable[ClaimedBatch]:
        here = [c for c in self.by_token.values() if c.held.partition == number]
        return [e for c in here if c.batch is None for e in self._after("never made", c)]

    def _after(self, event: str, claim: ClaimedBatch) -> Iterable[ClaimedBatch]:
        """Return the claim, if it has ended by an event."""
        if not claim.ends(event):
            return ()
        del self.by_token[claim.held.token]
        if self._is_last(claim):
            del self._last[claim.name]
        return (claim,)


#: Bytes of a segment in a claim: insertion index (int64) and number (int32).
_BYTES_PER_ROW = 12


class SegmentClaims(Claims):
    """The claims of a feed of segments.

        add() ─► [ of a partition, by token ] ─► Claim ─► judged() ─► commit is stored ─► the next

    A batch is made from the states of earlier ones, whose tokens are smaller.  So a partition
    judges its claims in the order of tokens, each after the commit of the one before it is stored,
    once all trainers of the earlier server have greeted.  It makes no new batch meanwhile.

    Ranks claim members of rounds by name: these were stored with the commits on which they depend.
    """

    _supply: SegmentSupply

    def __init__(
        self, lifecycle: BatchLifecycle, supply: SegmentSupply, before: Claims | None = None
    ) -> None:
        super().__init__(lifecycle, supply, before)
        self._queued: dict[int, list[int]] = {}  # by held partition: tokens of claims, in order
        #: By partition: token of the claim that it judges, or whose commit is still to come.
        self._open: dict[int, int] = {}

    def add(self, session: int, held: Any, saved: bool) -> Iterable[ClaimedBatch]:
        if not held.rows or len(held.segments) != _BYTES_PER_ROW * held.rows:
            return ()
        token, partition = held.token, held.partition
        self.by_token[token] = ClaimedBatch(session, held, expected=saved)
        insort(self._queued.setdefault(partition, []), token)
        self._supply.hold(partition, True)
        self._judge_next(partition)
        return ()

    def _judge_next(self, partition: int) -> None:
        """Have a partition judge its first claim, or let it make batches again."""
        if self.others_come or partition in self._open:
            return
        if self._queued[partition]:
            token = self._open[partition] = self._queued[partition].pop(0)
            self._ask(self.by_token[token])
        else:
            del self._queued[partition]
            self._supply.hold(partition, False)

    def _judged(self, claim: ClaimedBatch, verdict: str, number: int) -> Iterable[ClaimedBatch]:
        claim.ends(verdict)
        if claim.end is STANDS:
            claim.batch = self._out_again(claim.held, number)
        del self.by_token[claim.held.token]
        return (claim,)

    def _out_again(self, held: Any, number: int) -> Batch:
        """Return the batch of a claim, which its partition counts as out under ``number``."""
        epochs, partition = self._lifecycle.epochs, held.partition
        epoch = 0 if epochs is None else epochs.of(partition)
        batch = Batch(partition, number, held.rows, None, {"claimed": held}, epoch)
        if epochs is not None:
            epochs.made(epoch)
        return self._supply.claimed(batch)

    def arrived(self, partition: int, token: int) -> None:
        if self._open.get(partition) == token:
            del self._open[partition]
            self._judge_next(partition)

    def wait_for_others(self, others_come: bool) -> None:
        super().wait_for_others(others_come)
        for partition in list(self._queued):
            self._judge_next(partition)


def claims_of(supply: Supply, lifecycle: BatchLifecycle, before: Claims | None = None) -> Claims:
    """Return the claims on batches of a supply; there are none yet."""
    if supply.world or not isinstance(supply, SegmentSupply):
        return NamedClaims(lifecycle, supply, before)
    return SegmentClaims(lifecycle, supply, before)
