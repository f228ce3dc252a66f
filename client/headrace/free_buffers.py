"""The state buffers of a session, as its trainer uses them.

    take ──► written ──► named by the Save ──► answered: nobody refers to it ──► free again

A save keeps its buffer until it is answered, so it can be sent again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from headrace_proto.state_buffers import PROOF_BYTES, mapped


class StateBuffer:
    """One buffer, which is free again when this object is gone."""

    __slots__ = ("array", "number", "owner")

    def __init__(self, owner: FreeBuffers, number: int, array: np.ndarray) -> None:
        self.owner = owner
        self.number = number
        self.array = array  # its bytes; keep none of its views beyond this object

    def __del__(self) -> None:
        if not hasattr(self, "array"):  # Ctrl-C came while it was made
            return
        self.owner.free.appendleft(self.number)  # to the front: likely still cached


class FreeBuffers:
    """The buffers in the file of one session.  Several threads may take some."""

    def __init__(self, session_file: str, each: int, proof: bytes) -> None:
        """``each``: bytes of a buffer, as the owner has announced; 0: there is none.

        ``proof``: the first bytes of the file.  Another session's file may take its name when the
        owner has died.
        """
        self._path, self._each, self._proof = session_file, each, proof
        self._arrays: Sequence[np.ndarray] | None = None  # None until the first is taken
        self.free: deque[int] = deque()  # their numbers
        self._lock = threading.RLock()  # of the map; a handler of a signal may save amid it

    def take(self, nbytes: int) -> StateBuffer | None:
        """Return a buffer for ``nbytes``; None where none is free, or where that is too much.

        Call it only once the owner has sent a batch by reference: then the file has its length.
        """
        if nbytes > self._each:
            return None
        arrays = self._arrays
        if arrays is None:
            arrays = self._map()
        try:
            number = self.free.popleft()
        except IndexError:
            return None
        return StateBuffer(self, number, arrays[number])

    def _map(self) -> Sequence[np.ndarray]:
        """Map the file; no buffers where it can not be written, or is not this session's."""
        with self._lock:
            arrays: Sequence[np.ndarray] = ()
            with contextlib.suppress(OSError, ValueError):  # ValueError: it was cut short meanwhile
                file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if os.pread(file, PROOF_BYTES, 0) == self._proof:
                        arrays = mapped(file, self._each, writable=True)
                finally:
                    os.close(file)
            if self._arrays is None:
                self._arrays = arrays
                self.free.extend(range(len(arrays)))
            return self._arrays
