"""Saved states on their way, kept until they are answered: part of the session machine.

    save ──► unsaid ──► Step(saves) + block ──► Outcome          forgotten
                ▲             │
                └─────────────┘ a reconnection: all that is not answered is said again

Blocks are only held here; whoever filled them may use them again when this and the socket have
let them go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace_proto.messages import Save, Step

#: Saves without a block in one message: a header is bounded.
_PER_MESSAGE = 1000


@dataclass(slots=True)
class Uploads:
    """Saves that are not answered."""

    _saves: dict[int, tuple[list[Any], Any]] = field(default_factory=dict)
    unsaid: list[int] = field(default_factory=list)  # since the connection stands

    @property
    def settled(self) -> bool:
        """Whether every save was answered."""
        return not self._saves

    def __len__(self) -> int:
        """Saves that were not answered."""
        return len(self._saves)

    def save(self, token: int, columns: list[Any], block: Any) -> None:
        """The states of a batch; without a block they stay with the trainer."""
        self._saves[token] = (columns, block)
        self.unsaid.append(token)

    def answered(self, token: int) -> bool:
        """Whether the answer to a save was still owed."""
        return self._saves.pop(token, None) is not None

    def hand_over(self, token: int, to: Uploads) -> bool:
        """A save that is not answered is another session's from here on.  Whether there is one."""
        if token in self._saves:
            to._saves[token] = self._saves[token]
        return token in self._saves

    def reopened(self) -> None:
        """The connection stands again, in the same session or in another."""
        self.unsaid = list(self._saves)

    # Outgoing messages

    def saves_to_say(self) -> list[tuple[Save, ...]]:
        """Saves, by message: with bytes there is one to each, the others go along."""
        if not self.unsaid:
            return []
        unsaid, self.unsaid = self.unsaid, []
        messages: list[tuple[Save, ...]] = []
        light = []
        for token in unsaid:
            if token not in self._saves:  # said before a reconnection, and heard after all
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
