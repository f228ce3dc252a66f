"""Ports for servers that a test starts at an address of its own."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

#: Ports after a free one that are free, too: those of a server's workers.
_FOLLOWING = 4


def free_port() -> int:
    """A port that stays free until a server takes it: the kernel hands none of these out.

    Those of its workers, which follow, are free as well.  Where the kernel hands out all ports, it
    is any one that is free now.
    """
    handed_out = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    lowest, highest = map(int, handed_out.split())
    others = [*range(10_000, lowest), *range(highest + 1, 1 << 16)] or range(10_000, 1 << 16)
    while True:
        port = random.SystemRandom().choice(others)
        with contextlib.suppress(OSError, OverflowError), contextlib.ExitStack() as probes:
            for number in range(port, port + 1 + _FOLLOWING):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", number))
            return port
