"""Which process this is: known to the client and the server of one program, and to no other."""

from __future__ import annotations

import os
import secrets

_PROGRAM = secrets.token_bytes(12)


def process_name() -> bytes:
    """Bytes that name this process; a fork has another name."""
    return _PROGRAM + os.getpid().to_bytes(4, "little")
