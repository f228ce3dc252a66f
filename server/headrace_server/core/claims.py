"""Batches of an earlier server that trainers still hold; each is reserved for its trainer.

    add() ─► Claim ─► partition ─► judged() ─┬─ "yes"   the lease stands again
                   made(): it is here ───────┤  "done"  the commit was stored before
                                             └─ "no"    the batch goes to others

The life of a claim is the table ``CLAIM``.  No other trainer gets a claimed batch until its
partition has judged the claim.  Every method returns the claims that it has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from .handover import Batch, Claim
from .hands import Hands
from .plain_supply import PlainSupply
from .supply import Supply
from .transitions import Lifecycle, Transitions

QUEUED, ASKED, DOUBTFUL, ALLOWED, ENDED = STATES = (
    "queued",
    "asked",
    "doubtful",
    "allowed",
    "ended",
)
STANDS, DONE, GONE = "the lease stands again", "its commit was stored", "the batch goes to others"

_WAITS_FOR_NONE = "waits for no batch", (QUEUED, DOUBTFUL, ENDED)
_JUDGED_LATE = ("was not asked about", (QUEUED, DOUBTFUL, ALLOWED, ENDED))

CLAIM = Transitions(
    "claim",
    STATES,
    moves={
        "ask": {QUEUED: (ASKED, "Claim")},
        "yes": {ASKED: (ENDED, STANDS)},
        "yes, to be made": {ASKED: (ALLOWED, None)},
        "done": {ASKED: (ENDED, DONE)},
        "no": {ASKED: (ENDED, GONE)},
        "no, not yet": {ASKED: (DOUBTFUL, None)},
        "ask again": {DOUBTFUL: (QUEUED, None)},
        "made": {ASKED: (ASKED, None), ALLOWED: (ENDED, STANDS)},
        "never made": {ASKED: (ASKED, None), ALLOWED: (ENDED, GONE)},
    },
    errors={
        "ask": ("was asked about already", (ASKED, DOUBTFUL, ALLOWED, ENDED)),
        **dict.fromkeys(("yes", "yes, to be made", "done", "no", "no, not yet"), _JUDGED_LATE),
        "ask again": ("is not in doubt", (QUEUED, ASKED, ALLOWED, ENDED)),
        **dict.fromkeys(("made", "never made"), _WAITS_FOR_NONE),
    },
)


@dataclass(slots=True)
class ClaimedBatch(Lifecycle):
    """A batch of an earlier server that a trainer holds."""

    table: ClassVar = CLAIM
    session: int
    place: Any
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
        return f"the claim of trainer {self.session} on token {self.place.token}"


class Claims(ABC):
    """The claims of one feed."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self.by_token: dict[int, ClaimedBatch] = {}
        self.others_come = False  # whether trainers of an earlier server may still greet
        hands.claims = self.by_token

    @abstractmethod
    def start_run(self, run: int, world: int) -> Supply:
        """Prepare for a trainer of a run, or for one without a rank; return the
        supply from now on."""

    def _ask(self, claim: ClaimedBatch) -> None:
        """Have the partition judge a claim."""
        claim.on("ask")
        self._hands.effects.append(Claim(claim.place.partition, claim.place))

    @abstractmethod
    def add(self, session: int, place: Any, saved: bool) -> Iterable[ClaimedBatch]:
        """Note that a new session holds a batch, or (``saved``) has sent its commit."""

    @abstractmethod
    def judged(self, token: int, verdict: str, number: int) -> Iterable[ClaimedBatch]:
        """Take a partition's verdict: "done" earlier, "yes" it can be, as ``number``, or "no"."""

    def made(self, batch: Batch) -> Iterable[ClaimedBatch]:
        """Note that a batch was made."""
        return ()

    def partition_ended(self, number: int) -> Iterable[ClaimedBatch]:
        """Note that no more batches of a partition will come."""
        here = [c for c in self.by_token.values() if c.place.partition == number]
        return [e for c in here if c.batch is None for e in self._after("never made", c)]

    def _after(self, event: str, claim: ClaimedBatch) -> Iterable[ClaimedBatch]:
        """Return the claim, if it has ended by an event."""
        if not claim.ends(event):
            return ()
        del self.by_token[claim.place.token]
        return (claim,)

    def arrived(self, partition: int, token: int, stored: bool = False) -> None:
        """Note that a commit is stored or will not come, for which other claims may have waited."""
        return

    def wait_for_others(self, others_come: bool) -> None:
        """Set whether trainers of an earlier server are still to greet this one."""
        self.others_come = others_come


class PlainClaims(Claims):
    """The claims of a plain feed, whose batches are known by their numbers."""

    def __init__(self, hands: Hands, supply: PlainSupply) -> None:
        super().__init__(hands)
        self._supply = supply
        self._last: dict[tuple[int, int], int] = {}  # by batch: the token of its last holder

    def start_run(self, run: int, world: int) -> PlainSupply:
        self._supply.start_run(run, world)
        return self._supply

    def add(self, session: int, place: Any, saved: bool) -> Iterable[ClaimedBatch]:
        """Claim a batch for its last holder: the one with the highest token."""
        token, order = place.token, (place.number, place.partition)
        claim = self.by_token[token] = ClaimedBatch(session, place, saved)
        self._ask(claim)
        rival_token = self._last.get(order, -1)
        if rival_token > token:
            return ()
        self._last[order] = token
        rival = self.by_token.get(rival_token)
        if rival is None:
            claim.batch = self._supply.pick(*order)
            return ()
        claim.batch, rival.batch = rival.batch, None
        return self._after("never made", rival)

    def made(self, batch: Batch) -> Iterable[ClaimedBatch]:
        token = self._last.get(batch.order)
        if token is None:
            return ()
        claim = self.by_token[token]
        claim.batch = self._supply.pick(*batch.order)
        return self._after("made", claim)

    def judged(self, token: int, verdict: str, number: int) -> Iterable[ClaimedBatch]:
        claim = self.by_token.get(token)
        if claim is None:
            return ()
        if verdict == "yes" and claim.batch is None:
            verdict = "yes, to be made" if self._comes(claim.place) else "no"
        return self._after(verdict, claim)

    def _comes(self, place: Any) -> bool:
        """Return whether a batch that is not here will come and belong to this claim."""
        order = place.number, place.partition
        return self._last.get(order) == place.token and self._supply.stream.will_make(*order)

    def _after(self, event: str, claim: ClaimedBatch) -> Iterable[ClaimedBatch]:
        ended = super()._after(event, claim)
        place = claim.place
        if ended and self._last.get((place.number, place.partition)) == place.token:
            del self._last[place.number, place.partition]
        return ended
