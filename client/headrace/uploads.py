"""Saved states on their way, kept until they are answered: part of the session machine.

    save ──► unsaid ──► Step(saves) + block ──► Outcome          forgotten
                ▲             │
                └─────────────┘ a reconnection: all that is not answered is sent again

Blocks and state buffers are only referenced here; their maker may reuse them when this module and
the socket have released them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace_proto.messages import Save, Step
from headrace_proto.state_buffers import FIRST_BUFFER

from .free_buffers import StateBuffer

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
        self.unsaid.append(token)  # first: Ctrl-C may come between the two
        self._saves[token] = (columns, block)

    def __contains__(self, token: int) -> bool:
        return token in self._saves

    def answered(self, token: int) -> None:
        """Forget an answered save."""
        self._saves.pop(token, None)

    def hand_over(self, token: int, to: Uploads) -> bool:
        """Move an unanswered save to another session; return whether there is one."""
        if token in self._saves:
            to._saves[token] = self._saves[token]
        return token in self._saves

    def reopened(self) -> None:
        """Note that the connection is open again, in the same session or in another."""
        self.unsaid = list(self._saves)

    # Outgoing messages

    def saves_to_say(self, buffers: Any = None) -> list[tuple[Save, ...]]:
        """Return lists of saves, one for each message: at most one save with a block in each.

        ``buffers``: the state buffers of this session.  Blocks in others go as bytes.
        """
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
                shared = type(block) is StateBuffer and block.owner is buffers
                frame = FIRST_BUFFER + block.number if shared else 1
                messages.append((Save(token, frame, columns),))
        if light:
            parts = range(0, len(light), _PER_MESSAGE)
            messages.extend(tuple(light[i : i + _PER_MESSAGE]) for i in parts)
        return messages

    def frames_of(self, step: Step) -> list[Any]:
        """Return the frames that follow the header of a message that is being sent."""
        frames: list[Any] = []
        for save in step.saves:
            if 0 < save.frame < FIRST_BUFFER:
                block = self._saves[save.token][1]
                # A copy, since a buffer is used again though a socket may still send it.
                frames.append(block.array.tobytes() if type(block) is StateBuffer else block)
        return frames
