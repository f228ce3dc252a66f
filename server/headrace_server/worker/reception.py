"""Where trainers are received: what they say in their sessions, which ``admission.py`` opens, and
the ends of these.  Messages to them: outbox.py.

Nothing that a trainer sends can do more than end its own session: a frame that is no message is
counted and answered once, a number that is not the sender's is answered Unknown, and a connection
that only makes work is not listened to any more (``conduct``).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_proto import limits
from headrace_proto.clock import AwakeClock
from headrace_proto.errors import (
    HeadraceError,
    LimitExceeded,
    NotAllowed,
    ProtocolError,
)
from headrace_proto.messages import (
    FROM_TRAINER,
    Attach,
    Bye,
    Ended,
    Hello,
    Pulse,
    Renew,
    Save,
    Step,
    Unknown,
)

from ..process.config import RunConfig
from ..process.exchange import TURN_S, TrainersExchange
from .admission import REVOKED, Admission
from .conduct import Conduct
from .desk import Desk
from .outbox import Outbox
from .rejoining import PUT_BACK
from .relay_door import RelayDoor
from .requests import Requests
from .sessions import Session, SessionTable

__all__ = ["Reception"]

logger = logging.getLogger("headrace.trainers")

#: A trainer that was silent for this many heartbeats is asked whether it is there.
_SILENT = 2.5
#: Messages that a commit counts as which is beyond those that a trainer can have under way.
_OF_FALSE = 10


@dataclass(eq=False)
class Reception:
    """All trainers of all feeds."""

    config: RunConfig
    door: RelayDoor
    desks: Mapping[str, Desk]
    sessions: SessionTable
    outbox: Outbox
    near: TrainersExchange
    clock: AwakeClock
    requests: Requests
    owner: int = 0

    def __post_init__(self) -> None:
        self._conduct = Conduct(
            self.config.max_messages_per_s, self.door.refusals, self.outbox.send
        )
        self._handlers: dict[type, Callable[[Session, Desk, Any, list[bytes]], object]] = {
            Step: self._on_step,
            Renew: self._on_renew,
            Attach: self._on_attach,
            Bye: self._on_bye,
            **self.requests.handlers,
        }
        self._admission = Admission(
            config=self.config,
            owner=self.owner,
            door=self.door,
            desks=self.desks,
            sessions=self.sessions,
            outbox=self.outbox,
            channels=self.near.path,
            clock=self.clock,
            leave=self._leave,
        )

    # In

    def hear(self, burst: int) -> int:
        """Take what trainers have sent by the public socket; how many messages came."""
        for identity in self.door.flooding:
            self._end_flood(identity)
        self.door.flooding.clear()
        until = time.monotonic() + TURN_S
        for heard in range(burst):
            if not self.door.waits() or (heard and time.monotonic() >= until):
                return heard
            key, identity, frames = self.door.receive()
            self._take(identity, frames, key)
        return burst

    def _end_flood(self, identity: bytes) -> None:
        """Listen no more to a connection that sends faster than it can be heard."""
        if identity not in self._conduct.muted:
            session = self.sessions.of_connection(identity)
            who = "a trainer" if session is None else session.who
            error = LimitExceeded("a trainer sends messages faster than they can be handled")
            self._conduct.silence("messages", identity, who, error, self.clock())
            if session is not None:
                self._leave(session, self.desks[session.feed])

    def hear_near(self) -> None:
        """Take what trainers of this host have sent by their channels."""
        for identity, frames in self.near.hear():
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
        session = self.sessions.of_connection(identity)
        who = "a trainer" if session is None else session.who
        self._conduct.bad(identity, who, error, self.clock())
        if session is not None and identity in self._conduct.muted:
            self._leave(session, self.desks[session.feed])

    def _on_message(
        self, identity: bytes, message: Any, frames: list[bytes], key: str | None
    ) -> None:
        if isinstance(message, Hello):
            if key is None:
                raise ProtocolError("a Hello comes by the public address, not by a channel")
            if self._bears(identity):
                self._admission.hear(identity, message, key)
            return
        session = self.sessions.find(message.session, identity)
        if session is None and key is None and isinstance(message, Attach):
            self._on_near(identity, message)
            return
        if session is None:
            if self._bears(identity):
                self.outbox.send(identity, Unknown(message.session))
            return
        session.messages += 1
        if session.messages > self.config.max_messages_per_s:
            self._conduct.is_too_much(session.messages, identity, session.who, self.clock())
            self._leave(session, self.desks[session.feed])
            return
        desk = self.desks[session.feed]
        session.seen = now = self.clock()
        desk.dispatcher.seen(session.number, now)
        self._handlers[type(message)](session, desk, message, frames)

    def _on_renew(self, session: Session, desk: Desk, renew: Renew, frames: list[bytes]) -> None:
        dispatcher = desk.dispatcher
        dispatcher.window(session.number, renew.window)
        dispatcher.renew(session.number, renew.last_seq, frozenset(renew.held), session.seen)
        session.tally.blocked_s, session.tally.busy_s = renew.blocked_s, renew.busy_s
        session.heard_end = renew.ended
        # What the trainer does not map, though it was sent, got lost; or its release did.
        read = frozenset(renew.mapped)
        for token, (seq, _) in list(session.mapped.items()):
            if seq <= renew.mapped_upto and token not in read:
                self._unmap(session, desk, token)
        exhausted = dispatcher.exhausted(session.number, renew.last_seq)
        waits = desk.describe(session.seen)[:1000]
        self.outbox.send(session.identity, Pulse(session.number, waits, exhausted))

    def _on_attach(self, session: Session, desk: Desk, attach: Attach, frames: list[bytes]) -> None:
        self.sessions.attach(session, attach.proof)

    def _on_bye(self, session: Session, desk: Desk, bye: Bye, frames: list[bytes]) -> None:
        logger.info("%s left feed %r", session.who, desk.name)
        self._leave(session, desk)

    def _on_near(self, identity: bytes, attach: Attach) -> None:
        """A trainer of this host comes by a channel from now on."""
        session = None
        if self._bears(identity):
            session = self.sessions.come_near(attach.session, attach.proof, identity)
        if session is None:  # it comes by the public address again, and is told what it is there
            self.near.drop(identity)
            return
        if not session.local:  # it has closed since, or shares no locks: then it greets again
            self._leave(session, self.desks[session.feed])
            return
        # What was sent by the public socket last may come later than what is sent here first.
        self.desks[session.feed].dispatcher.resend(session.number, attach.last_seq)

    def _bears(self, identity: bytes) -> bool:
        """Whether a connection may say one thing more outside of its session."""
        if self._conduct.bears(identity, self.clock()):
            return True
        session = self.sessions.of_connection(identity)
        if session is not None:
            self._leave(session, self.desks[session.feed])
        return False

    def _on_step(self, session: Session, desk: Desk, step: Step, frames: list[bytes]) -> None:
        dispatcher = desk.dispatcher
        excess = len(step.commits) + len(step.saves) - 2 * self.config.max_credits
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
            session.mapped_bytes -= batch.body.nbytes
            desk.dispatcher.unpin(batch, (session.number, token))

    def _leave(self, session: Session, desk: Desk) -> None:
        self.sessions.leave(session)
        self.door.left(session.number, self.clock())
        self.near.drop(session.identity)
        self.outbox.forget(session.number)
        desk.dispatcher.leave(session.number)
        if desk.flight is not None:
            desk.flight.left(session.number)

    def rewound(self, number: int) -> None:
        """A trainer knows of commits that are not in the state: it is told, and sent away."""
        session = self.sessions.get(number)
        if session is not None and session.present:
            text = f"commits of this trainer are not in the state of feed {session.feed!r}: "
            self.outbox.send(session.identity, Ended(number, "rewound", text + PUT_BACK))
            logger.warning("%s of %r: its commits are gone", session.who, session.feed)
            self._leave(session, self.desks[session.feed])

    # Time

    def tick(self, now: float) -> None:
        """Notice trainers that are gone or silent, and those that are to go."""
        self._judge(now)
        for desk in self.desks.values():
            for number in desk.dispatcher.tick(now):
                session = self.sessions.get(number)
                if session is not None:
                    logger.warning("%s of %r is silent: given up", session.who, desk.name)
                    self._leave(session, desk)
        for session in self.sessions.present():
            # A local trainer's lock tells of its death; of others only the connection can.
            silent = now - session.seen > _SILENT * self.config.heartbeat_s
            if (
                silent
                and not session.local
                and not self.outbox.send(session.identity, Pulse(session.number))
            ):
                logger.warning("%s of %r is gone", session.who, session.feed)
                desk = self.desks[session.feed]
                if not session.heard_end:
                    desk.farewell.lost(session.nonce, session.seen)
                self._leave(session, desk)
        for session in self.sessions.dead():
            desk = self.desks[session.feed]
            if session.present:
                logger.warning("%s of %r died", session.who, session.feed)
                self._leave(session, desk)
            for token in list(session.mapped):
                self._unmap(session, desk, token)

    def _judge(self, now: float) -> None:
        """Send away those that send too much, or whose key was taken away."""
        conduct = self._conduct
        if self.door.tick(now):
            for session in self.sessions.present():
                if self.door.name_of(session.key) is None:
                    conduct.silence(
                        "revoked", session.identity, session.who, NotAllowed(REVOKED), now
                    )
                    self._leave(session, self.desks[session.feed])
        if conduct.second_is_over(now):
            for session in self.sessions.present():
                session.messages = 0

    def all_heard(self, desk: Desk, now: float) -> bool:
        """Whether no trainer is waited for that has not heard of the end of its feed."""
        mine = (session for session in self.sessions.present() if session.feed == desk.name)
        deaf = sum(not session.heard_end for session in mine)
        began_ended = desk.durable and not desk.dispatcher.counts["batches"]
        return desk.farewell.done(deaf, now, began_ended)

    def told(self) -> dict[str, Any]:
        """Who is let in, who is there, and who was refused, here and by this process itself."""
        present = Counter(session.name for session in self.sessions.present())
        access = {**self.door.told(), "present": dict(present)}
        return {"access": access, "refused_here": dict(self.door.refusals.counts)}

    def close(self) -> None:
        """The server stops: tell all trainers.

        The next server on its state directory goes on, so trainers are told to wait for it.  Those
        of the program that stops the server are not: nobody else would start it.
        """
        durable = self.config.state_directory is not None
        for session in self.sessions.present():
            returns = durable and session.process != self.config.program
            self.outbox.stop(session, self.desks[session.feed], returns)
