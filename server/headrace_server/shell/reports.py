"""What the children of a server have told, until somebody asks.

    router ─► ready, open, idle, over, answer ─┐
    worker ─► dying ───────────────────────────┴► hear() ─► [ the last of each kind ]

These are the words of one router and its workers.  Nothing here waits or locks: whoever hears and
asks from several threads holds a lock, and wakes those who wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_proto.errors import HeadraceError, from_code

__all__ = ["Reports"]


class Reports:
    """The last words of each kind."""

    def __init__(self) -> None:
        self.ready = False  # whether the router listens
        self.addresses: list[str] = []  # on which it does
        self.open = False  # whether the workers have opened the sources of all feeds
        self.idle = False  # whether all that was out has come back after a pause
        self.over: dict[str, tuple[str, str]] = {}  # feeds that ended: error code, text
        self._awaited: dict[int, dict[str, Any] | None] = {}  # requests, and their answers
        self._dropped: dict[str, dict[str, int]] = {}
        self._dying: dict[str, str] = {}

    def hear(self, child: str, event: Mapping[str, Any]) -> None:
        """A child of this name says something."""
        kind = event.get("event")
        if kind == "dying":
            self._dying[child] = str(event["text"])
        elif kind == "ready" and child == "router":
            self.addresses = list(event["addresses"])
            self.ready = True
        elif kind == "open":
            self.open = True
        elif kind == "idle":
            self.idle = True
        elif kind == "answer" and event["request"] in self._awaited:
            self._awaited[event["request"]] = dict(event)
        elif kind == "over":
            self.over[event["feed"]] = (event["code"], event["text"])
            self._dropped[event["feed"]] = dict(event["dropped"])

    def begin_anew(self, feed: str) -> None:
        """A feed begins again: it is over no more."""
        self.over.pop(feed, None)
        self._dropped.pop(feed, None)

    def expect(self, request: int) -> None:
        """Somebody waits for the answer to this request."""
        self._awaited[request] = None

    def answered(self, request: int) -> bool:
        """Whether it is there."""
        return self._awaited.get(request) is not None

    def take_answer(self, request: int) -> dict[str, Any] | None:
        """It, if it is there; nobody waits for it any more."""
        return self._awaited.pop(request, None)

    def take_dying(self, child: str) -> str | None:
        """What a child said before its end."""
        return self._dying.pop(child, None)

    def failed_early(self) -> HeadraceError | None:
        """A feed that can not even be opened.  What is wrong with data is told to trainers."""
        for code, text in self.over.values():
            if code not in ("", "data"):
                return from_code(code, text)
        return None

    def outcome(self) -> dict[str, tuple[str, str, dict[str, int]]]:
        """Of each feed that is over: error code (empty = well), text, rows dropped by reason."""
        return {feed: (*end, self._dropped[feed]) for feed, end in self.over.items()}
