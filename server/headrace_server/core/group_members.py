"""The trainers of groups at a dispatcher: which are present, and the progress of each.

    Hello ─► admits() ─► True   a place is free: join_group()
                      ─► False  ask again, for the members may all be dead
                      ─► JoinRefused

To the dispatcher a group is one trainer with a negative number.  While a member is missing, the
others wait.  When no member is left, the group leaves, and its batches go to others.

A trainer that takes a place beside others that have begun waits until these have shown that they
live: a job that is restarted as a whole must not join the members of the earlier one.  Where
states stay with trainers the new trainer has none, so the lanes of all members restart from the
states that were flushed.
"""

from __future__ import annotations

from .dispatch import Dispatcher
from .group_places import Group, MemberPlace
from .handover import Batch, JoinRefused
from .sequences import AT_TRAINER

#: Maximum number of waiting trainers that are remembered; the oldest is forgotten.
_REMEMBERED = 10_000


class GroupMembers(Dispatcher):
    """The members of all groups of a feed, as a layer of its dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.__dict__ = dispatcher.__dict__
        self._groups: dict[str, Group] = {}
        self._by_number: dict[int, Group] = {}
        self._member_of: dict[int, tuple[Group, MemberPlace]] = {}  # by session
        self._touched: dict[Group, None] = {}  # groups that changed since effects were taken
        # by nonce: time of a trainer's first request for a place
        self._asked: dict[bytes, float] = {}

    # Members come and go

    def has_group(self, name: str) -> bool:
        """Return whether a member of this group is present."""
        return name in self._groups

    def admits(self, name: str, size: int, nonce: bytes, rank: int, world: int, now: float) -> bool:
        """Return whether a trainer can join a group; False: it has to ask again.

        JoinRefused where it differs from living members, or where the group is complete.
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
        elif group.begun and self._supply.states == AT_TRAINER:
            super().leave(group.number)
            self._trainers.join(group.number, now, rank)
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
            trainer.window = trainer.seq  # the other members wait for it
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

    # Queries

    def _trainer_of(self, session: int) -> int:
        """Return the session that the dispatcher knows: for a member that of its group."""
        of = self._member_of.get(session)
        return session if of is None else of[0].number

    def leased_batch(self, session: int, token: int) -> Batch | None:
        return super().leased_batch(self._trainer_of(session), token)

    def last_saved(self, session: int, token: int) -> Batch | None:
        of = self._member_of.get(session)
        shared = None if of is None else of[0].batches.get(token)
        if of is not None and shared is not None and of[1] in shared.done:
            return shared.batch
        return super().last_saved(self._trainer_of(session), token)

    def lost_lanes(self, session: int, token: int) -> bool:
        return super().lost_lanes(self._trainer_of(session), token)

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
