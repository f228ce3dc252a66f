"""The dispatcher of a feed with groups: a layer over the plain dispatcher, which knows no members.

    dispatcher ─► Send to the group ─► each member's waiting batches ─► Send to the member
    commit of a member ─┐
    commit of a member ─┴─ all have committed ─► commit of the group ─► Answer ─► all that asked

A group gets only as many batches as its slowest member takes.  Each member saves the states of
segments; they are equal, so the last ones that arrive are stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .group_members import GroupMembers
from .group_places import Group, GroupBatch, MemberPlace
from .handover import (
    Answer,
    Batch,
    Effect,
    EpochBegun,
    Finish,
    FlushLost,
    Returned,
    Rewound,
    Send,
)
from .lease import ANSWERED, SAVING

_OF_A_TRAINER = (Send, Answer, Finish, EpochBegun, Rewound)


class GroupDispatcher(GroupMembers):
    """The dispatcher of a feed with groups.  It replaces a plain one and takes over its state."""

    # The window of each member

    def window(self, session: int, upto: int) -> None:
        of = self._member_of.get(session)
        if of is None:
            super().window(session, upto)
        elif upto > of[1].window:
            of[1].window = upto
            self._touched[of[0]] = None

    def give_back(self, session: int, tokens: tuple[int, ...]) -> None:
        of = self._member_of.get(session)
        if of is None:
            super().give_back(session, tokens)
            return
        group, member = of
        for token in tokens:
            if token in member.sent:
                self._send_later(group, member, token)

    def renew(self, session: int, last_seq: int, held: frozenset[int], now: float) -> bool:
        of = self._member_of.get(session)
        if of is None:
            return super().renew(session, last_seq, held, now)
        group, member = of
        self.seen(session, now)
        self._leases.renew(group.number, now)
        for token, seq in list(member.sent.items()):
            if seq <= last_seq and token not in held:
                self._send_later(group, member, token)
        return True

    def resend(self, session: int, last_seq: int) -> None:
        of = self._member_of.get(session)
        if of is None:
            super().resend(session, last_seq)
            return
        group, member = of
        self._leases.renew(group.number, member.seen)
        missed = sorted((seq, token) for token, seq in member.sent.items() if seq > last_seq)
        for seq, token in missed:
            batch = group.batches[token].batch
            if batch is not None:
                self._hands.effects.append(Send(session, seq, token, batch))
        member.seq = missed[-1][0] if missed else last_seq
        member.knows_end, member.epoch = False, 0
        self._touched[group] = None

    def _send_later(self, group: Group, member: MemberPlace, token: int) -> None:
        """Resend a batch that a member never got, or does not hold any more."""
        shared = group.batches[token]
        if shared.batch is not None:
            member.wait(token, shared.batch)
        else:
            member.sent.pop(token)  # it waits once its claim is judged
        self._touched[group] = None

    # Commits

    def save(self, session: int, token: int, payload: Any = None) -> None:
        of = self._member_of.get(session)
        if of is None:
            super().save(session, token, payload)
            return
        group, member = of
        shared = group.batches.get(token)
        # it belonged to an earlier group
        if shared is None and self._leases.state(token) == SAVING:
            shared = group.batches[token] = GroupBatch(None, saving=True)
            super().save(group.number, token)
        if shared is None:
            self._answer_late(session, token)
            return
        shared.done.add(member)
        shared.payload = payload
        shared.asking.add(session)
        member.forget(token)
        self._commit_if_done(group, token, shared)

    def _commit_if_done(self, group: Group, token: int, shared: GroupBatch) -> None:
        """Commit a batch for the group, once all members have committed it."""
        if len(shared.done) == group.size and shared.batch is not None and not shared.saving:
            shared.saving = True
            super().save(group.number, token, shared.payload)
            if self._leases.state(token) == SAVING:  # else it was taken back with an earlier one
                for payload in shared.flushes:
                    super().flush(shared.batch, payload)

    def flush(self, batch: Batch, payload: Any) -> None:
        """Store states of lanes, once the batch before them is committed by all members."""
        for group in self._groups.values():
            for shared in group.batches.values():
                if shared.batch is batch and not shared.saving:
                    shared.flushes.append(payload)
                    return
        super().flush(batch, payload)

    def _answer_late(self, session: int, token: int) -> None:
        """Answer a commit of a batch that the group does not have."""
        if self._leases.state(token) == ANSWERED:
            self._answer(session, token)
        else:
            self._answer_stale(session, token)

    # After a reconnection, or a restart of the server

    def adopt(self, session: int, tokens: tuple[int, ...], now: float) -> None:
        of = self._member_of.get(session)
        if of is None:
            super().adopt(session, tokens, now)
            return
        group, member = of
        for token in tokens:
            if token not in group.batches:
                batch = self._leases.adopt(token, group.number, now)
                if batch is None:
                    continue
                batch.wait_no_more()
                self._share(group, token, batch)
            self._has(group, member, token)

    def claim(self, session: int, place: Any, saved: bool = False) -> None:
        of = self._member_of.get(session)
        if of is None:
            super().claim(session, place, saved)
            return
        group, member = of
        token = place.token
        if token not in group.batches:
            super().claim(group.number, place)
            if token not in self._claims.by_token:
                return
            group.batches[token] = GroupBatch(None)
            group.claimed.add(token)
        self._has(group, member, token)
        self._touched[group] = None

    def recall(self, session: int, commit: Any) -> None:
        super().recall(self._trainer_of(session), commit)

    def _has(self, group: Group, member: MemberPlace, token: int) -> None:
        """Note that a member holds a batch, or that its commit is on the way."""
        if member not in group.batches[token].done and token not in member.sent:
            member.waiting.pop(token, None)
            member.sent[token] = 0

    def _share(self, group: Group, token: int, batch: Batch) -> None:
        """Hand a batch of the group to all members."""
        shared = group.batches.setdefault(token, GroupBatch(batch))
        shared.batch = batch
        for member in group.members:
            if member not in shared.done and token not in member.sent:
                member.wait(token, batch)
        self._touched[group] = None

    def _settle_claims(self, group: Group) -> None:
        """Remove judged claims of a group."""
        for token in [token for token in group.claimed if token not in self._claims.by_token]:
            group.claimed.discard(token)
            self._touched[group] = None
            batch = None
            if self._leases.holds(group.number, token):
                batch = self._leases.batch_of(token, group.number)
            if batch is not None:
                self._share(group, token, batch)
                self._commit_if_done(group, token, group.batches[token])
                continue
            asking = sorted(group.batches[token].asking)
            self._drop(group, token)
            for session in asking:
                self._answer_late(session, token)

    def _drop(self, group: Group, token: int) -> None:
        """Forget a batch that the group does not have any more."""
        del group.batches[token]
        for member in group.members:
            member.forget(token)

    # Effects

    def take_effects(self) -> list[Effect]:
        for group in self._groups.values():
            if group.claimed:
                self._settle_claims(group)
        for group in self._touched:
            credits = group.credits
            if credits:
                seq = self._trainers.present[group.number].seq
                super().window(group.number, seq + credits)
        passed: list[Effect] = []
        for effect in super().take_effects():
            if isinstance(effect, _OF_A_TRAINER) and effect.session < 0:
                of = self._by_number.get(effect.session)  # it may have left
                passed += () if of is None else self._shared(of, effect)
            else:
                passed.append(effect)
            if isinstance(effect, Returned):
                passed += self._lost(effect.token)
        for group in self._touched:
            for member in group.present:
                self._serve(group, member, passed)
        self._touched.clear()
        return passed

    def _shared(self, group: Group, effect: Effect) -> Iterable[Effect]:
        """Return the effects for members of an effect for the group, if they need not wait."""
        self._touched[group] = None
        if isinstance(effect, Send):
            group.begun = True
            self._share(group, effect.token, effect.batch)
        elif isinstance(effect, Answer):
            return self._answers(group, effect)
        elif isinstance(effect, Rewound):
            return [Rewound(member.session) for member in group.present]
        elif isinstance(effect, EpochBegun):
            group.epoch = effect.epoch
        else:
            group.ended = True
        return ()

    def _answers(self, group: Group, answer: Answer) -> Iterable[Effect]:
        """Return the answer to a commit of the group for each member that has asked."""
        tokens = [*answer.committed, *answer.stale, *(fault[0] for fault in answer.faults)]
        tokens = [token for token in tokens if token in group.batches]  # the others are answered
        sessions = sorted({s for token in tokens for s in group.batches[token].asking})
        for token in tokens:
            self._drop(group, token)
        return [Answer(s, answer.committed, answer.stale, answer.faults) for s in sessions]

    def _lost(self, token: int) -> Iterable[Effect]:
        """Note that a lease has ended without a commit; commits of members do not count."""
        for group in self._groups.values():
            if token in group.batches:
                shared = group.batches[token]
                self._drop(group, token)
                stale = [Answer(session, (), (token,)) for session in sorted(shared.asking)]
                return [*stale, *map(FlushLost, shared.flushes)]
        return ()

    def _serve(self, group: Group, member: MemberPlace, passed: list[Effect]) -> None:
        """Send a member the batches that it can take, and notices that it has not got."""
        if group.epoch > member.epoch:
            member.epoch = group.epoch
            passed.append(EpochBegun(member.session, member.epoch))
        ready = not group.claimed  # else an earlier batch may come
        while ready and member.waiting and member.window > member.seq:
            token = next(iter(member.waiting))
            batch = member.waiting.pop(token)
            member.seq = member.sent[token] = member.seq + 1
            passed.append(Send(member.session, member.seq, token, batch))
        if group.ended and not member.knows_end:
            member.knows_end = True
            passed.append(Finish(member.session))
