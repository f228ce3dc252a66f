"""Claims of segments: rows that an earlier server handed out, known by their segments.

    add() ─► [ of a partition, by token ] ─► Claim, one after the other ─► judged() ─► arrived()

A batch is made from the states of earlier ones.  So a partition judges a claim whose commit will
come before it judges claims of later tokens, and makes no new batch meanwhile.  A claim that it
refuses may name rows that exist only after another trainer's commit: it stays open until no such
commit can come.  Lanes whose states are not at the server are not claimed.

Ranks claim members of rounds by name: these were stored with the commits on which they depend.  In
a group, members that lack such a batch get it, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .claims import DOUBTFUL, STANDS, ClaimedBatch, Claims, NamedClaims
from .handover import Batch
from .hands import Hands
from .segment_supply import SegmentSupply
from .supply import Supply

#: Bytes of a segment in a claim: insertion index (int64) and number (int32).
_BYTES_PER_ROW = 12


class SegmentClaims(Claims):
    """The claims of a feed of segments."""

    _supply: SegmentSupply

    def __init__(self, hands: Hands, supply: SegmentSupply, before: Claims | None = None) -> None:
        super().__init__(hands, supply, before)
        #: By held partition: tokens of queued claims, the oldest last.
        self._unsaid: dict[int, list[int]] = {}
        self._awaited: dict[int, int] = {}  # by partition: token of the claim for which others wait

    def add(self, session: int, place: Any, saved: bool) -> Iterable[ClaimedBatch]:
        if not place.rows or len(place.segments) != _BYTES_PER_ROW * place.rows:
            return ()
        token, partition = place.token, place.partition
        claim = self.by_token[token] = ClaimedBatch(session, place)
        if not self._supply.claims_wait:
            self._ask(claim)
            return ()
        claim.expected = saved
        held = partition in self._unsaid
        self._unsaid[partition] = sorted([*self._unsaid.get(partition, ()), token], reverse=True)
        self._say_next(partition)
        if partition in self._awaited:
            self._supply.hold(partition, True)
        elif not held:
            del self._unsaid[partition]
        return ()

    def _say_next(self, partition: int) -> None:
        unsaid = self._unsaid[partition]
        while unsaid and partition not in self._awaited:
            token = unsaid.pop()
            claim = self.by_token[token]
            self._ask(claim)
            if claim.saved or claim.expected:
                self._awaited[partition] = token

    def _judged(self, claim: ClaimedBatch, verdict: str, number: int) -> Iterable[ClaimedBatch]:
        token = claim.place.token
        doubtful = verdict == "no" and self._may_be_made_up(claim)
        partition = claim.place.partition
        if not claim.ends("no, not yet" if doubtful else verdict):
            self._unsaid.setdefault(partition, [])
            self._supply.hold(partition, True)
            if self._awaited.get(partition) == token:
                del self._awaited[partition]
                self._say_next(partition)
            return ()
        if claim.end is STANDS:
            claim.batch = self._out_again(claim.place, number)
        del self.by_token[token]
        return (claim,)

    def _may_be_made_up(self, claim: ClaimedBatch) -> bool:
        """Return whether another trainer may still save the states from which a claimed batch was
        made.

        Other trainers may greet, or have claims that are not judged yet.
        """
        if not self._supply.claims_wait:
            return False
        return self.others_come or any(
            other.place.partition == claim.place.partition and other.state is not DOUBTFUL
            for other in self.by_token.values()
            if other is not claim
        )

    def _out_again(self, place: Any, number: int) -> Batch:
        """Return the batch of a claim, which its partition counts as out under ``number``."""
        epochs, partition = self._hands.epochs, place.partition
        epoch = 0 if epochs is None else epochs.of(partition)
        batch = Batch(partition, number, place.rows, None, {"claimed": place}, epoch)
        if epochs is not None:
            epochs.made(epoch)
        return self._supply.claimed(batch)

    def arrived(self, partition: int, token: int, stored: bool = False) -> None:
        if not (self.by_token or self._awaited or self._unsaid):  # the usual case after a commit
            return
        if stored:
            self._judge_again(partition)
        if self._awaited.get(partition) == token:
            del self._awaited[partition]
            self._say_next(partition)
        if partition in self._awaited:
            return
        here = [claim for claim in self.by_token.values() if claim.place.partition == partition]
        if here and all(claim.state is DOUBTFUL for claim in here) and not self.others_come:
            self._judge_again(partition)
        elif not here and partition in self._unsaid:
            del self._unsaid[partition]
            self._supply.hold(partition, False)

    def _judge_again(self, partition: int) -> None:
        """Have a partition judge refused claims again, since it may know their rows by now."""
        again = [
            token
            for token, claim in self.by_token.items()
            if claim.state is DOUBTFUL and claim.place.partition == partition
        ]
        if again:
            for token in again:
                self.by_token[token].on("ask again")
            unsaid = {*self._unsaid.get(partition, ()), *again}
            self._unsaid[partition] = sorted(unsaid, reverse=True)
            self._say_next(partition)

    def wait_for_others(self, others_come: bool) -> None:
        super().wait_for_others(others_come)
        doubtful = [claim for claim in self.by_token.values() if claim.state is DOUBTFUL]
        for partition in {claim.place.partition for claim in doubtful}:
            self._judge_again(partition)


def claims_of(supply: Supply, hands: Hands, before: Claims | None = None) -> Claims:
    """Return the claims on batches of a supply; there are none yet."""
    if supply.world or not isinstance(supply, SegmentSupply):
        return NamedClaims(hands, supply, before)
    return SegmentClaims(hands, supply, before)
