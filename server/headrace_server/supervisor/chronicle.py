"""What went wrong lately, for people: the last events of a server, with their time.

note("worker died", its last words) ─► [ the last 50 ] ─► told()
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

__all__ = ["Chronicle"]

_MOST = 50
_LONGEST_TEXT = 4000


class Chronicle:
    """Of one server; it takes a wall clock, for it is read beside other logs."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=_MOST)

    def note(self, kind: str, text: str) -> None:
        """Something went wrong."""
        self._events.append({"at": time.time(), "kind": kind, "text": text[:_LONGEST_TEXT]})

    def told(self) -> list[dict[str, Any]]:
        """The newest first."""
        return list(reversed(self._events))
