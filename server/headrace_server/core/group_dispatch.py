"""The dispatcher of a feed with groups: a layer over the plain dispatcher, which knows no members.

    dispatcher ─► Send to the group ─► each member's waiting batches ─► Send to the member
    commit of a member ─┐
    commit of a member ─┴─ all have committed ─► commit of the group ─► Answer ─► all that asked

A group gets only as many batches as its slowest member takes.  Each member saves the states of
segments; they are equal, so the last ones that arrive are stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headrace_proto.messages import EpochBegun, Following

from .dispatch_effects import Answer, Batch, Effect, Finish, FlushLost, Returned, Rewound, Send
from .group_members import GroupMembers
from .group_state import Group, GroupBatch, MemberPlace
from .lease import ANSWERED, SAVING

_OF_A_TRAINER = (Send, Answer, Finish, EpochBegun, Rewound, Following)


class GroupDispatcher(GroupMembers):
    """The dispatcher of a feed with groups.  It replaces a plain one and takes over its state."""

    # The window of each member

    def window(self, session: int, upto: int) -> None:
        member = self._member_of.get(session)
        if member is None:
            super().window(session, upto)
        else:
            member.window = max(upto, member.window)
            self._touched[member.group] = None

    def give_back(self, session: int, tokens: tuple[int, ...], last_seq: int) -> None:
        member = self._member_of.get(session)
        if member is None:
            super().give_back(session, tokens, last_seq)
        else:  # a batch that was returned twice may have been sent again in between
            came = {token for token, seq in member.sent.items() if seq <= last_seq}
            self._send_again_to(member, [token for token in tokens if token in came])

    def renew(self, session: int, last_seq: int, held: frozenset[int], now: float) -> bool:
        member = self._member_of.get(session)
        if member is None:
            return super().renew(session, last_seq, held, now)
        self.seen(session, now)
        self._leases.renew(member.group.number, now)
        sent = member.sent.items()
        lost = [token for token, seq in sent if seq <= last_seq and token not in held]
        self._send_again_to(member, lost)
        return True

    def _send_again_to(self, member: MemberPlace, tokens: Iterable[int]) -> None:
        """Send batches to a member that has not got them, or does not have them any more.

        Where its trainer has the states, and has those of a later batch by now, the batches of the
        group go back.
        """
        again = [token for token in tokens if member.sent.pop(token, None) is not None]
        self._touched[member.group] = None
        if self._chained and any(map(member.has_after, again)):
            mine = self._leases.of_session(member.group.number)
            self._take_back([lease for lease in mine if lease.token in again], "lost")

    def resend(self, session: int, last_seq: int) -> None:
        member = self._member_of.get(session)
        if member is None:
            super().resend(session, last_seq)
            return
        self._leases.renew(member.group.number, member.seen)
        missed = sorted((seq, token) for token, seq in member.sent.items() if seq > last_seq)
        for seq, token in missed:
            batch = member.group.batches[token].batch
            if batch is not None:
                self._lifecycle.effects.append(Send(session, seq, token, batch))
        member.seq = missed[-1][0] if missed else last_seq
        self._tell_again(member.group)
        self._touched[member.group] = None

    # Commits

    def save(self, session: int, token: int, payload: Any = None) -> None:
        member = self._member_of.get(session)
        if member is None:
            super().save(session, token, payload)
            return
        group = member.group
        shared = group.batches.get(token)
        if shared is None and self._leases.state(token) == SAVING:  # of an earlier group
            shared = group.batches[token] = GroupBatch(None, saving=True)
            super().save(group.number, token)
        if shared is None:
            self._answer_late(session, token)
            return
        shared.done.add(member)
        shared.payload = payload
        shared.asking.add(session)
        member.sent.pop(token, None)
        if member.behind:
            self._tell_again(group)
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
            self._answer(session, token, self._leases.fault(token))
        else:
            self._answer_stale(session, token)

    # After a reconnection, or a restart of the server

    def adopt(self, session: int, tokens: tuple[int, ...], now: float) -> None:
        member = self._member_of.get(session)
        if member is None:
            super().adopt(session, tokens, now)
            return
        group = member.group
        for token in tokens:
            if token not in group.batches:
                batch = self._leases.adopt(token, group.number, now)
                if batch is None:
                    continue
                batch.wait_no_more()
                self._share(group, token, batch)
            member.has(token)

    def claim(self, session: int, place: Any, saved: bool = False) -> None:
        member = self._member_of.get(session)
        if member is None:
            super().claim(session, place, saved)
            return
        group, token = member.group, place.token
        if token not in group.batches:
            super().claim(group.number, place)
            if token not in self._claims.by_token:
                return
            group.batches[token] = GroupBatch(None)
            group.claimed.add(token)
        member.has(token)
        self._touched[group] = None

    def recall(self, session: int, commit: Any) -> None:
        super().recall(self._trainer_of(session), commit)

    def _share(self, group: Group, token: int, batch: Batch) -> None:
        """Hand a batch of the group to all members."""
        group.batches.setdefault(token, GroupBatch(batch)).batch = batch
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
            for session in sorted(group.drop(token).asking):
                self._answer_late(session, token)
        if not group.claimed:
            self._tell_again(group)

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
                of = self._groups.get(effect.session)  # it may have left
                passed += () if of is None else self._shared(of, effect)
            else:
                passed.append(effect)
            if isinstance(effect, Returned):
                passed += self._lost(effect.token)
        for group in self._touched:
            for member in group.present:
                self._serve(member, passed)
        self._touched.clear()
        return passed

    def _shared(self, group: Group, effect: Any) -> Iterable[Effect]:
        """Return the effects for members of an effect for the group, if they need not wait."""
        self._touched[group] = None
        if isinstance(effect, Send):
            group.begun = True
            self._share(group, effect.token, effect.batch)
            return ()
        if isinstance(effect, Answer):
            return self._answers(group, effect)
        if isinstance(effect, Following):
            there = () if group.claimed else group.present  # else an earlier batch may come
            return [member.announce(effect) for member in there]
        return [replace(effect, session=member.session) for member in group.present]

    def _answers(self, group: Group, answer: Answer) -> Iterable[Effect]:
        """Return the answer to a commit of the group for each member that has asked."""
        tokens = [*answer.committed, *answer.stale, *(fault[0] for fault in answer.faults)]
        dropped = [group.drop(token) for token in tokens if token in group.batches]
        sessions = sorted({session for shared in dropped for session in shared.asking})
        return [Answer(s, answer.committed, answer.stale, answer.faults) for s in sessions]

    def _lost(self, token: int) -> Iterable[Effect]:
        """Note that a lease has ended without a commit; commits of members do not count."""
        for group in self._groups.values():
            if token in group.batches:
                shared = group.drop(token)
                stale = [Answer(session, (), (token,)) for session in sorted(shared.asking)]
                return [*stale, *map(FlushLost, shared.flushes)]
        return ()

    def _serve(self, member: MemberPlace, passed: list[Effect]) -> None:
        """Send a member the batches that it can take."""
        if not member.group.claimed:  # else an earlier batch may come
            for token, batch in member.waiting()[: max(0, member.window - member.seq)]:
                member.seq = member.sent[token] = member.seq + 1
                passed.append(Send(member.session, member.seq, token, batch))
