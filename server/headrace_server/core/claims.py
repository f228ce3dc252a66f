"""Batches of an earlier server that trainers still hold; each is reserved for its trainer.

    add() ─► Claim ─► partition ─► judged() ─┬─ "yes"   the lease stands again
                   made(): it is here ───────┤  "done"  the commit was stored before
                                             └─ "no"    the batch goes to others

The table ``CLAIM`` has the states of a claim.  No other trainer gets a claimed batch until its
partition has judged the claim.  Every method returns the claims that it has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from .batch_lifecycle import BatchLifecycle
from .dispatch_effects import Batch, Claim
from .supply import Supply
from .transitions import StateMachine, Transitions

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
class ClaimedBatch(StateMachine):
    """A batch of an earlier server that a trainer holds."""

    table: ClassVar = CLAIM
    session: int
    held: Any
    name: tuple[int, ...] = ()  # of its batch, where batches are made again under their names
    expected: bool = False  # whether a commit will come: the trainer sent it to the earlier server
    end: str = ""  # STANDS, DONE or GONE
    batch: Batch | None = None  # reserved for it
    saved: bool = False  # whether its commit came before the verdict …
    payload: Any = None  # … and the payload of that commit

    def ends(self, event: str) -> bool:
        """Change the state by an event; return whether the claim has ended."""
        self.end = self.on(event) or ""
        return self.state is ENDED

    def __str__(self) -> str:
        return f"the claim of trainer {self.session} on token {self.held.token}"


class Claims(ABC):
    """The claims on batches of one supply."""

    def __init__(
        self, lifecycle: BatchLifecycle, supply: Supply, before: Claims | None = None
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
        claim.on("ask")
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
        self, lifecycle: BatchLifecycle, supply: Supply, before: Claims | None = None
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
