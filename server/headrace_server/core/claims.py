"""Batches of an earlier server that trainers still have: each is set aside for its trainer.

    add() ─► Claim ─► worker ─► judged() ─┬─ "yes"   the lease stands again
                made(): it is here ───────┤  "done"  the commit was stored before
                                          └─ "no"    the batch goes to others

Nobody else is given a batch that is claimed until its worker has said what has become of it.
Every method gives the claims that ended by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .handover import Batch, Claim
from .hands import Hands
from .plain_supply import PlainSupply

__all__ = ["Claimed", "Claims"]


@dataclass(slots=True)
class Claimed:
    """A batch of an earlier server that a trainer has."""

    session: int
    place: Any
    expected: bool = False  # whether its commit is to come, as it was said before
    batch: Batch | None = None  # set aside for it
    verdict: str = ""
    doubtful: bool = False  # refused, and may still come to be
    saved: bool = False  # its commit came before the verdict …
    payload: Any = None  # … with this


class Claims:
    """The claims of a plain feed, whose batches are known by their numbers."""

    def __init__(self, hands: Hands, supply: PlainSupply) -> None:
        self._hands = hands
        self._supply = supply
        self.by_token: dict[int, Claimed] = {}
        self._last: dict[tuple[int, int], int] = {}  # of each batch the last holder's token

    def add(self, session: int, place: Any, saved: bool) -> Iterable[Claimed]:
        """A new session has a batch, or (``saved``) commits it: that was not answered.

        Of several holders that a batch had the last one, of the highest token, has it.
        """
        token, order = place.token, (place.number, place.partition)
        claim = self.by_token[token] = Claimed(session, place, saved)
        self._hands.effects.append(Claim(place.partition, place))
        rival_token = self._last.get(order, -1)
        if rival_token > token:
            return ()
        self._last[order] = token
        rival = self.by_token.get(rival_token)
        if rival is None:
            claim.batch = self._supply.pick(*order)
            return ()
        claim.batch, rival.batch = rival.batch, None
        return self._ended(rival) if rival.verdict else ()

    def made(self, batch: Batch) -> Iterable[Claimed]:
        """A batch was made."""
        token = self._last.get(batch.order)
        if token is None:
            return ()
        claim = self.by_token[token]
        claim.batch = self._supply.pick(*batch.order)
        return self._ended(claim) if claim.verdict else ()

    def partition_ended(self, number: int) -> Iterable[Claimed]:
        """No more batches of a partition will come."""
        return [
            ended
            for claim in list(self.by_token.values())
            if claim.place.partition == number and claim.verdict and claim.batch is None
            for ended in self._ended(claim)
        ]

    def judged(self, token: int, verdict: str, number: int) -> Iterable[Claimed]:
        """A worker's word on a claim: "done" before, "yes" it can be, or "no"."""
        claim = self.by_token.get(token)
        if claim is None:
            return ()
        claim.verdict = verdict
        if verdict == "done":
            self._hands.leases.remember(token)
        elif verdict == "yes" and claim.batch is None and self._comes(claim.place):
            return ()
        return self._ended(claim)

    def _comes(self, place: Any) -> bool:
        """Whether a batch that is not here will come, and be this claim's."""
        order = place.number, place.partition
        return self._last.get(order) == place.token and self._supply.stream.will_make(*order)

    def _ended(self, claim: Claimed) -> Iterable[Claimed]:
        place = claim.place
        del self.by_token[place.token]
        order = place.number, place.partition
        if self._last.get(order) == place.token:
            del self._last[order]
        return (claim,)

    def arrived(self, partition: int, token: int, stored: bool = False) -> None:
        """A commit is stored, or will not come: no claim waits for one."""

    def wait_for_others(self, others_come: bool) -> None:
        """Whether trainers of an earlier server are to greet this one: no verdict rests on it."""
