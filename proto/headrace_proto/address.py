"""Checks addresses of servers: ``tcp://host:port`` or ``ipc:///path``.

ZeroMQ takes the port modulo 65536, so a mistyped one would be another port, in silence.
"""

from __future__ import annotations

import re

__all__ = ["check_address"]

_TCP = re.compile(r"tcp://.+:([0-9]+|\*)")


def check_address(argument: str, address: object) -> str:
    """The address, or the TypeError or ValueError that names the argument."""
    if not isinstance(address, str):
        raise TypeError(f"{argument}={address!r:.200} is not a string")
    if re.fullmatch(r"ipc://.+", address):
        return address
    match = _TCP.fullmatch(address)
    if match is None:
        raise ValueError(f"{argument}={address!r:.200} is not like tcp://127.0.0.1:5557")
    if match[1] != "*" and int(match[1]) > 65535:
        raise ValueError(f"{argument}={address!r:.200}: a port lies in 0 … 65535")
    return address
