"""A name of this process, by which a client and a server in one program recognise each other."""

from __future__ import annotations

import os
import secrets

_PROGRAM = secrets.token_bytes(12)


def process_name() -> bytes:
    """Return bytes that name this process; a fork has another name."""
    return _PROGRAM + os.getpid().to_bytes(4, "little")
