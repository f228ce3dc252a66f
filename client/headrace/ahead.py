"""How many batches are prefetched beyond the one in a trainer's hands: as asked, or as many as pay.

    "auto"   2 ─► the trainer waits, though as many came since ─► 4 ─► 8 ─► 16

A trainer that would take more at once than are there waits for them, too.

The number grows only where it changes nothing but time: not where the next batch needs states
that the trainer has still to save.  Memory bounds it: all prefetched batches may be as large as the
largest one so far, so the number falls at the first large batch, and of very large ones only two
are prefetched.
"""

from __future__ import annotations

from headrace_proto.messages import Welcome

AUTO = "auto"
#: Number of prefetched batches at first and at most, and a bound of their bytes.
_FIRST, _MOST = 2, 16
_MOST_BYTES = 16 << 20


class Ahead:
    """The prefetch of one trainer, the same in all its sessions."""

    def __init__(self, asked: int | str) -> None:
        """``asked``: a number of batches, or "auto"."""
        self.asked = asked
        self.batches = asked if isinstance(asked, int) else _FIRST
        self._taken = 0  # batches taken since the number has grown
        self._largest = 1  # bytes of the largest batch taken

    def took(self, nbytes: int) -> bool:
        """Note that the trainer takes a batch; return whether fewer are prefetched from now on."""
        self._taken += 1
        if nbytes <= self._largest:
            return False
        self._largest = nbytes
        most = max(_FIRST, _MOST_BYTES // nbytes)
        if self.asked != AUTO or self.batches <= most:
            return False
        self.batches = most
        return True

    def waits(self, welcome: Welcome | None) -> bool:
        """Note that the trainer waits; return whether more batches are prefetched from now on."""
        if self.asked != AUTO or self._taken < self.batches or welcome is None:
            return False
        states = welcome.properties.get("placement") == "server"
        most = min(_MOST, welcome.max_credits - 1, _MOST_BYTES // self._largest)
        if states or self.batches >= most:
            return False
        self.batches = min(2 * self.batches, most)
        self._taken = 0
        return True
