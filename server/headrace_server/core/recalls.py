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
        self._asked: dict[int, int] = {}  # session by token
        self.doubted: dict[int, list[tuple[int, Any]]] = {}  # by session: its commits since

    def ask(self, session: int, token: int) -> None:
        """Note that a session relies on a commit."""
        self._asked[token] = session
        self.doubted.setdefault(session, [])

    def waits(self, session: int, token: int, payload: Any) -> bool:
        """Hold back a commit of a session while a question is open; return whether it waits."""
        waiting = self.doubted.get(session)
        if waiting is None:
            return False
        waiting.append((token, payload))
        return True

    def judged(self, token: int) -> int | None:
        """Return the session that relies on a commit which a partition has judged."""
        return self._asked.pop(token, None)

    def forsake(self, session: int) -> None:
        """Ignore all commits of a session until it has left: one that it relies on is gone."""
        self.doubted[session] = []

    def believe(self, session: int) -> list[tuple[int, Any]]:
        """Return the commits that were held back, once no question about the session is open."""
        if session in self._asked.values():
            return []
        return self.doubted.pop(session, [])
