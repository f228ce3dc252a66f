"""Groups of trainers that all get the same batches: a layer over the dispatcher.

    dispatcher ─► Send to the group ─► each member's waiting batches ─► Send to the member
    commit of a member ─┐
    commit of a member ─┴─ all have committed ─► commit of the group ─► Answer ─► all that asked

The dispatcher knows a group as one trainer, whose number is negative.  The group gets nothing new
while a member is missing, and no more than its slowest member takes.  A member that comes back gets
again all batches of the group that it has not committed, in the order in which they were granted.
When no member is left, the group leaves, and its batches go to others.

A trainer that takes a place beside others that have begun waits until these have shown that they
live: a job that is started again as a whole must not join the members of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .dispatch import Dispatcher
from .handover import (
    Answer,
    Batch,
    Effect,
    EpochBegun,
    Finish,
    JoinRefused,
    Returned,
    Rewound,
    Send,
)
from .lease import ANSWERED

__all__ = ["LONGEST_NAME", "MOST_MEMBERS", "Group", "GroupDispatcher", "check_group"]

#: Maximum number of members, and length of a group's name.
MOST_MEMBERS, LONGEST_NAME = 1024, 100
#: Maximum number of trainers that wait for a place; the oldest is forgotten.
_REMEMBERED = 10_000
_OF_A_TRAINER = (Send, Answer, Finish, EpochBegun, Rewound)


def check_group(name: str, members: int) -> None:
    """JoinRefused where a trainer names a group that can not be."""
    if not name and members:
        raise JoinRefused(f"members={members} without group=: give both or neither")
    if len(name) > LONGEST_NAME:
        raise JoinRefused(f"group={name!r:.80} has more than {LONGEST_NAME} characters")
    if name and not 1 <= members <= MOST_MEMBERS:
        raise JoinRefused(f"group={name!r}: members={members} is not 1 … {MOST_MEMBERS}")


@dataclass(slots=True, eq=False)
class Member:
    """A place in a group, with what its trainer has not committed.  Session 0: it is away."""

    nonce: bytes
    session: int = 0
    seen: float = 0.0
    window: int = 0
    seq: int = 0  # number of its last delivery
    knows_end: bool = False
    epoch: int = 0  # the epoch before which no batch comes, as far as it knows
    waiting: dict[int, Batch] = field(default_factory=dict)  # to be sent, by token
    sent: dict[int, int] = field(default_factory=dict)  # by token the number of the delivery

    def wait(self, token: int, batch: Batch) -> None:
        """Let a batch be sent, in the order of tokens."""
        self.sent.pop(token, None)
        self.waiting[token] = batch
        self.waiting = dict(sorted(self.waiting.items()))

    def forget(self, token: int) -> None:
        self.sent.pop(token, None)
        self.waiting.pop(token, None)


@dataclass(slots=True, eq=False)
class GroupBatch:
    """A batch that a group has; one of an earlier server is None until its claim is judged."""

    batch: Batch | None
    done: set[Member] = field(default_factory=set)  # members that have committed it
    asking: set[int] = field(default_factory=set)  # sessions that wait for the answer
    saving: bool = False


@dataclass(slots=True, eq=False)
class Group:
    """One group; ``number`` is that of its session in the dispatcher."""

    name: str
    size: int
    number: int
    rank: int
    world: int
    members: list[Member] = field(default_factory=list)
    batches: dict[int, GroupBatch] = field(default_factory=dict)  # by token
    claimed: set[int] = field(default_factory=set)  # tokens of claims that are not judged
    begun: bool = False  # whether it ever got a batch
    ended: bool = False
    epoch: int = 0

    @property
    def present(self) -> list[Member]:
        return [member for member in self.members if member.session]

    def fault(self, size: int, rank: int, world: int) -> str:
        """Return why a trainer can not be of this group; "" where it can."""
        if size != self.size:
            return f"members={size} differs from {self.size}, that of the others in the group"
        if (rank, world) != (self.rank, self.world):
            ours = f"rank={self.rank} of {self.world}" if self.world else "no rank"
            theirs = f"rank={rank} of {world}" if world else "no rank"
            return f"{theirs} differs from {ours}, that of the others in the group"
        if len(self.present) == size:
            return f"all of its members={size} are there already"
        return ""

    def place_for(self, nonce: bytes) -> Member:
        """Return the place that a trainer takes: its own, else one that is free, else a new one."""
        free = [member for member in self.members if not member.session]
        member = next((one for one in free if one.nonce == nonce), next(iter(free), None))
        if member is None:
            member = Member(nonce)
            self.members.append(member)
        member.nonce = nonce
        member.waiting = {
            token: shared.batch
            for token, shared in sorted(self.batches.items())
            if shared.batch is not None and member not in shared.done
        }
        return member

    @property
    def credits(self) -> int:
        """Number of batches that the group can take now, as its slowest member can."""
        present = self.present
        if len(present) < self.size or self.claimed:
            return 0
        return max(0, min(one.window - one.seq - len(one.waiting) for one in present))


class GroupDispatcher(Dispatcher):
    """The dispatcher of a feed with groups.  It takes the place of one without, at its state."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.__dict__ = dispatcher.__dict__
        self._groups: dict[str, Group] = {}
        self._by_number: dict[int, Group] = {}
        self._member_of: dict[int, tuple[Group, Member]] = {}  # by session
        self._touched: dict[Group, None] = {}  # since effects were taken
        self._told: list[Effect] = []  # to members, beside the dispatcher's effects
        self._asked: dict[bytes, float] = {}  # by nonce: when a trainer asked for a place first

    # Members come and go

    def has_group(self, name: str) -> bool:
        """Whether a member of this group is there."""
        return name in self._groups

    def admits(self, name: str, size: int, nonce: bytes, rank: int, world: int, now: float) -> bool:
        """Whether a trainer can join a group; False where it has to ask again.

        JoinRefused where it differs from members that live, or there are as many as can be.
        """
        group = self._groups.get(name)
        if group is None:
            return True
        fault = group.fault(size, rank, world)
        if not fault and any(one.nonce == nonce for one in group.members if not one.session):
            return True
        asked = self._asked.setdefault(nonce, now)
        if len(self._asked) > _REMEMBERED:
            del self._asked[next(iter(self._asked))]
        if (fault or group.begun) and any(one.seen <= asked for one in group.present):
            return False
        if fault:
            raise JoinRefused(f"group={name!r}: {fault}")
        return True

    def join_group(
        self,
        session: int,
        now: float,
        name: str,
        size: int,
        nonce: bytes,
        rank: int = -1,
        world: int = 0,
        run: int = 0,
    ) -> None:
        """Add a member's session.  JoinRefused where its mode differs from that of the others."""
        group = self._groups.get(name)
        if group is None:
            self.join(-session, now, rank, world, run)
            group = Group(name, size, -session, rank, world)
            self._groups[name] = self._by_number[group.number] = group
        member = group.place_for(nonce)
        member.session, member.seen, member.window, member.seq = session, now, 0, 0
        member.knows_end, member.epoch = False, 0
        self._member_of[session] = group, member
        self._asked.pop(nonce, None)
        self._touched[group] = None

    def leave(self, session: int) -> None:
        of = self._member_of.pop(session, None)
        if of is None:
            super().leave(session)
            return
        group, member = of
        member.session = 0
        member.sent.clear()
        for shared in group.batches.values():
            shared.asking.discard(session)
        if group.present:
            trainer = self._trainers.present[group.number]
            trainer.window = trainer.seq  # the others wait for it
        else:
            del self._groups[group.name], self._by_number[group.number]
            self._touched.pop(group, None)
            super().leave(group.number)

    def seen(self, session: int, now: float) -> bool:
        of = self._member_of.get(session)
        if of is None:
            return super().seen(session, now)
        of[1].seen = now
        return super().seen(of[0].number, now)

    def tick(self, now: float) -> list[int]:
        silent = [session for session in super().tick(now) if session not in self._by_number]
        ttl_s = self._leases.ttl_s
        members = self._member_of.items()
        return silent + [session for session, of in members if of[1].seen + ttl_s <= now]

    # What members take

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
                self._told.append(Send(session, seq, token, batch))
        member.seq = missed[-1][0] if missed else last_seq
        member.knows_end, member.epoch = False, 0
        self._touched[group] = None

    def _send_later(self, group: Group, member: Member, token: int) -> None:
        """Send a batch that a member has not got, or does not have any more, to it again."""
        shared = group.batches[token]
        if shared.batch is not None:
            member.wait(token, shared.batch)
        else:
            member.sent.pop(token)  # it waits once its claim is judged
        self._touched[group] = None

    # Commits

    def commit(self, session: int, tokens: tuple[int, ...]) -> None:
        if session not in self._member_of:
            super().commit(session, tokens)
            return
        for token in tokens:
            self.save(session, token)

    def save(self, session: int, token: int, payload: Any = None) -> None:
        of = self._member_of.get(session)
        if of is None:
            super().save(session, token, payload)
            return
        group, member = of
        shared = group.batches.get(token)
        if shared is None:
            self._answer_late(session, token)
            return
        shared.done.add(member)
        shared.asking.add(session)
        member.forget(token)
        self._commit_if_done(group, token, shared)

    def _commit_if_done(self, group: Group, token: int, shared: GroupBatch) -> None:
        """Commit a batch for the group, once all members have committed it."""
        if len(shared.done) == group.size and shared.batch is not None and not shared.saving:
            shared.saving = True
            super().save(group.number, token)

    def _answer_late(self, session: int, token: int) -> None:
        """Answer a commit of a batch that the group does not have, or has no more."""
        if self._leases.state(token) != ANSWERED:
            self.counts["stale"] += self._leases.is_newly_stale(token)
            self._told.append(Answer(session, (), (token,)))
            return
        fault = self._leases.fault(token)
        answer = Answer(session, (), (), (fault,)) if fault else Answer(session, (token,), ())
        self._told.append(answer)

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
        of = self._member_of.get(session)
        super().recall(session if of is None else of[0].number, commit)

    def _has(self, group: Group, member: Member, token: int) -> None:
        """Note that a member has a batch in hand, or its commit on the way."""
        if member not in group.batches[token].done and token not in member.sent:
            member.waiting.pop(token, None)
            member.sent[token] = 0

    def _share(self, group: Group, token: int, batch: Batch) -> None:
        """Let all members have a batch that the group has got."""
        shared = group.batches.setdefault(token, GroupBatch(batch))
        shared.batch = batch
        for member in group.members:
            if member not in shared.done and token not in member.sent:
                member.wait(token, batch)
        self._touched[group] = None

    def _settle_claims(self, group: Group) -> None:
        """Note which claims of a group were judged."""
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
        effects = super().take_effects()
        told, self._told = self._told, []
        for effect in effects:
            if isinstance(effect, _OF_A_TRAINER) and effect.session < 0:
                of = self._by_number.get(effect.session)  # it may have left
                told += () if of is None else self._shared(of, effect)
            else:
                told.append(effect)
            if isinstance(effect, Returned):
                told += self._lost(effect.token)
        for group in self._touched:
            for member in group.present:
                self._serve(group, member, told)
        self._touched.clear()
        return told

    def _shared(self, group: Group, effect: Effect) -> Iterable[Effect]:
        """Return the effects of one for the group that its members need not wait for."""
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
        tokens = (*answer.committed, *answer.stale, *(fault[0] for fault in answer.faults))
        sessions = sorted({s for token in tokens for s in group.batches[token].asking})
        for token in tokens:
            self._drop(group, token)
        return [Answer(s, answer.committed, answer.stale, answer.faults) for s in sessions]

    def _lost(self, token: int) -> Iterable[Effect]:
        """Note that a lease has ended without a commit; commits of some members do not count."""
        for group in self._groups.values():
            if token in group.batches:
                asking = sorted(group.batches[token].asking)
                self._drop(group, token)
                return [Answer(session, (), (token,)) for session in asking]
        return ()

    def _serve(self, group: Group, member: Member, told: list[Effect]) -> None:
        """Send a member what it can take, and the news that it does not know."""
        if group.epoch > member.epoch:
            member.epoch = group.epoch
            told.append(EpochBegun(member.session, member.epoch))
        while member.waiting and member.window > member.seq:
            token = next(iter(member.waiting))
            batch = member.waiting.pop(token)
            member.seq = member.sent[token] = member.seq + 1
            told.append(Send(member.session, member.seq, token, batch))
        if group.ended and not member.knows_end:
            member.knows_end = True
            told.append(Finish(member.session))

    # Queries

    def exhausted(self, session: int, last_seq: int) -> bool:
        of = self._member_of.get(session)
        if of is None:
            return super().exhausted(session, last_seq)
        group, member = of
        trainer = self._trainers.present[group.number]
        if member.waiting or group.claimed or not self._supply.is_exhausted(trainer):
            return False
        return all(seq <= last_seq for seq in member.sent.values())

    def holds(self, session: int, token: int) -> bool:
        of = self._member_of.get(session)
        return super().holds(session, token) if of is None else token in of[1].sent

    def holder(self, partition: int, number: int) -> tuple[int, float] | None:
        found = super().holder(partition, number)
        group = None if found is None else self._by_number.get(found[0])
        if found is None or group is None:
            return found
        return group.present[0].session, found[1]

    def standing_of(self, session: int) -> dict[str, int]:
        of = self._member_of.get(session)
        if of is None:
            return super().standing_of(session)
        group, member = of
        window = max(0, member.window - member.seq)
        return {"rank": group.rank, "window": window, "leases": len(member.sent)}

    def named(self, session: int) -> str:
        if session in self._by_number:
            return f"group {self._by_number[session].name!r}"
        of = self._member_of.get(session)
        name = super().named(session)
        return name if of is None else f"{name} of group {of[0].name!r}"

    def describe(self, now: float) -> str:
        texts = []
        for group in self._groups.values():
            there = len(group.present)
            if there < group.size:
                texts.append(f"{there} of {group.size} members of group {group.name!r} are there")
        return "; ".join([*texts, super().describe(now)])
