"""Commits that wait to be stored: a trainer is answered when its partition has stored one.

    begin() ─► Save ─► worker ─► end() ─► answer()
      again() ─┘ nothing more: the trainer is answered along

A commit that comes again is answered as the first one was, and adds nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from .handover import Answer, Batch, Save

__all__ = ["Saves", "Saving"]

#: Commits that could not be stored, and tokens that were stale: so many are remembered, for when
#: they come again.
_REMEMBERED = 65_536


@dataclass(slots=True)
class Saving:
    """A commit that its worker has not answered."""

    token: int
    batch: Batch
    session: int  # that has committed it …
    sessions: set[int]  # … and those that are answered


class Saves:
    """The commits of one feed that are not answered, and those that were refused."""

    def __init__(self) -> None:
        self._by_token: dict[int, Saving] = {}
        self._by_order: dict[tuple[int, int], Saving] = {}  # by number and partition
        self.unkept: dict[int, int] = {}  # by session: how many
        self._faults: OrderedDict[int, tuple[int, str, str]] = OrderedDict()  # by token
        self._stale: OrderedDict[int, None] = OrderedDict()  # tokens that were counted as such

    def __len__(self) -> int:
        return len(self._by_token)

    def __contains__(self, token: int) -> bool:
        return token in self._by_token

    def begin(self, token: int, batch: Batch, session: int, payload: Any) -> Save:
        """A commit counts, and is to be stored."""
        saving = Saving(token, batch, session, {session})
        self.unkept[session] = self.unkept.get(session, 0) + 1
        self._by_order[batch.order] = self._by_token[token] = saving
        return Save(batch, payload, token)

    def again(self, token: int, session: int) -> bool:
        """Whether a commit that is said again is not stored yet; it is answered here, too."""
        saving = self._by_token.get(token)
        if saving is None:
            return False
        saving.sessions.add(session)
        return True

    def end(self, partition: int, number: int, code: str, text: str) -> Saving | None:
        """A worker has stored the commit of a batch, or says why it has not."""
        saving = self._by_order.pop((number, partition), None)
        if saving is None:
            return None
        token, session = saving.token, saving.session
        del self._by_token[token]
        left = self.unkept.pop(session) - 1
        if left:
            self.unkept[session] = left
        if code:
            self._faults[token] = token, code, text
            if len(self._faults) > _REMEMBERED:
                self._faults.popitem(last=False)
        return saving

    def answer(self, session: int, token: int) -> Answer:
        """The answer to a commit of which the worker has spoken."""
        fault = self._faults.get(token)
        return Answer(session, (), (), (fault,)) if fault else Answer(session, (token,), ())

    def is_newly_stale(self, token: int) -> bool:
        """Whether a commit that came too late is to be counted: once however often it is said."""
        if token in self._stale:
            return False
        self._stale[token] = None
        if len(self._stale) > _REMEMBERED:
            self._stale.popitem(last=False)
        return True
