"""Which servers together have the whole of a feed: judged by what each answers of its share.

    ServedShare of each server ─► arranged() ─► by share one session
                                            ─► ValueError: two servers contradict each other

One server may have several addresses; it is known by the name that it gives itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace_proto.messages import ServedShare

from .session import Session


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
    here, there = f"{first.address} serves feed {a.feed!r}", f"{other.address} serves"
    if a.feed != b.feed:
        raise ValueError(f"{here} and {there} feed {b.feed!r}: they are no servers of one feed")
    if a.shares != b.shares:
        raise ValueError(
            f"{here} as one of {a.shares} servers and {there} it as one of {b.shares}: start all "
            "servers with share=i/n of the same n"
        )
    if a.partitions != b.partitions:
        raise ValueError(
            f"{here} with {a.partitions} partitions and {there} it with {b.partitions}: start all "
            "servers with the same partitions="
        )
    parts = _unlike(a, b)
    if parts:
        raise ValueError(
            f"{first.address} and {other.address} serve different pipelines as feed {a.feed!r}: "
            f"they differ in {', '.join(parts)}"
        )


def _unlike(a: ServedShare, b: ServedShare) -> list[str]:
    """Return the names of the parts in which two declarations differ."""
    here, there = (one.declaration if isinstance(one.declaration, dict) else {} for one in (a, b))
    return [part for part in sorted({*here, *there}) if here.get(part) != there.get(part)]


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
