"""States on their way to the server, kept until they are answered: part of the session machine.

    save ──► unsaid ──► Step(saves) + block ──► Outcome          forgotten
    flush ─► unsaid ──► Flush … Flush + blocks ──► Flushed       forgotten
                ▲             │
                └─────────────┘ a reconnection: all that is not answered is said again

Blocks are only held here; whoever filled them may use them again when this and the socket have
let them go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace_proto.messages import Flush, Flushed, Save, Step

__all__ = ["StatesPart", "Uploads"]

#: Saves without a block in one message: a header is bounded.
_PER_MESSAGE = 1000

_LANES_LOST = (
    "the states of lanes were not handed over: the session was lost meanwhile, and with it the "
    "lanes.  Their sequences go on from the states that the server has"
)


@dataclass(frozen=True, slots=True)
class StatesPart:
    """States of some rows: where each lies in a block, and the block."""

    rows: tuple[int, ...]
    columns: list[list[Any]]
    block: Any


@dataclass(slots=True)
class _Flushing:
    request: int
    token: int
    parts: list[StatesPart]
    said: bool = False


@dataclass(slots=True)
class Uploads:
    """Saves and the flush that are not answered."""

    flushed: Flushed | None = None  # the answer to the last flush
    _saves: dict[int, tuple[list[Any], Any]] = field(default_factory=dict)
    _unsaid: list[int] = field(default_factory=list)
    _flush: _Flushing | None = None

    @property
    def settled(self) -> bool:
        """Whether every save was answered."""
        return not self._saves

    @property
    def due(self) -> bool:
        """Whether there is something to say."""
        return bool(self._unsaid) or (self._flush is not None and not self._flush.said)

    def save(self, token: int, columns: list[Any], block: Any) -> None:
        """The states of a batch; without a block they stay with the trainer."""
        self._saves[token] = (columns, block)
        self._unsaid.append(token)

    def flush(self, request: int, token: int, parts: list[StatesPart]) -> None:
        self._flush = _Flushing(request, token, parts)
        self.flushed = None

    def answered(self, token: int) -> bool:
        """Whether the answer to a save was still owed."""
        return self._saves.pop(token, None) is not None

    def on_flushed(self, message: Flushed) -> None:
        if self._flush is not None and message.request == self._flush.request:
            self._flush, self.flushed = None, message

    def reopened(self, session: int, anew: bool) -> None:
        """The connection stands again.  In a new session nobody's lanes are this trainer's."""
        self._unsaid = list(self._saves)
        if self._flush is None:
            return
        self._flush.said = False
        if anew:
            self.on_flushed(Flushed(session, self._flush.request, "stale", _LANES_LOST))

    # What is to be said

    def saves_to_say(self) -> list[tuple[Save, ...]]:
        """Saves, by message: with bytes there is one to each, the others go along."""
        unsaid, self._unsaid = self._unsaid, []
        light, heavy = [], []
        for token in unsaid:
            columns, block = self._saves[token]
            if block is None:
                light.append(Save(token))
            else:
                heavy.append((Save(token, 1, columns),))
        chunks = [tuple(light[i : i + _PER_MESSAGE]) for i in range(0, len(light), _PER_MESSAGE)]
        return [*heavy, *chunks]

    def flushes_to_say(self, session: int) -> list[Flush]:
        flush = self._flush
        if flush is None or flush.said:
            return []
        flush.said = True
        last = len(flush.parts) - 1
        return [
            Flush(session, flush.request, flush.token, part.rows, part.columns, i < last)
            for i, part in enumerate(flush.parts)
        ]

    def frames_of(self, message: Any) -> list[Any]:
        """What goes after the header of a message that is being said."""
        if isinstance(message, Step):
            return [self._saves[save.token][1] for save in message.saves if save.frame]
        if isinstance(message, Flush) and self._flush is not None:
            return [part.block for part in self._flush.parts if part.rows == message.rows]
        return []
