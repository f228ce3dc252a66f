"""Commits that an earlier server has acknowledged to trainers: is one of them not in the state?

    ask() ─► Claim ─► worker ─► judged() ─► found: the trainer's commits since count
                                        └─► gone: Rewound, and none of them does

Until the worker has answered, the trainer is given nothing, and its commits wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Acknowledged", "Recalls"]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A commit that an earlier server has acknowledged to a trainer, as a claim tells of it."""

    token: int
    partition: int
    number: int = -1  # there is nothing to claim: whether the commit is known is asked
    segments: bytes = b""


class Recalls:
    """The trainers of one feed that count on such commits."""

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}  # by token: the session
        self.doubted: dict[int, list[tuple[int, Any]]] = {}  # by session: its commits since

    def ask(self, session: int, token: int) -> None:
        """A session counts on this commit."""
        self._asked[token] = session
        self.doubted.setdefault(session, [])

    def waits(self, session: int, token: int, payload: Any) -> bool:
        """Whether a commit of a session has to wait; then it does."""
        waiting = self.doubted.get(session)
        if waiting is None:
            return False
        waiting.append((token, payload))
        return True

    def judged(self, token: int) -> int | None:
        """A worker has said of a commit whether it is there: the session that counts on it."""
        return self._asked.pop(token, None)

    def forsake(self, session: int) -> None:
        """A commit is gone: no other of this session is to count, until it has left."""
        self.doubted[session] = []

    def believe(self, session: int) -> list[tuple[int, Any]]:
        """The commits that have waited, when nothing more is asked of a session: it is believed."""
        if session in self._asked.values():
            return []
        return self.doubted.pop(session, [])
