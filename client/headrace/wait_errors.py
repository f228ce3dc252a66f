"""The errors of waits that ran out of time: what did not come, and a likely reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_proto.errors import ConnectionLost, DeadlineExceeded, HeadraceError

from .discovery import shares_there

if TYPE_CHECKING:
    from .link import Link
    from .session import Session


def too_late(
    link: Link, session: Session, now: float, timeout_s: float, what: str, slept_s: float
) -> HeadraceError:
    """Return the error of a wait that ran past ``timeout_s``, with the likely reason."""
    silence, place = session.silence(now), session.where
    slept = f" (this process did not run for {slept_s:.0f} s more)" if slept_s >= 1 else ""
    if session.stopped:
        return ConnectionLost(_not_back(link, place, timeout_s, slept, what))
    if session.welcome is not None and silence:
        hint = f".{link.hint}" if link.hint else ""
        return ConnectionLost(
            f"the server at {place} was lost: nothing was heard of it for "
            f"{silence:.0f} s, while this trainer waited timeout={timeout_s:g} s{slept} for "
            f"{what}{hint}"
        )
    if session.welcome is None and session.waiting:
        return DeadlineExceeded(
            f"waited timeout={timeout_s:g} s{slept} for the feed at {place} to open; "
            f"the server says: {session.waiting}"
        )
    if session.welcome is None:
        known = shares_there(link.sessions)
        return ConnectionLost(
            f"no server answered at {place} within timeout={timeout_s:g} s{slept}: "
            f"is it running, and is the address right?{known and f' ({known})'}"
            f"{link.hint}"
        )
    trainer = link.member.trainer
    held, most = 0 if trainer is None else len(trainer.hands), session.welcome.max_credits
    each = "" if len(link.sessions) == 1 else " of each worker"
    full = f", as many as the server's max_credits={most} allows{each}" if held >= most else ""
    reason = f"the server says: {session.waiting}" if session.waiting else "no word of the server"
    return DeadlineExceeded(
        f"waited timeout={timeout_s:g} s{slept} for {what} of feed {session.welcome.feed!r} "
        f"at {place}; {reason}; this trainer holds {held} batches{full}"
        f"{link.explain(now) or _needs_ranks(link, session)}"
    )


def _needs_ranks(link: Link, session: Session) -> str:
    """Return a remedy for trainers that wait for each other in each step, or nothing."""
    if link.member.rank >= 0 or link.properties.get("shape") != "sequences":
        return ""
    return (
        ".  If trainers average gradients, connect them with rank= and world_size=: else one can "
        "wait here for a state that another saves only after their common step"
    )


def _not_back(link: Link, place: str, waited_s: float, slept: str, what: str) -> str:
    """Explain why a wait ends while the server is stopped, and what that means for commits."""
    trainer = link.member.trainer
    n = 0 if trainer is None else sum(trainer.unanswered(one.number) for one in link.sessions)
    owed = (
        f"  It has not answered {n} commits of this trainer: those that it did not store "
        "before it stopped do not count, and their rows go out again"
    )
    return (
        f"the server at {place} was stopped and announced its return, and was not back "
        f"after {waited_s:g} s{slept}, while this trainer waited for {what}.  Start it again "
        f"with the same address and state directory, or raise timeout{owed if n else ''}"
    )
