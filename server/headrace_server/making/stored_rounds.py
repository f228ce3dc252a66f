"""The rounds of a partition that outlive its process.

    dealt     [world, run, next round, [[round, rank], …] that are not done]    with each commit
    members   [run, [[round, rank, indices, segments, places], …]] of the last round

Trainers get a round once it is stored, so a later process gives each rank the same member again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgpack

from headrace_proto.codec import pack

from ..core.round_forming import InStep, MemberRows, RoundMembers
from ..core.stored_state import Change


class StoredRounds:
    """The changes of one partition's rounds."""

    def __init__(self, machine: InStep) -> None:
        self._machine = machine
        self._run = 0
        self._dealt = False  # whether rounds were dealt anew since the last store
        self._newest = -1  # the last round that was stored

    def dealt(self, run: int) -> None:
        """Note that the batches of another run begin."""
        self._run = run
        self._dealt = True
        self._newest = -1

    @property
    def moved(self) -> bool:
        """Whether anything changed since ``changes`` was called last."""
        members = self._machine.members
        return self._dealt or (members is not None and members.moved)

    def changes(self) -> list[Change]:
        """Return the changes since the last call."""
        members = self._machine.members
        self._dealt = False
        if members is None:
            return [Change(meta={"dealt": pack([0, self._run, 0, []])})]
        members.moved = False
        meta = {"dealt": pack([members.world, members.run, members.next_round, self._machine.left])}
        if members.next_round > self._newest and members.newest and not self._machine.ahead:
            self._newest = members.next_round
            meta["members"] = pack([members.run, members.newest_rows()])
        return [Change(meta=meta)]

    def resume(self, meta: Mapping[str, bytes], epoch: int) -> None:
        """Go on with what an earlier process stored; ``epoch``: as for ``RoundMembers``."""
        if "dealt" not in meta:
            return
        world, self._run, next_round, left = msgpack.unpackb(meta["dealt"])
        if not world:
            return
        members = RoundMembers(world, self._run, 0, self._machine.batch_size, epoch)
        members.next_round = self._newest = next_round
        members.again = dict.fromkeys((at, rank) for at, rank in left)
        run, stored = msgpack.unpackb(meta["members"]) if "members" in meta else (-1, [])
        rows = {
            (at, rank): MemberRows.from_plain(plain)
            for at, rank, *plain in stored
            if run == self._run
        }
        self._machine.resume_rounds(members, rows)
