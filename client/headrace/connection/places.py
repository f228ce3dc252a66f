"""The servers of a feed: their addresses, and what the locator of each tells of its owners.

    ServedShare of a server     ─► take()     ─► by owner its address: tcp://host-of-the-server:port

    ServedShare of each server  ─► arranged() ─► by share one server: together they have the feed
                                              ─► ValueError: two servers contradict each other

One server may have several addresses; it is known by the name that it gives itself.
The host is the one by which this trainer has reached the locator.  A trainer asks again while an
owner is away: it may have another address, or the server other owners.
"""

from __future__ import annotations

import ipaddress
import socket as sockets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace_proto.address import host_and_port
from headrace_proto.errors import ConnectionLost, one_line
from headrace_proto.messages import Pulse, Refused, ServedShare


@dataclass(slots=True, eq=False)
class Server:
    """One server of a feed, as this trainer finds it."""

    address: str  # which may be a name
    place: str = ""  # the address at which its locator is asked: of a name one of several
    served: ServedShare | None = None  # the locator's last answer …
    owners: tuple[str, ...] = ()  # … and by it the addresses of the owners
    waiting: str = ""  # why they may not answer, as it says
    broken: str = ""  # why connections to its locator may end before they can be used
    hint: str = ""  # the addresses of its name, for people, while no locator answers there
    _turn: int = 0  # how many of them were tried

    def __post_init__(self) -> None:
        self.place = self.place or self.address

    @property
    def where(self) -> str:
        """Its address, with its share where several servers have the feed."""
        served = self.served
        if served is None or served.shares == 1:
            return self.address
        return f"{self.address} (share {served.share}/{served.shares})"

    def take(self, answer: ServedShare | Pulse | Refused) -> None:
        """Take an answer of the locator."""
        self.waiting = "" if isinstance(answer, Refused) else one_line(answer.waiting)
        if not isinstance(answer, ServedShare):
            return
        known, there = self.served, (answer.share, answer.shares)
        if known is not None and there != (known.share, known.shares):
            self.waiting = f"this is share {there[0]}/{there[1]} of feed {answer.feed!r}"
            return
        here = host_and_port(self.place)
        owners = [(worker, host_and_port(worker)) for worker in answer.workers]
        self.served, self.hint, self.broken = answer, "", ""
        self.owners = tuple(
            f"tcp://{here[0]}:{at[1]}" if here and at else worker for worker, at in owners
        )

    def try_next(self) -> None:
        """Ask at the next address of its name from now on."""
        try:
            found = looked_up(self.address)
        except ConnectionLost as error:
            self.hint = f"  {error}"
            return
        if not found:  # it is an address already
            return
        self.hint = f"  Its name stands for {', '.join(found)}"
        if len(found) > 1 or self.place != self.address:  # ZeroMQ has tried the first one
            self._turn += 1
            self.place = found[self._turn % len(found)]


def looked_up(address: str) -> list[str]:
    """Return the addresses that a host name resolves to now; none where the host is no name."""
    place = host_and_port(address)
    if place is None:
        return []
    host, port = place
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        pass
    else:
        return []
    try:
        found = sockets.getaddrinfo(host, port, sockets.AF_INET, sockets.SOCK_STREAM)
    except OSError as error:
        raise ConnectionLost(f"the name in {address} can not be looked up: {error}") from None
    return sorted({f"tcp://{place[0]}:{port}" for *_, place in found})


def arranged(servers: Iterable[Server]) -> dict[int, Server]:
    """Return the server of each share for which one has answered.

    Where a server has two addresses, the later one counts.  ValueError names the differences, and
    where.
    """
    by_share: dict[int, Server] = {}
    first: Server | None = None
    for server in servers:
        served = server.served
        if served is None:
            continue
        first = first or server
        _check_alike(first, server)
        other = by_share.get(served.share)
        if other is not None and other.served is not None and other.served.server != served.server:
            raise ValueError(
                f"share {served.share}/{served.shares} of feed {served.feed!r} is at "
                f"{other.address} and at {server.address}, which are two servers: give the "
                "address of one of them"
            )
        by_share[served.share] = server
    return by_share


def _check_alike(first: Server, other: Server) -> None:
    """Raise ValueError where two servers do not serve shares of one feed."""
    a, b = first.served, other.served
    assert a is not None and b is not None
    here, there = a.declaration, b.declaration
    parts = [part for part in sorted({*here, *there}) if here.get(part) != there.get(part)]
    compared = {
        "feeds": (a.feed, b.feed),
        "numbers of servers (n of share=i/n)": (a.shares, b.shares),
        "partitions": (a.partitions, b.partitions),
    }
    unlike = [f"{name} {one!r} and {two!r}" for name, (one, two) in compared.items() if one != two]
    unlike += [f"{', '.join(parts)} of their pipelines"] if parts else []
    if unlike:
        raise ValueError(
            f"{first.address} and {other.address} are no servers of one feed: they differ in "
            f"{'; '.join(unlike)}.  Start all servers of a feed with the same of these"
        )


def missing_shares(servers: Iterable[Server]) -> list[int]:
    """Return the shares for which no server has answered; empty where none has answered at all."""
    served = [one.served for one in servers if one.served is not None]
    there = {one.share for one in served}
    shares = max((one.shares for one in served), default=0)
    return [share for share in range(shares) if share not in there]


def shares_there(servers: Sequence[Server]) -> str:
    """Return which shares are where and which are missing, in words; empty where none is known."""
    served = [(one.address, one.served) for one in servers if one.served is not None]
    if not served:
        return ""
    _, one = served[0]
    there = ", ".join(f"share {s.share}/{s.shares} is at {address}" for address, s in served)
    missing = ", ".join(map(str, missing_shares(servers)))
    there = f"of feed {one.feed!r} {there}"
    return f"{there}; missing: share {missing} of {one.shares}" if missing else there
