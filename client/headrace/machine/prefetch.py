"""How many batches are prefetched beyond the one in a trainer's hands: as asked, or "auto".

    "auto"   2 ─► the trainer waits, though as many came since ─► 4 ─► 8 ─► 16

The number grows only where prefetching changes nothing but time, so not where the next batch needs
states that the trainer has not saved yet.  Memory bounds it: every prefetched batch may be as large
as the largest recent one.  So the number falls at the first large batch, and stays at two where
batches are very large.  After a rare large batch it grows again.
"""

from __future__ import annotations

from headrace_proto.messages import Welcome

AUTO = "auto"
#: Number of prefetched batches at first and at most, and a bound of their bytes.
_FIRST, _MOST = 2, 16
_MOST_BYTES = 16 << 20
#: A large batch bounds the number for at least this many further batches, at most twice as many.
_SPAN = 128


class Prefetch:
    """The prefetch of one trainer, the same in all its sessions."""

    def __init__(self, asked: int | str) -> None:
        """``asked``: a number of batches, or "auto"."""
        self.asked, self.auto = asked, asked == AUTO
        self.batches = asked if isinstance(asked, int) else _FIRST
        self._taken = 0  # batches taken since the number has grown
        # Bytes of the largest batch of the last two spans of batches, and of the last one.
        self._largest = self._largest_since = 1
        self._rest = _SPAN  # batches until the next span begins

    def took(self, nbytes: int) -> bool:
        """Note that the trainer takes a batch; return whether fewer are prefetched from now on."""
        self._taken += 1
        self._rest -= 1
        if not self._rest:
            self._largest, self._largest_since = self._largest_since, 1
            self._rest = _SPAN
        if nbytes > self._largest_since:
            self._largest_since = nbytes
        if nbytes <= self._largest:
            return False
        self._largest = nbytes
        most = max(_FIRST, _MOST_BYTES // nbytes)
        if self.batches <= most:
            return False
        self.batches = most
        return True

    def waits(self, welcome: Welcome | None) -> bool:
        """Note that the trainer waits; return whether more batches are prefetched from now on."""
        if self._taken < self.batches or welcome is None:
            return False
        states = welcome.properties.get("placement") == "server"
        most = min(_MOST, welcome.max_credits - 1, _MOST_BYTES // self._largest)
        if states or self.batches >= most:
            return False
        self.batches = min(2 * self.batches, most)
        self._taken = 0
        return True
