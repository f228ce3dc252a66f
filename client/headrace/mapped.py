"""Batches in shared memory that this trainer may be reading: part of the session machine.

    delivered ──► mapped ── the last view is gone ──► released ──► said with the next Step
                     │
                     └── heartbeat: all that is mapped, so that the server notices what got lost

Any thread may release a block while it holds any lock: this takes none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: Released batches in one message: any number of views may go at once, a header is bounded.
_PER_MESSAGE = 1000
#: Mapped batches that a heartbeat lists; a trainer that keeps more of them does without.
_MAX_MAPPED = 4000


@dataclass(slots=True)
class MappedBatches:
    """Batches whose memory is read, and those of which it is not yet said that nobody does."""

    released: deque[int] = field(default_factory=deque)
    used: bool = False  # batches of this session come through shared memory
    _tokens: set[int] = field(default_factory=set)

    def add(self, token: int) -> None:
        """A batch was delivered by reference."""
        self.used = True
        self._tokens.add(token)

    def release(self, token: int) -> None:
        """Nobody reads a batch any more.  Safe in any thread."""
        self._tokens.discard(token)
        self.released.append(token)

    def to_say(self) -> tuple[int, ...]:
        """Released batches for one message; there may be more."""
        tokens: list[int] = []
        while self.released and len(tokens) < _PER_MESSAGE:
            tokens.append(self.released.popleft())
        return tuple(tokens)

    def listed(self) -> tuple[int, ...] | None:
        """Return the tokens that a heartbeat lists; None where it lists none."""
        if not self.used or len(self._tokens) > _MAX_MAPPED:
            return None
        return tuple(sorted(self._tokens))
