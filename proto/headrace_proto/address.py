"""Checks addresses of servers: ``tcp://host:port`` or ``ipc:///path``.

    "tcp://a:5557, tcp://b:5557"            addresses in one text
    "tcp://headrace-{0..3}.headrace:5557"   four of them: numbers as in a shell
    "headrace-{0..3}.headrace:5557"         the same: a range is of tcp://
    "ray://speech"                          the servers that hs.on_ray has started for a feed

ZeroMQ takes the port modulo 65536, so it would silently use another port for a mistyped one.
"""

from __future__ import annotations

import re

from .placement import MOST_SHARES

#: Prefix of an address that names a feed of ``hs.on_ray``, …
RAY = "ray://"
#: … and the namespace of the actors that know where its servers are.
RAY_NAMESPACE = "headrace"
_FEED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

_TCP = re.compile(r"tcp://(.+):([0-9]+|\*)")
_RANGE = re.compile(r"(.*)\{([0-9]{1,6})\.\.([0-9]{1,6})\}(.*)", re.DOTALL)


def check_address(argument: str, address: object) -> str:
    """Return the address.  TypeError or ValueError names the argument."""
    if not isinstance(address, str):
        raise TypeError(f"{argument}={address!r:.200} is not a string")
    refuse_surrogates(f"{argument}={address!r:.200}", address)
    if re.fullmatch(r"ipc://.+", address):
        return address
    match = _TCP.fullmatch(address)
    if match is None:
        raise ValueError(f"{argument}={address!r:.200} is not like tcp://127.0.0.1:5557")
    if match[1].startswith("["):
        raise ValueError(f"{argument}={address!r:.200} is of IPv6; addresses are names or IPv4")
    if match[2] != "*" and int(match[2]) > 65535:
        raise ValueError(f"{argument}={address!r:.200}: a port must be between 0 and 65535")
    return address


def refuse_surrogates(where: str, text: str) -> None:
    """Raise ValueError for a text that UTF-8 can not encode, such as a path of other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} is not a text that UTF-8 can hold") from None


def check_addresses(argument: str, addresses: object) -> list[str]:
    """Return the addresses of servers, from a list or from one text with commas between them."""
    listed = addresses
    if isinstance(addresses, str):
        listed = [part.strip() for part in addresses.split(",")]
    if not isinstance(listed, (list, tuple)):
        raise TypeError(f"{argument}={addresses!r:.200} is neither an address nor a list of them")
    if not listed:
        raise ValueError(f"{argument}={addresses!r} names no server")
    found: list[str] = []
    for address in (one for part in listed for one in _expanded(argument, part)):
        checked = check_address(argument, address)
        if checked.endswith(":*"):
            raise ValueError(
                f"{argument}={checked!r:.200}: port * is for servers, which take a free one; give "
                "the address that the server prints"
            )
        if "," in checked:
            raise ValueError(f"{argument}: {checked!r:.200} in a list is not one address")
        if checked in found:
            raise ValueError(f"{argument}={addresses!r:.200} names {checked} twice")
        found.append(checked)
    return found


def _expanded(argument: str, address: object) -> list[object]:
    """Return the addresses for which one stands, several where it has a range of ``tcp://``."""
    if not isinstance(address, str) or not {"{", "}"} & {*address}:
        return [address]
    if "://" not in address:
        address = f"tcp://{address}"
    return [*ranged(argument, address)] if address.startswith("tcp://") else [address]


def ranged(argument: str, address: str) -> list[str]:
    """Return the addresses of a range ``{a..b}``; without a range, the address itself."""
    if not {"{", "}"} & {*address}:
        return [address]
    match = _RANGE.fullmatch(address)
    numbers = range(int(match[2]), int(match[3]) + 1) if match else range(0)
    if match is None or _RANGE.fullmatch(match[1]) or not 1 <= len(numbers) <= MOST_SHARES:
        raise ValueError(
            f"{argument}={address!r:.200}: a range is one {{a..b}} with a ≤ b, of at most "
            f"{MOST_SHARES} servers"
        )
    return [f"{match[1]}{number}{match[4]}" for number in numbers]


def feed_on_ray(address: object) -> str | None:
    """Return the feed of ``ray://FEED``; None for other addresses.

    ValueError where it names none.
    """
    listed = address if isinstance(address, (list, tuple)) else [address]
    texts = [part for one in listed if isinstance(one, str) for part in one.split(",")]
    if not any(text.strip().startswith(RAY) for text in texts):
        return None
    name = texts[0].strip().removeprefix(RAY)
    if len(texts) > 1:
        raise ValueError(
            f"address={address!r:.200}: {RAY}FEED stands for all servers: give it alone"
        )
    if not _FEED.fullmatch(name):
        raise ValueError(
            f"address={address!r:.200} is not like {RAY}speech, which names a feed of hs.on_ray"
        )
    return name


def host_and_port(address: str) -> tuple[str, str] | None:
    """Return the host and the port of an address; None where it is no ``tcp://``."""
    match = _TCP.fullmatch(address)
    return None if match is None else (match[1], match[2])
