"""Groups of trainers that all get the same batches: the places in a group, and their commits.

    Group ─┬─ MemberPlace: the batches that wait for its trainer, and those that it was sent
           ├─ MemberPlace …
           └─ GroupBatch: which members have committed it, and who waits for the answer

A place outlives its trainer: the next one that takes it gets again all batches of the group that
are not committed in this place, in the order in which they were granted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace_proto.messages import Following, Hello

from .dispatch_effects import Batch, JoinRefused

#: Maximum number of members, and length of a group's name.
MOST_MEMBERS, LONGEST_NAME = 1024, 100


def check_group(name: str, members: int) -> None:
    """Raise JoinRefused where a trainer names an impossible group."""
    if not name and members:
        raise JoinRefused(f"members={members} without group=: give both or neither")
    if len(name) > LONGEST_NAME:
        raise JoinRefused(f"group={name!r:.80} has more than {LONGEST_NAME} characters")
    if name and not 1 <= members <= MOST_MEMBERS:
        raise JoinRefused(f"group={name!r}: members={members} is not 1 … {MOST_MEMBERS}")


@dataclass(slots=True, eq=False)
class GroupBatch:
    """A batch of a group; one of an earlier server is None until its claim is judged."""

    batch: Batch | None
    done: set[MemberPlace] = field(default_factory=set)  # members that have committed it
    asking: set[int] = field(default_factory=set)  # sessions that wait for the answer
    payload: Any = None  # from the last commit of a member: for segments the states
    flushes: list[Any] = field(default_factory=list)  # flushed states of lanes after this batch
    saving: bool = False


@dataclass(slots=True, eq=False)
class MemberPlace:
    """A place in a group.  Session 0: its trainer is away."""

    group: Group
    nonce: bytes
    session: int = 0
    seen: float = 0.0
    window: int = 0
    seq: int = 0  # number of the last delivery
    sent: dict[int, int] = field(default_factory=dict)  # by token: number of the delivery
    behind: bool = False  # was told of its own next round, which is before that of the group

    def waiting(self) -> list[tuple[int, Batch]]:
        """Return token and batch of all that are to be sent, in the order of tokens."""
        return [
            (token, shared.batch)
            for token, shared in sorted(self.group.batches.items())
            if shared.batch is not None and self not in shared.done and token not in self.sent
        ]

    def has_after(self, token: int) -> bool:
        """Return whether its trainer has had a later batch of the same partition, or will."""
        batches = self.group.batches
        of = batches[token].batch
        return any(
            later > token and (later in self.sent or self in shared.done)
            for later, shared in batches.items()
            if of is not None
            and shared.batch is not None
            and shared.batch.partition == of.partition
        )

    def announce(self, of_group: Following) -> Following:
        """Return the notice of which round its next batch is; the group may have had that one."""
        place = of_group.number, of_group.partition
        shared = self.group.batches.values()
        mine = [one.batch.round_name for one in shared if one.batch and self not in one.done]
        first = min([place, *mine])
        self.behind = first != place
        return Following(self.session, *first)

    @property
    def credits(self) -> int:
        """Number of further batches that the member can take."""
        return self.window - self.seq - len(self.waiting())

    def has(self, token: int) -> None:
        """Note that its trainer has a batch in hand, or the commit of it on the way."""
        if self not in self.group.batches[token].done:
            self.sent.setdefault(token, 0)


@dataclass(slots=True, eq=False)
class Group:
    """One group; ``number`` is that of its session in the dispatcher."""

    name: str
    size: int
    number: int
    rank: int
    world: int
    members: list[MemberPlace] = field(default_factory=list)
    batches: dict[int, GroupBatch] = field(default_factory=dict)  # by token
    claimed: set[int] = field(default_factory=set)  # tokens of claims that are not judged
    begun: bool = False  # whether it ever got a batch

    @property
    def present(self) -> list[MemberPlace]:
        return [member for member in self.members if member.session]

    def fault(self, hello: Hello) -> str:
        """Return why a trainer can not join this group; "" where it can."""
        size, rank, world = hello.members, hello.rank, hello.world_size
        if size != self.size:
            return f"members={size} differs from {self.size}, that of the others in the group"
        if (rank, world) != (self.rank, self.world):
            ours = f"rank={self.rank} of {self.world}" if self.world else "no rank"
            theirs = f"rank={rank} of {world}" if world else "no rank"
            return f"{theirs} differs from {ours}, that of the others in the group"
        if len(self.present) == size:
            return f"all of its members={size} are there already"
        return ""

    def place_for(self, nonce: bytes) -> MemberPlace:
        """Return the place for a trainer: its own, else a free one, else a new one."""
        free = [member for member in self.members if not member.session]
        member = next((one for one in free if one.nonce == nonce), next(iter(free), None))
        if member is None:
            member = MemberPlace(self, nonce)
            self.members.append(member)
        member.nonce = nonce
        return member

    @property
    def credits(self) -> int:
        """Number of batches that the group can take now, bounded by its slowest member."""
        present = self.present
        if len(present) < self.size or self.claimed:
            return 0
        return max(0, min(one.credits for one in present))

    def drop(self, token: int) -> GroupBatch:
        """Forget and return a batch that the group does not have any more."""
        for member in self.members:
            member.sent.pop(token, None)
        return self.batches.pop(token)
