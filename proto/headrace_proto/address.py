"""Checks addresses of servers: ``tcp://host:port`` or ``ipc:///path``.

ZeroMQ takes the port modulo 65536, so a mistyped one would be another port, in silence.
"""

from __future__ import annotations

import re

__all__ = ["check_address", "check_addresses", "host_and_port"]

_TCP = re.compile(r"tcp://(.+):([0-9]+|\*)")


def check_address(argument: str, address: object) -> str:
    """The address, or the TypeError or ValueError that names the argument."""
    if not isinstance(address, str):
        raise TypeError(f"{argument}={address!r:.200} is not a string")
    if re.fullmatch(r"ipc://.+", address):
        return address
    match = _TCP.fullmatch(address)
    if match is None:
        raise ValueError(f"{argument}={address!r:.200} is not like tcp://127.0.0.1:5557")
    if match[2] != "*" and int(match[2]) > 65535:
        raise ValueError(f"{argument}={address!r:.200}: a port lies in 0 … 65535")
    return address


def check_addresses(argument: str, addresses: object) -> list[str]:
    """The addresses of servers, from a list or from one text with commas between them."""
    listed = addresses
    if isinstance(addresses, str):
        listed = [part.strip() for part in addresses.split(",")]
    if not isinstance(listed, (list, tuple)):
        raise TypeError(f"{argument}={addresses!r:.200} is neither an address nor a list of them")
    if not listed:
        raise ValueError(f"{argument}={addresses!r} names no server")
    found: list[str] = []
    for address in listed:
        checked = check_address(argument, address)
        if "," in checked:
            raise ValueError(f"{argument}: {checked!r:.200} in a list is not one address")
        if checked in found:
            raise ValueError(f"{argument}={addresses!r:.200} names {checked} twice")
        found.append(checked)
    return found


def host_and_port(address: str) -> tuple[str, str] | None:
    """The host and the port of an address; None of one that is no ``tcp://``."""
    match = _TCP.fullmatch(address)
    return None if match is None else (match[1], match[2])
