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

from headrace_proto.messages import Hello

from .admitted_examples import AT_TRAINER
from .bounded_map import BoundedMap
from .dispatch import Dispatcher
from .dispatch_effects import Batch, JoinRefused
from .dispatch_state import NOTHING_LEFT
from .group_state import Group, MemberPlace
from .trainers import LATE_S, MAX_WAITING


class GroupMembers(Dispatcher):
    """The members of all groups of a feed, as a layer of its dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        vars(self).update(vars(dispatcher))  # all its parts; it is not used any more
        self._groups: dict[int, Group] = {}  # by the number of their sessions
        self._member_of: dict[int, MemberPlace] = {}  # by session
        self._touched: dict[Group, None] = {}  # groups that changed since effects were taken
        # by nonce: time of a trainer's first request for a place
        self._asked: BoundedMap[bytes, float] = BoundedMap(MAX_WAITING)

    # Members come and go

    def group_of(self, name: str) -> Group | None:
        """Return the group of this name, if a member of it is there."""
        return next((group for group in self._groups.values() if group.name == name), None)

    def admits(self, hello: Hello, now: float) -> bool:
        """Return whether a trainer can join its group; False: it has to ask again.

        JoinRefused where it differs from living members, or where the group is complete.
        """
        group = self.group_of(hello.group)
        if group is None:
            return True
        fault = group.fault(hello)
        if not fault and any(one.nonce == hello.nonce for one in group.members if not one.session):
            return True
        asked = self._asked.first(hello.nonce, now) + LATE_S
        if (fault or group.begun) and any(one.seen <= asked for one in group.present):
            return False
        if fault:
            raise JoinRefused(f"group={hello.group!r}: {fault}")
        return True

    def join_group(self, session: int, hello: Hello, now: float, run: int = 0) -> None:
        """Add a member's session.  JoinRefused where its mode differs from that of the others."""
        rank, world = hello.rank, hello.world_size
        group = self.group_of(hello.group)
        if group is None:
            self.join(-session, now, rank, world, run)
            group = Group(hello.group, hello.members, -session, rank, world)
            self._groups[-session] = group
        elif group.begun and self._supply.states == AT_TRAINER:
            super().leave(group.number)
            self._trainers.join(group.number, now, rank)
        member = group.place_for(hello.nonce)
        member.session, member.seen, member.window, member.seq = session, now, 0, 0
        self._member_of[session] = member
        self._tell_again(group)
        self._asked.pop(hello.nonce, None)
        self._touched[group] = None

    def _tell_again(self, group: Group) -> None:
        """Send the notices to a group again, since a member has not got them."""
        self._trainers.present[group.number].knows_nothing()
        self._changed = True

    def leave(self, session: int) -> None:
        member = self._member_of.pop(session, None)
        if member is None:
            super().leave(session)
            return
        group = member.group
        member.session = 0
        member.sent.clear()
        for shared in group.batches.values():
            shared.asking.discard(session)
        if group.present:
            trainer = self._trainers.present[group.number]
            trainer.window = trainer.seq  # the other members wait for it
        else:
            del self._groups[group.number]
            self._touched.pop(group, None)
            super().leave(group.number)

    def seen(self, session: int, now: float) -> bool:
        member = self._member_of.get(session)
        if member is not None:
            member.seen = now
        return super().seen(self._trainer_of(session), now)

    def tick(self, now: float) -> list[int]:
        silent = [session for session in super().tick(now) if session not in self._groups]
        before = now - self._leases.ttl_s
        return silent + [of for of, member in self._member_of.items() if member.seen <= before]

    # Queries

    def _trainer_of(self, session: int) -> int:
        """Return the session that the dispatcher knows: for a member that of its group."""
        member = self._member_of.get(session)
        return session if member is None else member.group.number

    def leased_batch(self, session: int, token: int) -> Batch | None:
        return super().leased_batch(self._trainer_of(session), token)

    def last_saved(self, session: int, token: int) -> Batch | None:
        member = self._member_of.get(session)
        shared = None if member is None else member.group.batches.get(token)
        if shared is not None and member in shared.done:
            return shared.batch
        return super().last_saved(self._trainer_of(session), token)

    def lost_lanes(self, session: int, token: int) -> bool:
        return super().lost_lanes(self._trainer_of(session), token)

    def exhausted(self, session: int, last_seq: int) -> bool:
        member = self._member_of.get(session)
        if member is None:
            return super().exhausted(session, last_seq)
        trainer = self._trainers.present[member.group.number]
        if member.waiting() or member.group.claimed or not self._supply.is_exhausted(trainer):
            return False
        return all(seq <= last_seq for seq in member.sent.values())

    def holds(self, session: int, token: int) -> bool:
        member = self._member_of.get(session)
        return super().holds(session, token) if member is None else token in member.sent

    def holder(self, partition: int, number: int) -> tuple[int, float] | None:
        found = super().holder(partition, number)
        group = None if found is None else self._groups.get(found[0])
        if found is None or group is None:
            return found
        return group.present[0].session, found[1]

    def standing_of(self, session: int) -> dict[str, int]:
        member = self._member_of.get(session)
        if member is None:
            return super().standing_of(session)
        window = max(0, member.window - member.seq)
        return {"rank": member.group.rank, "window": window, "leases": len(member.sent)}

    def named(self, session: int) -> str:
        if session in self._groups:
            return f"group {self._groups[session].name!r}"
        member = self._member_of.get(session)
        name = super().named(session)
        return name if member is None else f"{name} of group {member.group.name!r}"

    def describe(self, now: float) -> str:
        texts = []
        for group in self._groups.values():
            there = len(group.present)
            if there < group.size:
                texts.append(f"{there} of {group.size} members of group {group.name!r} are there")
        reason = super().describe(now)
        return "; ".join(texts if texts and reason == NOTHING_LEFT else [*texts, reason])
