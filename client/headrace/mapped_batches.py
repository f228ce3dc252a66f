"""Batches in shared memory that this trainer may be reading: part of the session machine.

    delivered ──► mapped ── the last view is gone ──► released ──► said with the next Step
                     │
                     └── heartbeat: all that is mapped, so that the server notices what got lost

Any thread may release a block while it holds any lock: this takes none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: Maximum released batches in one message: any number may go at once, a header is bounded.
_PER_MESSAGE = 1000
#: Maximum mapped batches that a heartbeat lists; with more of them it lists none.
_MAX_MAPPED = 4000


@dataclass(slots=True)
class MappedBatches:
    """Batches whose memory is read, and released ones that were not reported yet."""

    released: deque[int] = field(default_factory=deque)
    used: bool = False  # batches of this session come through shared memory
    _tokens: set[int] = field(default_factory=set)

    def add(self, token: int) -> None:
        """Add a batch that was delivered by reference."""
        self.used = True
        self._tokens.add(token)

    def release(self, token: int) -> None:
        """Note that the last reader of a batch is gone.  Safe in any thread."""
        self._tokens.discard(token)
        self.released.append(token)

    def to_say(self) -> tuple[int, ...]:
        """Return released batches for one message; there may be more."""
        tokens: list[int] = []
        while self.released and len(tokens) < _PER_MESSAGE:
            tokens.append(self.released.popleft())
        return tuple(tokens)

    def listed(self) -> tuple[int, ...] | None:
        """Return the tokens that a heartbeat lists; None where it lists none."""
        if not self.used or len(self._tokens) > _MAX_MAPPED:
            return None
        return tuple(sorted(self._tokens))
