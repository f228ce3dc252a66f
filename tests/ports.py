"""Ports for servers that a test starts at an address of its own."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path


def free_port() -> int:
    """A port that stays free until a server takes it: the kernel hands none of these out."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, lowest)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
