"""The reception: trainers' messages in their sessions, and the ends of sessions.

    channels, socket ─► _take ─┬─ Hello ─► admission.py: opens a session
                              ├─ of a session ─► the handler of the message's type
                              └─ neither ─► Unknown, or garbage: rate_limits.py

A message can do no more harm than end its sender's own session: bytes that are no message are
counted and answered once, a session number that is not the sender's is answered Unknown, and a
connection that only makes work is muted.  Messages to trainers leave by outbox.py.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_proto import limits
from headrace_proto.channel import Frame
from headrace_proto.clock import AwakeClock
from headrace_proto.errors import (
    HeadraceError,
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
from headrace_proto.state_buffers import (
    FIRST_BUFFER,
    MOST,
    MOST_BYTES,
    PROOF_BYTES,
    file_bytes,
    mapped,
)

from ..process.channel_server import TURN_S
from ..process.config import RunConfig
from ..process.rate_limits import RateLimits
from ..process.refusals import fault_of_message
from .admission import REVOKED, Admission
from .desk import Desk
from .outbox import Outbox
from .requests import FeedRequests
from .resuming import PUT_BACK
from .returning import Returning
from .sessions import Session

logger = logging.getLogger("headrace.trainers")

#: Maximum number of sessions with buffers, since a mapping takes a descriptor.
_MOST_SESSIONS = 64
#: A session takes at most this part of the shared memory that is free: slabs and journals need it.
_OF_FREE = 16


class BufferBudget:
    """The sessions that have buffers, and bounds of their memory.

        a trainer attaches ─► open: its file grows, and is mapped ─► saves ─► it is gone: close

    The trainer can write to a buffer at any time.  So nothing is read from it but numbers of
    states: their dtypes, shapes and offsets are in the Save, and strings come as frames.  Read-only
    mappings end with the last array that shows them, so a save that waits for its partition stays
    readable.
    """

    def __init__(self, most_bytes: int) -> None:
        """``most_bytes`` bounds the buffers of all sessions together."""
        self._left = most_bytes
        self._bytes: dict[int, int] = {}  # by session

    def open(self, session: Session, each: int) -> None:
        """Give a session that attaches for the first time buffers of ``each`` bytes that fit.

        Later its trainer may have mapped the file, which must not become shorter then.
        """
        if session.buffers is not None:
            return
        session.buffers = ()
        if not each or len(self._bytes) >= _MOST_SESSIONS:
            return
        space = os.fstatvfs(session.file)
        free = space.f_bavail * space.f_frsize
        most = min(MOST_BYTES, self._left, free // _OF_FREE)
        count = min(MOST, (most - file_bytes(0, each)) // each)
        if count < 1:
            return
        nbytes = file_bytes(count, each)
        try:
            os.posix_fallocate(session.file, 0, nbytes)
            session.buffers = [buffer.data for buffer in mapped(session.file, each)]
        except OSError:  # too little shared memory, or no descriptor is free
            os.ftruncate(session.file, PROOF_BYTES)
            return
        self._bytes[session.number] = nbytes
        self._left -= nbytes

    def close(self, session: Session) -> None:
        """Take the buffers of a session back, whose trainer does not use them any more."""
        session.buffers = ()
        self._left += self._bytes.pop(session.number, 0)


#: Heartbeats that may be missed before the owner probes a trainer's connection.
_SILENT = 2.5
#: State buffers take at most the slab's bytes divided by this, in addition to them.
_OF_SLAB = 8
#: Weight, in messages, of each commit beyond those that a trainer can have under way.
_OF_FALSE = 10


@dataclass(eq=False)
class Reception:
    """All trainers of all feeds."""

    config: RunConfig
    desks: Mapping[str, Desk]
    outbox: Outbox
    clock: AwakeClock
    requests: FeedRequests
    returning: Returning
    owner: int = 0
    #: Returns the user function in which the worker has been for long, in words.
    inside: Callable[[], str] = lambda: ""

    def __post_init__(self) -> None:
        outbox = self.outbox
        self._socket, self._channels = outbox.socket, outbox.channels
        self._sessions = outbox.sessions
        self._budget = BufferBudget(self.config.slab_bytes // _OF_SLAB)
        self._limits = RateLimits(
            most=self.config.max_messages_per_s,
            refusals=self._socket.refusals,
            send=outbox.send,
            end=self._end,
        )
        self._handlers: dict[type, Callable[[Session, Desk, Any, Sequence[Frame]], object]] = {
            Step: self._on_step,
            Renew: self._on_renew,
            Attach: self._on_attach,
            Bye: self._on_bye,
            **self.requests.handlers,
        }
        self._admission = Admission(
            config=self.config,
            owner=self.owner,
            desks=self.desks,
            outbox=outbox,
            clock=self.clock,
            returning=self.returning,
            end=self._end,
        )

    # In

    def hear_socket(self, burst: int) -> None:
        """Handle messages of trainers on other hosts, and greetings."""
        until = time.monotonic() + TURN_S
        for heard in range(burst):
            if not self._socket.waits or (heard and time.monotonic() >= until):
                return
            try:
                key, identity, frames = self._socket.receive()
            except Exception as error:  # no message ends the process
                self._socket.refuse(error, self.clock())
                continue
            self._take(identity, frames, key)

    def hear_channels(self) -> None:
        """Handle messages of trainers of this host, which came by their channels."""
        for identity, frames in self._channels.hear():
            self._take(identity, frames, None)

    def opened(self) -> None:
        """Answer the greetings that came before the feeds were open."""
        self.returning.opened(self.clock())
        self._admission.opened()

    def _take(self, identity: bytes, frames: Sequence[Frame], key: str | None) -> None:
        """Handle a message that came by a public key ("" without keys), or (None) a channel."""
        if identity in self._limits.muted:
            self._limits.drop()
            return
        try:
            if not frames or len(frames) > limits.MAX_FRAMES:
                raise ProtocolError(f"a message has {len(frames)} frames")
            self._on_message(identity, FROM_TRAINER.decode(frames[0]), frames[1:], key)
        except HeadraceError as error:
            self._limits.bad(identity, self._who(identity), error, self.clock())
        except Exception as fault:  # it must not end the feeds of other trainers
            who, said = self._who(identity), fault_of_message(fault)
            self._limits.silence("fault", identity, who, said, self.clock(), fault)

    def _who(self, identity: bytes) -> str:
        session = self._sessions.of_connection(identity)
        return "a trainer" if session is None else session.who

    def _on_message(
        self, identity: bytes, message: Any, frames: Sequence[Frame], key: str | None
    ) -> None:
        if isinstance(message, Hello):
            if key is None:
                raise ProtocolError("a Hello comes by the public address, not by a channel")
            if self._limits.bears(identity, self.clock()):
                self._admission.hear(identity, message, key, self._socket.last_came_by)
            return
        session = self._sessions.find(message.session, identity)
        if session is None and key is None and isinstance(message, Attach):
            self._on_channel(identity, message)
            return
        if session is None:
            if self._limits.bears(identity, self.clock()):
                self.outbox.send(identity, Unknown(message.session))
            return
        session.messages += 1
        if session.messages > self.config.max_messages_per_s:
            self._limits.is_too_much(session.messages, identity, session.who, self.clock())
            return
        desk = self.desks[session.feed]
        session.seen = now = self.clock()
        desk.dispatcher.seen(session.number, now)
        self._handlers[type(message)](session, desk, message, frames)

    def _on_renew(
        self, session: Session, desk: Desk, renew: Renew, frames: Sequence[Frame]
    ) -> None:
        dispatcher = desk.dispatcher
        dispatcher.window(session.number, renew.window)
        dispatcher.renew(session.number, renew.last_seq, frozenset(renew.held), session.seen)
        self.requests.hurry(session)
        session.tally.on_renew(renew)
        session.heard_end = renew.ended
        # A sent batch that is not mapped was lost on its way, or its release was lost.
        read = frozenset(renew.mapped)
        for token, (seq, _) in list(session.mapped.items()):
            if seq <= renew.mapped_upto and token not in read:
                self._unmap(session, desk, token)
        exhausted = dispatcher.exhausted(session.number, renew.last_seq)
        waits = "; ".join(filter(None, (self.inside(), desk.describe(session.seen))))[:1000]
        self.outbox.send(session.identity, Pulse(session.number, waits, exhausted))

    def _on_attach(
        self, session: Session, desk: Desk, attach: Attach, frames: Sequence[Frame]
    ) -> None:
        self._sessions.attach(session, attach.proof)
        self._give_buffers(session, desk)

    def _on_bye(self, session: Session, desk: Desk, bye: Bye, frames: Sequence[Frame]) -> None:
        level = logging.DEBUG if desk.owner else logging.INFO
        logger.log(level, "%s left feed %r", session.who, desk.name)
        self._leave(session)

    def _on_channel(self, identity: bytes, attach: Attach) -> None:
        """Reach a trainer of this host by its new channel from now on."""
        session = None
        if self._limits.bears(identity, self.clock()):
            session = self._sessions.come_by_channel(attach.session, attach.proof, identity)
        if session is None:  # it greets by the public address again
            self._channels.drop(identity)
            return
        # it has closed since, or its locks are not visible here: it greets again
        if not session.local:
            self._leave(session)
            return
        desk = self.desks[session.feed]
        self._give_buffers(session, desk)
        # The last messages by the public socket may arrive after the first ones by the channel.
        desk.dispatcher.resend(session.number, attach.last_seq)

    def _give_buffers(self, session: Session, desk: Desk) -> None:
        if session.local:
            self._budget.open(session, desk.states.buffer_bytes)

    def _on_step(self, session: Session, desk: Desk, step: Step, frames: Sequence[Frame]) -> None:
        dispatcher = desk.dispatcher
        excess = len(step.commits) + len(step.saves) - 2 * self.config.max_credits
        if excess > 0:  # more commits than it can have batches
            session.messages += _OF_FALSE * excess
        for token in step.released:
            self._unmap(session, desk, token)
        if step.commits or step.saves:
            desk.touched()
            self.outbox.awaited.discard(session.number)
        if step.commits:
            dispatcher.commit(session.number, step.commits)
        for save in step.saves:
            self._on_save(session, desk, save, frames)
        if step.returned:
            dispatcher.give_back(session.number, step.returned)
        dispatcher.window(session.number, step.window)

    def _on_save(self, session: Session, desk: Desk, save: Save, frames: Sequence[Frame]) -> None:
        """Commit a batch of segments, if its states are valid."""
        dispatcher = desk.dispatcher
        shared = save.frame >= FIRST_BUFFER
        blocks = (session.buffers or ()) if shared else frames
        number = save.frame - (FIRST_BUFFER if shared else 1)
        if not dispatcher.stateful or number >= len(blocks):
            where = f"buffer {number}" if shared else f"frame {save.frame}"
            raise ProtocolError(f"states came for {desk.name!r} in {where}, which is none")
        block = blocks[number] if number >= 0 else None
        batch = dispatcher.leased_batch(session.number, save.token)
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
            # The columns of a block are checked; without a block they may be anything.
            columns = save.columns if block is not None else ()
            dispatcher.save(session.number, save.token, (columns, block))

    def _unmap(self, session: Session, desk: Desk, token: int) -> None:
        """Note that a trainer does not read a batch any more."""
        if token in session.mapped:
            _, batch = session.mapped.pop(token)
            desk.dispatcher.unpin(batch, (session.number, token))

    def _end(self, identity: bytes) -> None:
        """End the session of a connection, if it has one."""
        session = self._sessions.of_connection(identity)
        if session is not None:
            self._leave(session)

    def _leave(self, session: Session) -> None:
        desk = self.desks[session.feed]
        self._sessions.leave(session)
        self._socket.left(session.number, self.clock())
        self.returning.left(session.nonce)
        self._channels.drop(session.identity)
        self.outbox.forget(session.number)
        desk.dispatcher.leave(session.number)
        desk.counters.on_left(session.tally)

    def rewound(self, number: int) -> None:
        """Send a trainer away whose acknowledged commits are not in the state."""
        session = self._sessions.get(number)
        if session is not None and session.present:
            text = f"commits of this trainer are not in the state of feed {session.feed!r}: "
            self.outbox.send(session.identity, Ended(number, "rewound", text + PUT_BACK))
            logger.warning("%s of %r: its commits are gone", session.who, session.feed)
            self._leave(session)

    # Time

    def tick(self, now: float) -> None:
        """End the sessions of trainers that are gone, silent or banned."""
        self._judge(now)
        for desk in self.desks.values():
            for number in desk.dispatcher.tick(now):
                session = self._sessions.get(number)
                if session is not None:
                    logger.warning("%s of %r is silent: given up", session.who, desk.name)
                    self._leave(session)
        for session in self._sessions.present():
            # The lock of a local trainer shows its death; of others only the connection can.
            silent = now - session.seen > _SILENT * self.config.heartbeat_s
            if (
                silent
                and not session.local
                and not self.outbox.send(session.identity, Pulse(session.number))
            ):
                logger.warning("%s of %r is gone", session.who, session.feed)
                if not session.heard_end:
                    self.desks[session.feed].farewell.lost(session.nonce, session.seen)
                self._leave(session)
        for session in self._sessions.dead():
            desk = self.desks[session.feed]
            if session.present:
                logger.warning("%s of %r died", session.who, session.feed)
                self._leave(session)
            for token in list(session.mapped):
                self._unmap(session, desk, token)
            self._budget.close(session)

    def _judge(self, now: float) -> None:
        """End sessions with revoked keys, and begin another second of message counts."""
        limits = self._limits
        if self._socket.tick(now):
            for session in self._sessions.present():
                if self._socket.name_of(session.key) is None:
                    error = NotAllowed(REVOKED)
                    limits.silence("revoked", session.identity, session.who, error, now)
        if limits.second_is_over(now):
            for session in self._sessions.present():
                session.messages = 0

    def all_heard(self, desk: Desk, now: float) -> bool:
        """Return whether all trainers have acknowledged the end of a feed, or are given up."""
        mine = (session for session in self._sessions.present() if session.feed == desk.name)
        deaf = sum(not session.heard_end for session in mine)
        began_ended = desk.durable and not desk.dispatcher.counts["batches"]
        return desk.farewell.done(deaf, now, began_ended)

    def access(self) -> dict[str, dict[str, int]]:
        """Return the trainers that are present, and counts of refusals by this process."""
        present = Counter(session.name for session in self._sessions.present())
        refused = dict(self._socket.refusals.counts)
        return {"refused": refused, "present": dict(present)}

    def close(self) -> None:
        """Tell all trainers that the server stops.

        The next server on the state directory goes on, so trainers wait for it.  Those in the
        program that stops the server do not, since only that program would start another.
        """
        durable = self.config.state_directory is not None
        for session in self._sessions.present():
            returns = durable and session.process != self.config.program
            self.outbox.stop(session, self.desks[session.feed], returns)
            if not returns:  # the next start of the server does not wait for it
                self.returning.left(session.nonce)
