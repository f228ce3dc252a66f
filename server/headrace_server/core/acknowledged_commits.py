"""Commits that an earlier server acknowledged: the state must contain each of them.

    ask() ─► Claim ─► worker ─► judged() ─► found: the trainer's commits since count
                                        └─► gone: Rewound, and none of them counts

Until the partition has answered, the trainer gets no batch, and its commits wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A commit that an earlier server acknowledged, in the form of a claim."""

    token: int
    partition: int
    number: int = -1  # it claims no batch, but asks whether the commit is known
    segments: bytes = b""


class Recalls:
    """The trainers of one feed that rely on such commits."""

    def __init__(self) -> None:
        self._asked: set[tuple[int, int]] = set()  # tokens, and sessions that rely on them
        self.doubted: dict[int, list[tuple[int, Any]]] = {}  # by session: its commits since

    def ask(self, session: int, token: int) -> None:
        """Note that a session relies on a commit."""
        self._asked.add((token, session))
        self.doubted.setdefault(session, [])

    def waits(self, session: int, token: int, payload: Any) -> bool:
        """Hold back a commit of a session while a question is open; return whether it waits."""
        waiting = self.doubted.get(session)
        if waiting is None:
            return False
        waiting.append((token, payload))
        return True

    def judged(self, token: int) -> list[int]:
        """Return the sessions that rely on a commit which a partition has judged."""
        asked = sorted(pair for pair in self._asked if pair[0] == token)
        self._asked.difference_update(asked)
        return [session for _, session in asked]

    def forsake(self, session: int) -> None:
        """Ignore all commits of a session until it has left: one that it relies on is gone."""
        self.doubted[session] = []

    def believe(self, session: int) -> list[tuple[int, Any]]:
        """Return the commits that were held back, once no question about the session is open."""
        if any(of == session for _, of in self._asked):
            return []
        return self.doubted.pop(session, [])

    def leave(self, session: int) -> None:
        """Forget a session, with all its commits."""
        self._asked = {pair for pair in self._asked if pair[1] != session}
        self.doubted.pop(session, None)
