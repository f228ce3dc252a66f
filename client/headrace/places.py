"""Where servers and owners are: the addresses of a name, and what a server's locator tells.

    ServedShare of each server ─► places_of() ─► by owner its address: tcp://host-of-the-server:port

    ServedShare of each server ─► arranged() ─► by share one session: together they have the feed
                                            ─► ValueError: two servers contradict each other

One server may have several addresses; it is known by the name that it gives itself.
The host is the one by which this trainer has reached the locator.  A trainer asks again, by
``ask``, while an owner is away: it may have another address, or the server other owners.
"""

from __future__ import annotations

import ipaddress
import socket as sockets
from collections.abc import Iterable, Sequence
from typing import Any

import zmq

from headrace_proto import limits
from headrace_proto.address import host_and_port
from headrace_proto.errors import ConnectionLost, HeadraceError
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Hello, ServedShare

from .credentials import Keys
from .session import Session

#: Maximum wait for the answer of a locator.
_ANSWER_MS = 1000


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


def places_of(served: ServedShare, reached: str) -> tuple[str, ...]:
    """Return the address of each owner of a server whose locator was ``reached`` at this one."""
    here = host_and_port(reached)
    found = [(worker, host_and_port(worker)) for worker in served.workers]
    return tuple(f"tcp://{here[0]}:{at[1]}" if here and at else worker for worker, at in found)


def ask(
    context: zmq.Context[zmq.Socket[bytes]], reached: str, keys: Keys | None, hello: Hello
) -> Any:
    """Return the answer of a locator to a greeting; None where there is none in time."""
    try:
        with context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.maxmsgsize = limits.MAX_HEADER_BYTES
            if keys is not None:
                keys.lock(socket)
            socket.connect(reached)
            socket.send(FROM_TRAINER.encode(hello))
            return FROM_SERVER.decode(socket.recv()) if socket.poll(_ANSWER_MS) else None
    except (zmq.ZMQError, HeadraceError):  # this trainer leaves, or what is there is no server
        return None


def arranged(sessions: Iterable[Session]) -> dict[int, Session]:
    """Return one session for each share for which a server has answered.

    Where a server has two addresses, the later one counts.  ValueError names the differences, and
    where.
    """
    by_share: dict[int, Session] = {}
    first: Session | None = None
    for session in sessions:
        served = session.served
        if served is None:
            continue
        first = first or session
        _check_alike(first, session)
        other = by_share.get(served.share)
        if other is not None and other.served is not None and other.served.server != served.server:
            raise ValueError(
                f"share {served.share}/{served.shares} of feed {served.feed!r} is at "
                f"{other.address} and at {session.address}, which are two servers: give the "
                "address of one of them"
            )
        by_share[served.share] = session
    return by_share


def _check_alike(first: Session, other: Session) -> None:
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


def missing_shares(sessions: Iterable[Session]) -> list[int]:
    """Return the shares for which no server has answered; empty where none has answered at all."""
    served = [one.served for one in sessions if one.served is not None]
    there = {one.share for one in served}
    shares = max((one.shares for one in served), default=0)
    return [share for share in range(shares) if share not in there]


def shares_there(sessions: Sequence[Session]) -> str:
    """Return which shares are where and which are missing, in words; empty where none is known."""
    served = [(one.address, one.served) for one in sessions if one.served is not None]
    if not served:
        return ""
    _, one = served[0]
    there = ", ".join(f"share {s.share}/{s.shares} is at {address}" for address, s in served)
    missing = ", ".join(map(str, missing_shares(sessions)))
    there = f"of feed {one.feed!r} {there}"
    return f"{there}; missing: share {missing} of {one.shares}" if missing else there
