"""Where trainers are received: their sessions, and what they say.  What they are sent: outbox.py.

Nothing that a trainer sends can do more than end its own session: a frame that is no message is
counted and answered once, a number that is not the sender's is answered Unknown, and a connection
that only makes work is not listened to any more (``conduct``).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from headrace_proto import __version__, limits
from headrace_proto.clock import AwakeClock
from headrace_proto.errors import (
    HeadraceError,
    LimitExceeded,
    NotAllowed,
    ProtocolError,
    UnknownFeed,
    VersionMismatch,
    code_of,
)
from headrace_proto.messages import (
    FROM_TRAINER,
    Attach,
    Bye,
    Ended,
    Hello,
    Pulse,
    Refused,
    Renew,
    Save,
    Step,
    Unknown,
    Welcome,
)

from ..core.handover import JoinRefused
from ..core.rewinding import Member
from .conduct import Conduct
from .config import RunConfig
from .descriptors import is_shortage
from .desk import Desk
from .exchange import TURN_S, TrainersExchange
from .outbox import Outbox
from .rejoining import PUT_BACK, Later, wanted_by
from .relay import RelayDoor
from .requests import Requests
from .sessions import Session, SessionTable

__all__ = ["Reception"]

logger = logging.getLogger("headrace.trainers")

#: A trainer that was silent for this many heartbeats is asked whether it is there.
_SILENT = 2.5
#: Refusals of a Hello that are counted.
_COUNTED = {"limit": "trainers", "denied": "revoked"}
_REVOKED = "this trainer's public key is not, or no longer, in trainers/ of the server's keys"
#: Messages that a commit counts as which is beyond those that a trainer can have under way.
_OF_FALSE = 10
#: Of what a trainer says of where it runs.
_LONGEST_HOST = 100


class Reception:
    """All trainers of all feeds."""

    def __init__(
        self,
        config: RunConfig,
        gate: RelayDoor,
        desks: Mapping[str, Desk],
        sessions: SessionTable,
        outbox: Outbox,
        near: TrainersExchange,
        clock: AwakeClock,
        requests: Requests,
        owner: int = 0,
    ) -> None:
        self._owner = owner
        self._clock = clock
        self._config = config
        self._gate = gate
        self._conduct = Conduct(config.max_messages_per_s, gate.refusals, outbox.send)
        self._desks = desks
        self._sessions = sessions
        self._outbox = outbox
        self._near = near
        self._requests = requests

    # In

    def hear(self, burst: int) -> int:
        """Take what trainers have sent by the public socket; how many messages came."""
        for identity in self._gate.flooding:
            self._end_flood(identity)
        self._gate.flooding.clear()
        until = time.monotonic() + TURN_S
        for heard in range(burst):
            if not self._gate.waits() or (heard and time.monotonic() >= until):
                return heard
            key, identity, frames = self._gate.receive()
            self._take(identity, frames, key)
        return burst

    def _end_flood(self, identity: bytes) -> None:
        """Listen no more to a connection that sends faster than it can be heard."""
        if identity not in self._conduct.muted:
            session = self._sessions.of_connection(identity)
            who = "a trainer" if session is None else session.who
            error = LimitExceeded("a trainer sends messages faster than they can be handled")
            self._conduct.silence("messages", identity, who, error, self._clock())
            if session is not None:
                self._leave(session, self._desks[session.feed])

    def hear_near(self) -> None:
        """Take what trainers of this host have sent by their channels."""
        for identity, frames in self._near.hear():
            self._take(identity, frames, None)

    def _take(self, identity: bytes, frames: list[bytes], key: str | None) -> None:
        """A message, by a public key ("" without keys), or (None) by a channel."""
        if identity in self._conduct.muted:
            self._conduct.drop()
            return
        try:
            if not frames or len(frames) > limits.MAX_FRAMES:
                raise ProtocolError(f"a message has {len(frames)} frames")
            self._on_message(identity, FROM_TRAINER.decode(frames[0]), frames[1:], key)
        except HeadraceError as error:
            self._on_garbage(identity, error)
        except Exception as error:
            # A fault of ours that a message brought out must not end the others' feeds.
            logger.exception("a trainer's message could not be handled")
            self._on_garbage(identity, HeadraceError(f"{type(error).__name__}: {error}"))

    def _on_garbage(self, identity: bytes, error: HeadraceError) -> None:
        session = self._sessions.of_connection(identity)
        who = "a trainer" if session is None else session.who
        self._conduct.bad(identity, who, error, self._clock())
        if session is not None and identity in self._conduct.muted:
            self._leave(session, self._desks[session.feed])

    def _on_message(
        self, identity: bytes, message: Any, frames: list[bytes], key: str | None
    ) -> None:
        if isinstance(message, Hello):
            if key is None:
                raise ProtocolError("a Hello comes by the public address, not by a channel")
            if self._bears(identity):
                self._on_hello(identity, message, key)
            return
        session = self._sessions.find(message.session, identity)
        if session is None and key is None and isinstance(message, Attach):
            self._on_near(identity, message)
            return
        if session is None:
            if self._bears(identity):
                self._outbox.send(identity, Unknown(message.session))
            return
        session.messages += 1
        if session.messages > self._config.max_messages_per_s:
            self._conduct.is_too_much(session.messages, identity, session.who, self._clock())
            self._leave(session, self._desks[session.feed])
            return
        desk = self._desks[session.feed]
        dispatcher = desk.dispatcher
        now = self._clock()
        dispatcher.seen(session.number, now)
        session.seen = now
        if isinstance(message, Step):
            self._on_step(session, desk, message, frames)
        elif isinstance(message, Renew):
            dispatcher.window(session.number, message.window)
            dispatcher.renew(session.number, message.last_seq, frozenset(message.held), now)
            session.tally.blocked_s, session.tally.busy_s = message.blocked_s, message.busy_s
            session.heard_end = message.ended
            # What the trainer does not map, though it was sent, got lost; or its release did.
            read = frozenset(message.mapped)
            for token, (seq, _) in list(session.mapped.items()):
                if seq <= message.mapped_upto and token not in read:
                    self._unmap(session, desk, token)
            exhausted = dispatcher.exhausted(session.number, message.last_seq)
            pulse = Pulse(session.number, desk.describe(now)[:1000], exhausted)
            self._outbox.send(identity, pulse)
        elif isinstance(message, Attach):
            self._sessions.attach(session, message.proof)
        elif isinstance(message, Bye):
            logger.info("%s left feed %r", session.who, desk.name)
            self._leave(session, desk)
        else:
            self._requests.hear(session, desk, message, frames)

    def _on_near(self, identity: bytes, attach: Attach) -> None:
        """A trainer of this host comes by a channel from now on."""
        session = None
        if self._bears(identity):
            session = self._sessions.come_near(attach.session, attach.proof, identity)
        if session is None:  # it comes by the public address again, and is told what it is there
            self._near.drop(identity)
            return
        if not session.local:  # it has closed since, or shares no locks: then it greets again
            self._leave(session, self._desks[session.feed])
            return
        # What was sent by the public socket last may come later than what is sent here first.
        self._desks[session.feed].dispatcher.resend(session.number, attach.last_seq)

    def _bears(self, identity: bytes) -> bool:
        """Whether a connection may say one thing more outside of its session."""
        if self._conduct.bears(identity, self._clock()):
            return True
        session = self._sessions.of_connection(identity)
        if session is not None:
            self._leave(session, self._desks[session.feed])
        return False

    def _on_hello(self, identity: bytes, hello: Hello, key: str) -> None:
        try:
            if not self._desk_of(hello.feed).opened:
                self._outbox.send(identity, Pulse(0, "the workers are opening the feed's source"))
                return
            session, resumed = self._admit(identity, hello, key)
        except Later as error:
            self._outbox.send(identity, Pulse(0, str(error)))
            return
        except (HeadraceError, JoinRefused) as error:
            code = "protocol" if isinstance(error, JoinRefused) else code_of(error)
            if code in _COUNTED:
                text = f"refused a trainer: {error}"
                self._gate.refusals.add(_COUNTED[code], "", text, self._clock())
            self._outbox.send(identity, Refused(code, str(error)))
            return
        desk = self._desks[session.feed]
        self._outbox.send(
            identity,
            Welcome(
                limits.PROTOCOL[1],
                __version__,
                session.number,
                desk.name,
                desk.schema or [],
                self._config.heartbeat_s,
                self._config.lease_ttl_s,
                self._config.max_credits,
                self._config.directory,
                str(session.path),
                resumed,
                desk.properties,
                str(self._near.path),
                None if resumed else self._usage_told(session, desk, hello),
                self._owner,
                desk.owners,
                desk.of_feed,
                session.run,
            ),
        )
        if desk.failure is not None:
            self._outbox.send(identity, Ended(session.number, *desk.failure))
        elif resumed:
            # A trainer that never heard of this session counts in another.
            ours = hello.known in ("", str(session.path))
            desk.dispatcher.resend(session.number, hello.last_seq if ours else 0)

    def _admit(self, identity: bytes, hello: Hello, key: str) -> tuple[Session, bool]:
        oldest, newest = limits.PROTOCOL
        if hello.newest < oldest or hello.oldest > newest:
            raise VersionMismatch(
                f"the trainer (headrace {hello.library}) speaks protocol {hello.oldest} to "
                f"{hello.newest}, the server (headrace {__version__}) {oldest} to {newest}"
            )
        if not 0 < len(hello.nonce) <= 64:
            raise ProtocolError("a Hello carries a nonce of 1 to 64 bytes")
        name = self._gate.name_of(key)
        if name is None:
            raise NotAllowed(_REVOKED)
        desk = self._desk_of(hello.feed)
        if hello.owner not in (-1, self._owner) and hello.owner < desk.owners:
            raise ProtocolError(
                f"a Hello names owner {hello.owner}; feed {desk.name!r} has {desk.owners}, and "
                f"this is owner {self._owner}"
            )
        now = self._clock()
        session = self._sessions.resume(hello.nonce, desk.name, identity, key)
        if session is not None:
            session.seen = now
            desk.dispatcher.seen(session.number, now)
            desk.claim(session.number, hello)
            return session, True
        members = (
            Member(s.process, s.resumed, s.seen, s.uses and not desk.over)
            for s in self._sessions.of_feed(desk.name)
            if s.present
        )
        desk.rejoining.admit(hello, members, now)
        run = desk.run_of(hello, now)
        other = self._sessions.of_connection(identity)
        if other is not None:
            self._leave(other, self._desks[other.feed])
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
            desk.runs.joined(hello.nonce, hello.rank, hello.world_size, run)
        logger.info("%s joined feed %r", session.described, desk.name)
        # Commits that were not answered are said again: what they are of is not to go out before.
        tokens = dict.fromkeys((*hello.held, *(place.token for place in hello.batches)))
        desk.dispatcher.adopt(session.number, tuple(tokens), now)
        desk.on_hello(session.number, hello)
        if desk.flight is not None:
            desk.flight.joined(session.number, hello)
        return session, False

    def _usage_told(self, session: Session, desk: Desk, hello: Hello) -> tuple[Any, ...] | None:
        """How far others have used a feed, where a trainer that is new to it has to know."""
        usage = desk.usage()
        told = usage.finished, usage.batches, usage.since, usage.until
        if desk.failure is not None or hello.known:
            return None
        at_work = any(  # an earlier cell of a notebook is not, though it may not have left
            s.uses and s.process != session.process for s in self._sessions.of_feed(desk.name)
        )
        if usage.finished or (usage.batches and not wanted_by(hello) and not at_work):
            return told
        return None

    def _desk_of(self, name: str) -> Desk:
        if not name and len(self._desks) == 1:
            return next(iter(self._desks.values()))
        desk = self._desks.get(name)
        if desk is None:
            listed = ", ".join(sorted(map(repr, self._desks)))
            what = f"there is no feed {name!r}" if name else "feed= is needed"
            raise UnknownFeed(f"{what}; this server has {listed}")
        return desk

    def _on_step(self, session: Session, desk: Desk, step: Step, frames: list[bytes]) -> None:
        dispatcher = desk.dispatcher
        excess = len(step.commits) + len(step.saves) - 2 * self._config.max_credits
        if excess > 0:  # of batches that it can not have: each costs a look, and an answer
            session.messages += _OF_FALSE * excess
        for token in step.released:
            self._unmap(session, desk, token)
        if step.commits or step.saves:
            desk.touched()
        dispatcher.commit(session.number, step.commits)
        for save in step.saves:
            self._on_save(session, desk, save, frames)
        dispatcher.give_back(session.number, step.returned)
        dispatcher.window(session.number, step.window)

    def _on_save(self, session: Session, desk: Desk, save: Save, frames: list[bytes]) -> None:
        """A batch of segments is done."""
        dispatcher = desk.dispatcher
        if not dispatcher.stateful or save.frame > len(frames):
            raise ProtocolError(
                f"states came for {desk.name!r} in frame {save.frame}, which is none"
            )
        batch = dispatcher.leased_batch(session.number, save.token)
        block = frames[save.frame - 1] if save.frame else None
        fault = ""
        if batch is not None and (block is None) != desk.states_stay:
            fault = "the states of this feed " + (
                "stay with the trainer" if desk.states_stay else "are missing"
            )
        elif batch is not None and block is not None:
            fault = desk.states.fault_of_block(batch.rows, save.columns, block)
        if fault:
            dispatcher.refuse(session.number, save.token, "state", fault)
        else:
            # Columns of a block were looked at; of none they may be anything.
            columns = save.columns if block is not None else ()
            dispatcher.save(session.number, save.token, (columns, block))

    def _unmap(self, session: Session, desk: Desk, token: int) -> None:
        """A trainer does not read this batch any more."""
        if token in session.mapped:
            _, batch = session.mapped.pop(token)
            desk.dispatcher.unpin(batch, (session.number, token))

    def _leave(self, session: Session, desk: Desk) -> None:
        self._sessions.leave(session)
        self._gate.left(session.number, self._clock())
        self._near.drop(session.identity)
        self._outbox.forget(session.number)
        desk.dispatcher.leave(session.number)
        if desk.flight is not None:
            desk.flight.left(session.number)

    def rewound(self, number: int) -> None:
        """A trainer knows of commits that are not in the state: it is told, and sent away."""
        session = self._sessions.get(number)
        if session is not None and session.present:
            text = f"commits of this trainer are not in the state of feed {session.feed!r}: "
            self._outbox.send(session.identity, Ended(number, "rewound", text + PUT_BACK))
            logger.warning("%s of %r: its commits are gone", session.who, session.feed)
            self._leave(session, self._desks[session.feed])

    # Time

    def tick(self, now: float) -> None:
        """Notice trainers that are gone or silent, and those that are to go."""
        self._judge(now)
        for desk in self._desks.values():
            for number in desk.dispatcher.tick(now):
                session = self._sessions.get(number)
                if session is not None:
                    logger.warning("%s of %r is silent: given up", session.who, desk.name)
                    self._leave(session, desk)
        for session in self._sessions.present():
            # A local trainer's lock tells of its death; of others only the connection can.
            silent = now - session.seen > _SILENT * self._config.heartbeat_s
            if (
                silent
                and not session.local
                and not self._outbox.send(session.identity, Pulse(session.number))
            ):
                logger.warning("%s of %r is gone", session.who, session.feed)
                desk = self._desks[session.feed]
                if not session.heard_end:
                    desk.farewell.lost(session.nonce, session.seen)
                self._leave(session, desk)
        for session in self._sessions.dead():
            desk = self._desks[session.feed]
            if session.present:
                logger.warning("%s of %r died", session.who, session.feed)
                self._leave(session, desk)
            for token in list(session.mapped):
                self._unmap(session, desk, token)

    def _judge(self, now: float) -> None:
        """Send away those that send too much, or whose key was taken away."""
        conduct = self._conduct
        if self._gate.tick(now):
            for session in self._sessions.present():
                if self._gate.name_of(session.key) is None:
                    conduct.silence(
                        "revoked", session.identity, session.who, NotAllowed(_REVOKED), now
                    )
                    self._leave(session, self._desks[session.feed])
        if conduct.second_is_over(now):
            for session in self._sessions.present():
                session.messages = 0

    def all_heard(self, desk: Desk, now: float) -> bool:
        """Whether no trainer is waited for that has not heard of the end of its feed."""
        mine = (session for session in self._sessions.present() if session.feed == desk.name)
        deaf = sum(not session.heard_end for session in mine)
        began_ended = desk.durable and not desk.dispatcher.counts["batches"]
        return desk.farewell.done(deaf, now, began_ended)

    def told(self) -> dict[str, Any]:
        """Who is let in, who is there, and who was refused, here and by this process itself."""
        present = Counter(session.name for session in self._sessions.present())
        access = {**self._gate.told(), "present": dict(present)}
        return {"access": access, "refused_here": dict(self._gate.refusals.counts)}

    def close(self) -> None:
        """The server stops: tell all trainers.

        The next server on its state directory goes on, so trainers are told to wait for it.  Those
        of the program that stops the server are not: nobody else would start it.
        """
        durable = self._config.state_directory is not None
        for session in self._sessions.present():
            returns = durable and session.process != self._config.program
            self._outbox.stop(session, self._desks[session.feed], returns)
