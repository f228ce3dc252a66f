"""Saved states on their way, kept until they are answered: part of the session machine.

    save ──► unsaid ──► Step(saves) + block ──► Outcome          forgotten
                ▲             │
                └─────────────┘ a reconnection: all that is not answered is said again

Blocks are only referenced here; their maker may reuse them when this module and the socket have
released them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace_proto.messages import Save, Step

#: Maximum number of saves without a block in one message: a header is bounded.
_PER_MESSAGE = 1000


@dataclass(slots=True)
class Uploads:
    """Unanswered saves."""

    _saves: dict[int, tuple[list[Any], Any]] = field(default_factory=dict)
    unsaid: list[int] = field(default_factory=list)  # saves that were not sent on this connection

    @property
    def settled(self) -> bool:
        """Whether every save was answered."""
        return not self._saves

    def __len__(self) -> int:
        """Return the number of unanswered saves."""
        return len(self._saves)

    def save(self, token: int, columns: list[Any], block: Any) -> None:
        """Add the states of a batch; without a block they stay with the trainer."""
        self._saves[token] = (columns, block)
        self.unsaid.append(token)

    def answered(self, token: int) -> bool:
        """Forget an answered save; return whether an answer was due."""
        return self._saves.pop(token, None) is not None

    def hand_over(self, token: int, to: Uploads) -> bool:
        """Move an unanswered save to another session; return whether there is one."""
        if token in self._saves:
            to._saves[token] = self._saves[token]
        return token in self._saves

    def reopened(self) -> None:
        """Note that the connection is open again, in the same session or in another."""
        self.unsaid = list(self._saves)

    # Outgoing messages

    def saves_to_say(self) -> list[tuple[Save, ...]]:
        """Return lists of saves, one for each message: at most one save with bytes in each."""
        if not self.unsaid:
            return []
        unsaid, self.unsaid = self.unsaid, []
        messages: list[tuple[Save, ...]] = []
        light = []
        for token in unsaid:
            if token not in self._saves:  # sent before a reconnection, and answered after all
                continue
            columns, block = self._saves[token]
            if block is None:
                light.append(Save(token))
            else:
                messages.append((Save(token, 1, columns),))
        if light:
            parts = range(0, len(light), _PER_MESSAGE)
            messages.extend(tuple(light[i : i + _PER_MESSAGE]) for i in parts)
        return messages

    def frames_of(self, step: Step) -> list[Any]:
        """Return the frames that follow the header of a message that is being sent."""
        return [self._saves[save.token][1] for save in step.saves if save.frame]
