"""Addresses that other machines can reach need keys, or ``insecure=True``.

ipc://…  tcp://127.…  tcp://localhost  tcp://[::1]  tcp://lo      this machine only
everything else, tcp://0.0.0.0 and tcp://* above all              others too
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence


def is_local(address: str) -> bool:
    """Return whether only this machine can reach a socket bound to an address."""
    scheme, _, rest = address.partition("://")
    if scheme == "ipc":
        return True
    host = rest.rpartition(":")[0].strip("[]")
    if host in ("localhost", "lo"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # the name of an interface or a host, or *
        return False


def check_exposed(binds: Sequence[str], keys: object, insecure: bool) -> None:
    """ValueError where others could reach a server that asks for no keys."""
    if keys is not None and insecure:
        raise ValueError("keys= and insecure=True: with keys nothing is insecure; give one of them")
    if keys is not None or insecure:
        return
    for address in binds:
        if not is_local(address):
            raise ValueError(
                f"bind={address!r} can be reached from other machines, and without keys everybody "
                "there could take batches: give keys=DIR (headrace keygen DIR makes "
                "them), or insecure=True where all of that network is trusted"
            )
