"""Where trainers are received: their sessions, their messages, and what they are sent.

Nothing that a trainer sends can do more than end its own session: a frame that is no message is
counted and answered once, a number that is not the sender's is answered Unknown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from headrace_proto import __version__, limits
from headrace_proto.errors import (
    HeadraceError,
    ProtocolError,
    UnknownFeed,
    VersionMismatch,
    code_of,
)
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Attach,
    Bye,
    Deliver,
    Delivery,
    Drain,
    Drained,
    Ended,
    Flush,
    Flushed,
    Hello,
    Outcome,
    Pulse,
    Refused,
    Renew,
    Retarget,
    Retargeted,
    Retired,
    Save,
    Step,
    Unknown,
    Welcome,
)

from ..core.handover import Answer, JoinRefused, Send
from ..core.segment_dispatch import SegmentDispatcher
from ..feed.slab import map_segment
from .config import RunConfig
from .desk import Desk, delivery_of
from .sessions import Session, SessionTable
from .sockets import waits

__all__ = ["Reception"]

logger = logging.getLogger("headrace.router")

#: Items in one Deliver; more would not fit a header when batches have many columns.
_PER_MESSAGE = 16
#: Answers to commits that are gathered for one message, and faults among them, …
_ANSWERS_PER_MESSAGE = 64
_FAULTS_PER_MESSAGE = 8
#: … whose texts are cut: whatever a trainer says at once, its answers fit headers.
_LONGEST_FAULT = 1000
#: A trainer that was silent for this many heartbeats is asked whether it is there.
_SILENT = 2.5
#: Connections that sent garbage are remembered up to this number, to be answered once only.
_REMEMBERED = 10_000


_Answers = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, str, str], ...]]
_NOTHING: _Answers = ((), (), ())


class Reception:
    """All trainers of all feeds."""

    def __init__(
        self, config: RunConfig, socket: zmq.Socket[bytes], desks: Mapping[str, Desk]
    ) -> None:
        self._config = config
        self._socket = socket
        self._desks = desks
        self._directory = Path(config.directory)
        self._sessions = SessionTable(self._directory)
        self._out: dict[int, list[Delivery]] = {}  # references to be sent, by session
        self._answers: dict[int, _Answers] = {}  # to commits, by session
        self._sending: list[tuple[Any, Desk, Send, tuple[str, int]]] = []
        self._mapped: dict[str, np.ndarray] = {}
        self._garbage: dict[bytes, None] = {}
        self._sends = 0
        self.bad_messages = 0

    # In

    def hear(self, burst: int) -> None:
        """Take what trainers have sent."""
        for _ in range(burst):
            if not waits(self._socket):
                return
            identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            try:
                if not frames or len(frames) > limits.MAX_FRAMES:
                    raise ProtocolError(f"a message has {len(frames)} frames")
                self._on_message(identity, FROM_TRAINER.decode(frames[0]), frames[1:])
            except HeadraceError as error:
                self._on_garbage(identity, error)
            except Exception as error:
                # A fault of ours that a message brought out must not end the others' feeds.
                logger.exception("a trainer's message could not be handled")
                self._on_garbage(identity, HeadraceError(f"{type(error).__name__}: {error}"))

    def _on_garbage(self, identity: bytes, error: HeadraceError) -> None:
        self.bad_messages += 1
        if identity in self._garbage:
            return
        self._garbage[identity] = None
        if len(self._garbage) > _REMEMBERED:
            del self._garbage[next(iter(self._garbage))]
        logger.warning("refused a trainer's message: %s", error)
        self._send(identity, Refused(code_of(error), str(error)[:1000]))

    def _on_message(self, identity: bytes, message: Any, frames: list[bytes]) -> None:
        if isinstance(message, Hello):
            self._on_hello(identity, message)
            return
        session = self._sessions.find(message.session, identity)
        if session is None:
            self._send(identity, Unknown(message.session))
            return
        desk = self._desks[session.feed]
        dispatcher = desk.dispatcher
        now = time.monotonic()
        dispatcher.seen(session.number, now)
        session.seen = now
        if isinstance(message, Step):
            self._on_step(session, desk, message, frames)
        elif isinstance(message, Renew):
            dispatcher.window(session.number, message.window)
            dispatcher.renew(session.number, message.last_seq, frozenset(message.held), now)
            # What the trainer does not map, though it was sent, got lost; or its release did.
            read = frozenset(message.mapped)
            for token, (seq, _) in list(session.mapped.items()):
                if seq <= message.mapped_upto and token not in read:
                    self._unmap(session, desk, token)
            self._send(identity, Pulse(session.number, desk.describe(now)[:1000]))
        elif isinstance(message, Attach):
            self._sessions.attach(session, message.proof)
        elif isinstance(message, Drain):
            desk.close(message.cancel)
            self._send(identity, Drained(session.number))
        elif isinstance(message, Retarget):
            if desk.over:
                self.retargeted(session.number, message.request, [], "the feed has ended")
            else:
                desk.on_retarget(session.number, message.request, message.probs)
        elif isinstance(message, Flush):
            self._on_flush(session, desk, message, frames)
        elif isinstance(message, Bye):
            self._leave(session, desk)

    def _on_hello(self, identity: bytes, hello: Hello) -> None:
        try:
            if not self._desk_of(hello.feed).opened:
                self._send(identity, Pulse(0, "the workers are opening the feed's source"))
                return
            session, resumed = self._admit(identity, hello)
        except (HeadraceError, JoinRefused) as error:
            code = "protocol" if isinstance(error, JoinRefused) else code_of(error)
            self._send(identity, Refused(code, str(error)))
            return
        desk = self._desks[session.feed]
        self._send(
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
                str(self._directory),
                str(session.path),
                resumed,
                desk.properties,
            ),
        )
        if desk.failure is not None:
            self._send(identity, Ended(session.number, *desk.failure))
        elif resumed:
            # A trainer that never heard of this session counts in another.
            ours = hello.known in ("", str(session.path))
            desk.dispatcher.resend(session.number, hello.last_seq if ours else 0)

    def _admit(self, identity: bytes, hello: Hello) -> tuple[Session, bool]:
        oldest, newest = limits.PROTOCOL
        if hello.newest < oldest or hello.oldest > newest:
            raise VersionMismatch(
                f"the trainer (headrace {hello.library}) speaks protocol {hello.oldest} to "
                f"{hello.newest}, the server (headrace {__version__}) {oldest} to {newest}"
            )
        if not 0 < len(hello.nonce) <= 64:
            raise ProtocolError("a Hello carries a nonce of 1 to 64 bytes")
        desk = self._desk_of(hello.feed)
        now = time.monotonic()
        session = self._sessions.resume(hello.nonce, desk.name, identity)
        if session is not None:
            session.seen = now
            desk.dispatcher.seen(session.number, now)
            return session, True
        other = self._sessions.of_connection(identity)
        if other is not None:
            self._leave(other, self._desks[other.feed])
        session = self._sessions.open(hello.nonce, desk.name, identity)
        session.seen = now
        try:
            desk.dispatcher.join(session.number, now, hello.rank, hello.world_size)
        except JoinRefused:
            self._sessions.leave(session)
            raise
        desk.dispatcher.adopt(session.number, hello.held, now)
        desk.on_hello(session.number, hello.batches)
        return session, False

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
        for token in step.released:
            self._unmap(session, desk, token)
        dispatcher.commit(session.number, step.commits)
        for save in step.saves:
            self._on_save(session, desk, save, frames)
        dispatcher.give_back(session.number, step.returned)
        dispatcher.window(session.number, step.window)

    def _on_save(self, session: Session, desk: Desk, save: Save, frames: list[bytes]) -> None:
        """A batch of segments is done."""
        dispatcher = desk.dispatcher
        if not isinstance(dispatcher, SegmentDispatcher) or save.frame > len(frames):
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
            fault = desk.block_fault(batch.rows, save.columns, block)
        if fault:
            dispatcher.refuse(session.number, save.token, "state", fault)
        else:
            # Columns of a block were looked at; of none they may be anything.
            columns = save.columns if block is not None else ()
            dispatcher.save(session.number, save.token, (columns, block))

    def _on_flush(self, session: Session, desk: Desk, flush: Flush, frames: list[bytes]) -> None:
        """A trainer hands over the states of its lanes."""
        fault = ""
        if flush.rows:
            fault = desk.on_flush(session.number, flush, frames[0] if frames else b"")
        if fault:
            self._send(session.identity, Flushed(session.number, flush.request, "state", fault))
        elif not flush.rows and not flush.more:
            self.flushed(session.number, flush.request)

    def flushed(self, number: int, request: int) -> None:
        """The states that a trainer has handed over are kept."""
        session = self._sessions.get(number)
        if session is not None:
            self._send(session.identity, Flushed(number, request))

    def _unmap(self, session: Session, desk: Desk, token: int) -> None:
        """A trainer does not read this batch any more."""
        if token in session.mapped:
            _, batch = session.mapped.pop(token)
            desk.dispatcher.unpin(batch, (session.number, token))

    def _leave(self, session: Session, desk: Desk) -> None:
        self._sessions.leave(session)
        self._out.pop(session.number, None)
        self._answers.pop(session.number, None)
        desk.dispatcher.leave(session.number)

    # Out

    def deliver(self, desk: Desk, effect: Send) -> None:
        """Send a batch: as a reference to memory that the trainer maps, or as its bytes."""
        session = self._sessions.get(effect.session)
        if session is None:
            return
        if session.local:
            session.mapped[effect.token] = (effect.seq, effect.batch)
            desk.dispatcher.pin(effect.batch, (session.number, effect.token))
            self._out.setdefault(session.number, []).append(delivery_of(effect, None))
            return
        told = self._answers.pop(session.number, _NOTHING)
        header = FROM_SERVER.encode(Deliver(session.number, (delivery_of(effect, 1),), *told))
        place = effect.batch.body
        payload = self._segment(place.segment)[place.offset : place.offset + place.nbytes]
        try:
            tracker = self._socket.send_multipart(
                [session.identity, header, payload.data], zmq.NOBLOCK, copy=False, track=True
            )
        except zmq.ZMQError:  # gone, or stuck: its lease or its next Hello will tell
            return
        self._sends += 1
        desk.dispatcher.pin(effect.batch, ("send", self._sends))
        self._sending.append((tracker, desk, effect, ("send", self._sends)))

    def flush(self) -> None:
        """Send the references that have gathered, several to a message."""
        for number, items in self._out.items():
            session = self._sessions.get(number)
            if session is None:
                continue
            for i in range(0, len(items), _PER_MESSAGE):
                part = tuple(items[i : i + _PER_MESSAGE])
                told = self._answers.pop(number, _NOTHING)
                try:
                    self._send(session.identity, Deliver(number, part, *told))
                except ProtocolError:  # many columns: the header would be too long
                    self._answers[number] = told
                    for item in part:
                        self._send(session.identity, Deliver(number, (item,)))
        self._out.clear()
        for number, told in self._answers.items():
            session = self._sessions.get(number)
            if session is not None:
                self._send(session.identity, Outcome(number, *told))
        self._answers.clear()
        if self._sending:
            self._sweep_sends()

    def _sweep_sends(self) -> None:
        still = []
        for entry in self._sending:
            tracker, desk, effect, holder = entry
            if tracker.done:
                desk.dispatcher.unpin(effect.batch, holder)
            else:
                still.append(entry)
        self._sending = still

    def answer(self, effect: Answer) -> None:
        """What became of commits; it goes along with the next batch of this round."""
        size = _ANSWERS_PER_MESSAGE
        for i in range(0, len(effect.committed), size):
            self._gather(effect.session, (effect.committed[i : i + size], (), ()))
        for i in range(0, len(effect.stale), size):
            self._gather(effect.session, ((), effect.stale[i : i + size], ()))
        for token, code, text in effect.faults:
            self._gather(effect.session, ((), (), ((token, code, text[:_LONGEST_FAULT]),)))

    def _gather(self, number: int, more: _Answers) -> None:
        told = self._answers.get(number, _NOTHING)
        tokens = sum(map(len, told + more))
        faults = len(told[2]) + len(more[2])
        if told is not _NOTHING and (tokens > _ANSWERS_PER_MESSAGE or faults > _FAULTS_PER_MESSAGE):
            session = self._sessions.get(number)
            if session is not None:
                self._send(session.identity, Outcome(session.number, *told))
            told = _NOTHING
        self._answers[number] = (told[0] + more[0], told[1] + more[1], told[2] + more[2])

    def finish(self, number: int) -> None:
        """Tell one trainer that its feed is done."""
        session = self._sessions.get(number)
        if session is not None:
            self._send(session.identity, Ended(number))

    def retargeted(self, number: int, request: int, since: list[list[int]], fault: str) -> None:
        """Answer a trainer that wants other proportions of classes."""
        session = self._sessions.get(number)
        if session is not None:
            answer = Retargeted(number, request, sorted(since), fault[:1000])
            self._send(session.identity, answer)

    def end(self, feed: str | None, code: str, text: str) -> None:
        """Tell all trainers of a feed (None: of all) that it stops, and why."""
        for session in self._sessions.present():
            if feed in (None, session.feed):
                self._send(session.identity, Ended(session.number, code, text[:8000]))

    def retire(self, segment: str) -> None:
        """A segment holds nothing any more: it goes from here, and trainers unmap it."""
        self._mapped.pop(segment, None)
        (self._directory / segment).unlink(missing_ok=True)
        for session in self._sessions.present():
            if session.local:
                self._send(session.identity, Retired(session.number, (segment,)))

    def _segment(self, name: str) -> np.ndarray:
        memory = self._mapped.get(name)
        if memory is None:
            memory = self._mapped[name] = map_segment(self._directory / name)
        return memory

    def _send(self, identity: bytes, message: Any) -> bool:
        """Send, or find that the connection is gone.  False then."""
        try:
            self._socket.send_multipart([identity, FROM_SERVER.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    # Time

    def tick(self, now: float) -> None:
        """Notice trainers that are gone or silent."""
        for desk in self._desks.values():
            for number in desk.dispatcher.tick(now):
                session = self._sessions.get(number)
                if session is not None:
                    logger.warning("trainer %d of %r is silent: given up", number, desk.name)
                    self._leave(session, desk)
        for session in self._sessions.present():
            # A local trainer's lock tells of its death; of others only the connection can.
            silent = now - session.seen > _SILENT * self._config.heartbeat_s
            if (
                silent
                and not session.local
                and not self._send(session.identity, Pulse(session.number))
            ):
                logger.warning("trainer %d of %r is gone", session.number, session.feed)
                self._leave(session, self._desks[session.feed])
        for session in self._sessions.dead():
            desk = self._desks[session.feed]
            if session.present:
                logger.warning("trainer %d of %r died", session.number, session.feed)
                self._leave(session, desk)
            for token in list(session.mapped):
                self._unmap(session, desk, token)

    def close(self) -> None:
        """The server stops: say so, and give the words a moment to leave."""
        self.end(None, "lost", "the server was stopped")
        self._socket.linger = 300
