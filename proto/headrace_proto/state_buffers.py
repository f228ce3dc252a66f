"""State buffers: memory of a session in which a trainer hands states to the owner on its host.

    session's file    16 random bytes … │ buffer 0 │ buffer 1 │ …

A buffer holds the block of states of one batch, as a frame would.  The Save then has
``FIRST_BUFFER`` and the buffer's number in place of a frame's number.  The owner makes the file
longer when the trainer attaches, and reads a buffer at most until it answers the save.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

#: Bytes at the start of a session's file by which a trainer proves to read it.
PROOF_BYTES = 16
#: Maximum buffers of a session.  Up to 48 commits are stored as one record, and some come while a
#: disk writes it: that many saves may be unanswered.
MOST = 56
#: Maximum bytes of a session's file.  States for which none is free go through the socket.
MOST_BYTES = 8 << 20
#: Number of the first buffer in a Save, beyond the numbers of frames.
FIRST_BUFFER = 1 << 15
#: Offset of the first buffer in the session's file.
_START = 4096


def file_bytes(count: int, each: int) -> int:
    """Return the size of a session's file with so many buffers of ``each`` bytes."""
    return _START + count * each


def mapped(file: int, each: int, writable: bool = False) -> list[np.ndarray]:
    """Map a session's file; return its buffers of ``each`` bytes, none where it has none."""
    count = min(MOST, (os.fstat(file).st_size - _START) // each) if each else 0
    if count < 1:
        return []
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    memory = np.frombuffer(mmap.mmap(file, file_bytes(count, each), prot=prot), np.uint8)
    starts = range(_START, len(memory), each)
    return [memory[start : start + each] for start in starts]
