"""The state buffers of one owner's sessions: their memory, and its bounds.

    a trainer attaches ─► open: its file grows, and is mapped ─► saves ─► it is gone: close

The trainer can write to a buffer at any time.  So nothing is read from it but numbers of states:
their dtypes, shapes and offsets are in the Save, and strings come as frames.  Read-only mappings
end with the last array that shows them, so a save that waits for its partition stays readable.
"""

from __future__ import annotations

import os

from headrace_proto.state_buffers import MOST, MOST_BYTES, PROOF_BYTES, file_bytes, mapped

from .sessions import Session

#: Maximum number of sessions with buffers, since a mapping takes a descriptor.
_MOST_SESSIONS = 64
#: A session takes at most this part of the shared memory that is free: slabs and journals need it.
_OF_FREE = 16


class BufferBudget:
    """The sessions that have buffers, and bounds of their memory."""

    def __init__(self, most_bytes: int) -> None:
        """``most_bytes`` bounds the buffers of all sessions together."""
        self._left = most_bytes
        self._bytes: dict[int, int] = {}  # by session

    def open(self, session: Session, each: int) -> None:
        """Give a session that attaches for the first time buffers of ``each`` bytes that fit.

        Later its trainer may have mapped the file, which must not become shorter then.
        """
        if session.buffers is not None:
            return
        session.buffers = ()
        if not each or len(self._bytes) >= _MOST_SESSIONS:
            return
        space = os.fstatvfs(session.file)
        free = space.f_bavail * space.f_frsize
        most = min(MOST_BYTES, self._left, free // _OF_FREE)
        count = min(MOST, (most - file_bytes(0, each)) // each)
        if count < 1:
            return
        nbytes = file_bytes(count, each)
        try:
            os.posix_fallocate(session.file, 0, nbytes)
            session.buffers = [buffer.data for buffer in mapped(session.file, each)]
        except OSError:  # too little shared memory, or no descriptor is free
            os.ftruncate(session.file, PROOF_BYTES)
            return
        self._bytes[session.number] = nbytes
        self._left -= nbytes

    def close(self, session: Session) -> None:
        """Take the buffers of a session back, whose trainer does not use them any more."""
        session.buffers = ()
        self._left += self._bytes.pop(session.number, 0)
