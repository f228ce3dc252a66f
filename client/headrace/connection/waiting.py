"""One wait of a trainer, which has a deadline, and the text of the error when that is over.

    wait ──► done()? ──► await_news ──► done()? ──► …   a failure, a refusal or the deadline ends it

Every wait of a trainer is this one, and its error names the missing answer.  Only its timeout ends
a wait for a server that is away: before that the client greets the server again and again, however
long it takes to move or restart it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_proto.errors import ConnectionLost, DeadlineExceeded, FeedClosed, HeadraceError

from .exchanging import Wire
from .places import Server, shares_there
from .session import Member, Session

#: A leaving trainer's maximum wait for a server that has stopped and will be back.
_LEAVE_S = 10.0
#: A wait looks at what has come this often, even without messages.
_STEP_S = 0.2


class Waits:
    """The waits of one trainer, in any of its threads."""

    def __init__(self, wire: Wire, member: Member, servers: Callable[[], list[Server]]) -> None:
        self._wire, self._member, self._servers = wire, member, servers
        self.left = False  # the trainer closed the feed
        self.failure_raised = False  # so the trainer knows of it
        self.looked_at = 0.0  # when one last checked its condition
        # describes unfinished work of the trainer
        self.explain: Callable[[float], str] = lambda now: ""

    def wait(
        self,
        done: Callable[[], Any],
        timeout_s: float,
        what: str,
        about: Callable[[], Session] | None = None,
        end: Callable[[], bool] | None = None,
        raise_refused: bool = True,
        started: float | None = None,
    ) -> Any:
        """Wait until ``done`` returns a value; return None once ``end`` is true.

        ``about``: the session whose answer is missing, where that is not the first.
        """
        wire, member, over = self._wire, self._member, False
        refused, slept_s = member.refused, wire.clock.slept_s
        now = self.looked_at = started = wire.clock() if started is None else started
        while True:
            with wire.lock:
                news = wire.news
                if member.failure is not None and (failure := wire.failure):
                    self.failure_raised = True
                    raise failure
                if wire.closing:
                    raise FeedClosed(f"the feed was closed while this thread waited for {what}")
                if raise_refused and refused:
                    raise refused.popleft()
                result = done()
                if result:
                    return result
                if end is not None and end():
                    return None
                limit_s = timeout_s
                if self.left and any(session.stopped for session in wire.sessions):
                    limit_s = min(timeout_s, _LEAVE_S)
                if over and now - started >= limit_s:  # and a message of the server came since
                    session = wire.sessions[0] if about is None else about()
                    slept_s = wire.clock.slept_s - slept_s
                    raise self._too_late(session, now, limit_s, what, slept_s)
                rest_s = min(_STEP_S, started + limit_s - now)
                over = rest_s <= 0
            now = self.looked_at = wire.await_news(news, rest_s, now)

    def _too_late(
        self, session: Session, now: float, timeout_s: float, what: str, slept_s: float
    ) -> HeadraceError:
        """Return the error of a wait that ran past ``timeout_s``, with the likely reason."""
        slept = f" (this process did not run for {slept_s:.0f} s more)" if slept_s >= 1 else ""
        waited = f"waited timeout={timeout_s:g} s{slept} for"
        silence, place, welcome = session.silence(now), session.server.where, session.welcome
        hint = "".join(server.hint for server in self._servers())
        says = (not session.connected and session.server.waiting) or session.waiting
        if welcome is None and says:
            return DeadlineExceeded(
                f"{waited} the feed at {place} to open; the server says: {says}"
            )
        if welcome is None:
            if broken := next((server.broken for server in self._servers() if server.broken), ""):
                return ConnectionLost(f"{waited} the feed at {place} to open: {broken}")
            known = shares_there(self._servers())
            return ConnectionLost(
                f"no server answered at {place} within timeout={timeout_s:g} s{slept}: "
                f"is it running, and is the address right?{known and f' ({known})'}{hint}"
            )
        if session.stopped:
            owed = sum(self._member.trainer.unanswered(one.number) for one in self._wire.sessions)
            lost = f".  {owed} commits of this trainer have no answer: they may be lost"
            return ConnectionLost(
                f"the server at {place} was stopped and announced its return, and is not back; "
                f"{waited} {what}.  Start it again with the same address and state directory, or "
                f"raise timeout{lost if owed else ''}"
            )
        if silence:
            return ConnectionLost(
                f"the server at {place} was lost: nothing was heard of it for {silence:.0f} s, and "
                f"this trainer {waited} {what}{hint}"
            )
        hands = self._member.trainer.in_hand
        most = welcome.max_credits
        full = f", as many as the server's max_credits={most} allows" if hands >= most else ""
        reason = f"the server says: {says}" if says else "no word of the server"
        return DeadlineExceeded(
            f"{waited} {what} of feed {welcome.feed!r} at {place}; {reason}; "
            f"this trainer holds {hands} batches{full}{self.explain(now)}"
        )
