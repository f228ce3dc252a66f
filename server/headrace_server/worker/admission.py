"""Admission: a greeting opens or resumes a session with a feed, or is refused.

Hello ─► hear() ─► Welcome    a session is open, or goes on
                ─► Refused    an error's code and text
                ─► Pulse      not yet: the trainer repeats its greeting
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace_proto import __version__, limits
from headrace_proto.clock import AwakeClock
from headrace_proto.errors import (
    HeadraceError,
    NotAllowed,
    ProtocolError,
    code_of,
)
from headrace_proto.messages import Ended, Hello, Pulse, Refused, Welcome

from ..core.bounded_map import BoundedMap
from ..core.dispatch_effects import JoinRefused
from ..process.config import RunConfig
from ..process.descriptors import is_shortage
from ..process.refusals import check_version, feed_named
from .desk import Desk, Usage
from .outbox import Outbox
from .resuming import Later, PresentTrainer, wanted_by
from .returning import Returning
from .sessions import Session

logger = logging.getLogger("headrace.trainers")

REVOKED = "this trainer's public key is not, or no longer, in trainers/ of the server's keys"
#: Refusals that are counted, by the error's code.
_COUNTED = {"limit": "trainers", "denied": "revoked"}
#: Maximum number of greetings that wait until the feeds are open; the oldest is forgotten.
_MOST_HELD = 10_000
#: Maximum length of the text that says where a trainer runs.
_LONGEST_HOST = 100


@dataclass(eq=False)
class Admission:
    """The admission to all feeds of one owner."""

    config: RunConfig
    owner: int
    desks: Mapping[str, Desk]
    outbox: Outbox
    clock: AwakeClock
    returning: Returning
    end: Callable[[bytes], None]  # ends the session of a connection

    def __post_init__(self) -> None:
        self._socket, self._sessions = self.outbox.socket, self.outbox.sessions
        #: Greetings that came before the feeds were open, and the descriptors they came by.
        self._held: BoundedMap[bytes, tuple[Hello, str, int]] = BoundedMap(_MOST_HELD)

    def opened(self) -> None:
        """Answer the greetings that came before the feeds were open."""
        held, self._held = self._held, BoundedMap(_MOST_HELD)
        for identity, (hello, key, came_by) in held.items():
            self.hear(identity, hello, key, came_by)

    def hear(self, identity: bytes, hello: Hello, key: str, came_by: int) -> None:
        """Answer a greeting: by Welcome, Refused, or a Pulse with the reason to wait.

        ``came_by``: the descriptor of its connection.
        """
        try:
            desk = self._desk_of(hello.feed)
            if (hello.share, hello.shares) != desk.share:
                text = f"this is share {desk.of_share} of feed {desk.name!r}"
                self.outbox.send(identity, Pulse(0, text))
                return
            if not desk.opened:
                self._held[identity] = hello, key, came_by
                self.outbox.send(identity, Pulse(0, "the workers are opening the feed's source"))
                return
            session, resumed = self._admit(identity, hello, key)
        except Later as error:
            self.outbox.send(identity, Pulse(0, str(error)))
            return
        except (HeadraceError, JoinRefused) as error:
            code = "protocol" if isinstance(error, JoinRefused) else code_of(error)
            if code in _COUNTED:
                text = f"refused a trainer: {error}"
                self._socket.refusals.add(_COUNTED[code], "", text, self.clock())
            self.returning.left(hello.nonce)
            self.outbox.send(identity, Refused(code, str(error)))
            return
        self.returning.joined(hello.nonce)
        self._socket.opened(session.number, came_by, self.clock())
        self.outbox.send(
            identity,
            Welcome(
                limits.PROTOCOL,
                __version__,
                session.number,
                desk.name,
                desk.schema or [],
                self.config.heartbeat_s,
                self.config.lease_ttl_s,
                self.config.max_credits,
                self.config.directory,
                str(session.path),
                resumed,
                desk.described(hello.world_size),
                str(self.outbox.channels.path),
                None if resumed else self._used(session, desk, hello),
                self.owner,
                desk.owners,
                desk.of_feed,
                session.run,
                desk.states.buffer_bytes,
            ),
        )
        if desk.failure is not None:
            self.outbox.send(identity, Ended(session.number, *desk.failure))
        elif resumed:
            # A trainer that never got this session's Welcome counts deliveries of another.
            ours = hello.known in ("", str(session.path))
            desk.dispatcher.resend(session.number, hello.last_seq if ours else 0)

    def _checked(self, hello: Hello, key: str) -> tuple[Desk, str]:
        """Return the desk that a greeting is for, and the name of its key."""
        check_version(hello)
        if not 0 < len(hello.nonce) <= 64:
            raise ProtocolError("a Hello carries a nonce of 1 to 64 bytes")
        name = self._socket.name_of(key)
        if name is None:
            raise NotAllowed(REVOKED)
        desk = self._desk_of(hello.feed)
        if hello.owner not in (-1, self.owner) and hello.owner < desk.owners:
            raise ProtocolError(
                f"a Hello names owner {hello.owner}; feed {desk.name!r} has {desk.owners}, and "
                f"this is owner {self.owner}"
            )
        return desk, name

    def _admit(self, identity: bytes, hello: Hello, key: str) -> tuple[Session, bool]:
        desk, name = self._checked(hello, key)
        now = self.clock()
        session = self._sessions.resume(hello.nonce, desk.name, identity, key)
        if session is not None and hello.run > session.run:  # owner 0 has given it another one
            self.end(identity)
            session = None
        if session is not None:
            session.seen = now
            desk.dispatcher.seen(session.number, now)
            desk.claim(session.number, hello)
            return session, True
        members = (
            PresentTrainer(s.process, s.resumed, s.seen, s.uses and not desk.over)
            for s in self._sessions.of_feed(desk.name)
            if s.present
        )
        desk.resuming.admit(hello, members, now)
        run = desk.run_of(hello, now)
        self.end(identity)
        try:
            session = self._sessions.open(hello.nonce, desk.name, identity, key, name)
        except OSError as error:
            if not is_shortage(error):
                raise
            raise Later(f"the server can open no file for a new trainer now: {error}") from None
        session.seen, session.process, session.resumed = now, hello.process, wanted_by(hello)
        session.host = hello.host[:_LONGEST_HOST]
        desk.farewell.back(hello.nonce)
        try:
            desk.dispatcher.join(session.number, now, hello.rank, hello.world_size, run)
        except JoinRefused:
            self._sessions.leave(session)
            raise
        if run:
            session.run = run
            desk.runs.joined(hello, run)
        # A trainer has a session with each owner: the log names it once.
        level = logging.DEBUG if desk.owner else logging.INFO
        logger.log(level, "%s joined feed %r", session.described, desk.name)
        # The trainer sends unanswered commits again: their batches must not go to others before.
        tokens = dict.fromkeys((*hello.held, *(place.token for place in hello.batches)))
        desk.dispatcher.adopt(session.number, tuple(tokens), now)
        desk.on_hello(session.number, hello)
        return session, False

    def _used(self, session: Session, desk: Desk, hello: Hello) -> Usage | None:
        """Return how far others have used a feed, where a new trainer has to know."""
        if desk.failure is not None or hello.known:
            return None
        usage = desk.usage()
        at_work = any(  # not an earlier cell of the same notebook
            s.uses and s.process != session.process for s in self._sessions.of_feed(desk.name)
        )
        begun = usage.batches and not wanted_by(hello) and not at_work
        return usage if usage.finished or begun else None

    def _desk_of(self, name: str) -> Desk:
        return self.desks[feed_named(name, self.desks)]
