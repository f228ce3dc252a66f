"""Claims of segments: rows that an earlier server handed out, known by their segments.

    add() ─► [ of a partition, by token ] ─► Claim, one after the other ─► judged() ─► arrived()

A batch is made from the states of earlier ones.  So a partition judges a claim whose commit will
come before it judges claims of later tokens, and makes no new batch meanwhile.  A claim that it
refuses may name rows that exist only after another trainer's commit: it stays open until no such
commit can come.  Lanes whose states are not at the server are not claimed.

Ranks claim members of rounds, which were stored with the commits on which they depend.  Such a
claim ends well once its member was made again; in a group, members that lack it get it, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .claims import DOUBTFUL, STANDS, ClaimedBatch, Claims
from .handover import Batch
from .hands import Hands
from .members import place_of
from .segment_rounds import following
from .segment_supply import SegmentSupply

#: Number of a round, partition and rank.
_Member = tuple[int, int, int]
#: Bytes of a segment in a claim: insertion index (int64) and number (int32).
_BYTES_PER_ROW = 12


class SegmentClaims(Claims):
    """The claims of a feed of segments."""

    def __init__(self, hands: Hands, supply: SegmentSupply) -> None:
        super().__init__(hands)
        self.supply = supply
        #: By held partition: tokens of queued claims, the oldest last.
        self._unsaid: dict[int, list[int]] = {}
        self._awaited: dict[int, int] = {}  # by partition: token of the claim for which others wait
        # by token: partition of claims whose verdict does not matter
        self._void: dict[int, int] = {}

    def start_run(self, run: int, world: int) -> SegmentSupply:
        before = self.supply
        if (run, world) != (before.run, before.world) or before.loaded:
            self._serve(following(before, self._hands, run, world))
        return self.supply

    def _serve(self, supply: SegmentSupply) -> None:
        """Claim batches of another supply from now on; trainers of the earlier one have left."""
        for token, claim in self.by_token.items():
            if claim.batch is not None:
                self._hands.void(claim.batch)
            elif not self.supply.world:
                self._void[token] = claim.place.partition
        self.supply = supply
        self.by_token.clear()
        self._unsaid.clear()
        self._awaited.clear()

    def add(self, session: int, place: Any, saved: bool) -> Iterable[ClaimedBatch]:
        if not self._is_sound(session, place):
            return ()
        token, partition = place.token, place.partition
        claim = self.by_token[token] = ClaimedBatch(session, place)
        if not self.supply.claims_wait:
            self._ask(claim)
            return ()
        claim.expected = saved
        held = partition in self._unsaid
        self._unsaid[partition] = sorted([*self._unsaid.get(partition, ()), token], reverse=True)
        self._say_next(partition)
        if partition in self._awaited:
            self.supply.hold(partition, True)
        elif not held:
            del self._unsaid[partition]
        return ()

    def _is_sound(self, session: int, place: Any) -> bool:
        """Return whether a claim names segments, or with ranks the trainer's own member."""
        if not self.supply.world:
            return bool(place.rows) and len(place.segments) == _BYTES_PER_ROW * place.rows
        member, trainer = place_of(place.segments), self._hands.trainers.present.get(session)
        return member is not None and trainer is not None and member[1] == trainer.rank

    def _say_next(self, partition: int) -> None:
        unsaid = self._unsaid[partition]
        while unsaid and partition not in self._awaited:
            token = unsaid.pop()
            claim = self.by_token[token]
            self._ask(claim)
            if claim.saved or claim.expected:
                self._awaited[partition] = token

    def judged(self, token: int, verdict: str, number: int) -> Iterable[ClaimedBatch]:
        claim = self.by_token.get(token)
        if claim is None:
            partition = self._void.pop(token, -1)
            if verdict == "yes" and partition >= 0:  # the partition has assigned it a number
                self.supply.partitions[partition].made += 1
            return ()
        if self.supply.world:
            return self._judged_member(claim, verdict)
        doubtful = verdict == "no" and self._may_be_made_up(claim)
        partition = claim.place.partition
        if not claim.ends("no, not yet" if doubtful else verdict):
            self._unsaid.setdefault(partition, [])
            self.supply.hold(partition, True)
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
        if not self.supply.claims_wait:
            return False
        return self.others_come or any(
            other.place.partition == claim.place.partition
            for other in self._others(claim)
            if other.state is not DOUBTFUL
        )

    def _out_again(self, place: Any, number: int) -> Batch:
        """Return the batch of a claim, which its partition counts as out under ``number``."""
        batch = Batch(place.partition, number, place.rows, None, {"claimed": place})
        return self.supply.claimed(batch)

    # Members of rounds

    def _judged_member(self, claim: ClaimedBatch, verdict: str) -> Iterable[ClaimedBatch]:
        """Accept a claim if its member is here, or let it wait until the member was made again."""
        if verdict == "yes" and claim.batch is None:
            member = _member_of(claim)
            claim.batch = self.supply.pick(*member)
            if any(_member_of(other) == member for other in self._others(claim)):
                verdict = "no"
            elif claim.batch is None:
                verdict = "yes, to be made" if self.supply.make_again(*member) else "no"
        return self._after(verdict, claim)

    def _others(self, claim: ClaimedBatch) -> Iterable[ClaimedBatch]:
        return (other for other in self.by_token.values() if other is not claim)

    def made(self, batch: Batch) -> Iterable[ClaimedBatch]:
        if self.supply.world:
            member = batch.round, batch.partition, batch.rank
            for claim in self.by_token.values():
                if _member_of(claim) == member:
                    claim.batch = self.supply.pick(*member)
                    return self._after("made", claim)
        return ()

    def partition_ended(self, number: int) -> Iterable[ClaimedBatch]:
        return super().partition_ended(number) if self.supply.world else ()

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
            self.supply.hold(partition, False)

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


def _member_of(claim: ClaimedBatch) -> _Member:
    """Return the member that a rank claims."""
    member = place_of(claim.place.segments)
    assert member is not None  # checked by ``_is_sound``
    return member[0], claim.place.partition, member[1]
