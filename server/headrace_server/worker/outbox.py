"""Messages to trainers: batches, answers to commits, news of their feed.

    Send to this host    ─► reference ─┐
    Answer               ─► answers ───┴─ gathered over a round ─► flush() ─► Deliver, Outcome
    Send to another host ─► Deliver with the answers so far, and the block's bytes as a frame

Answers to commits that are stored leave with the trainer's next batch, where that comes soon: no
trainer waits for them while it waits for a batch.

A trainer that keeps batches mapped makes the slab short of room for all.  While it is short,
a trainer that maps more than its share gets bytes, as if it were on another host.

A message leaves by the connection of the trainer: a channel, or the worker's public socket.

The memory of a batch is pinned for as long as its trainer maps it, or its frame is being sent.
A message that can not be sent now is dropped: the lease, or the trainer's next Hello, repeats it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from headrace_proto import messages
from headrace_proto.errors import ProtocolError
from headrace_proto.messages import (
    FROM_SERVER,
    Answered,
    Deliver,
    Delivery,
    Ended,
    Outcome,
)

from ..core.dispatch_effects import Answer, Batch, Send
from ..making.slab import BlockPlace, map_segment
from ..process.channel_server import ChannelServer, is_channel
from ..process.public_socket import PublicSocket
from .desk import Desk
from .sessions import Session, SessionTable

logger = logging.getLogger("headrace.trainers")

#: Maximum number of items in one Deliver; more may not fit a header.
_PER_MESSAGE = 16
#: Maximum number of answers to commits in one message, and of faults among them, …
_ANSWERS_PER_MESSAGE = 64
_FAULTS_PER_MESSAGE = 8
#: … and length of a fault's text: so all answers fit headers.
_LONGEST_FAULT = 1000
#: Part of the slab that all trainers together may keep mapped once it is short of room, that is
#: half full: so a quarter always remains for new batches.
_KEPT_SHARE = 0.25
#: Time that answers wait for a batch to leave with.
_MOMENT_S = 0.005

_Answers = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, str, str], ...]]
_NOTHING: _Answers = ((), (), ())


def delivery_of(effect: Send, frame: int | None) -> Delivery:
    """Return the message for a batch: a reference, or the number of the frame that carries it."""
    batch = effect.batch
    place: BlockPlace = batch.body
    inline = frame is not None
    meta, at = batch.meta, batch.round
    if at < 0 and batch.turn > batch.number:
        at = batch.turn
    if at >= 0:
        meta = {**meta, "round": at}
    return Delivery(
        effect.seq,
        effect.token,
        batch.partition,
        batch.number,
        batch.rows,
        batch.nbytes,
        place.columns,
        meta,
        "" if inline else place.segment,
        0 if inline else place.offset,
        frame or 0,
        place.crowded and not inline,
        batch.epoch,
    )


@dataclass(eq=False)
class Outbox:
    """The messages to all trainers of all feeds."""

    socket: PublicSocket
    directory: Path
    sessions: SessionTable
    channels: ChannelServer
    slab_bytes: int
    max_credits: int

    def __post_init__(self) -> None:
        self._segments: dict[str, memoryview] = {}  # that were sent from
        self._kept_bytes = self.slab_bytes * _KEPT_SHARE
        self._out: dict[int, list[Delivery]] = {}  # gathered references, by session
        self._answers: dict[int, _Answers] = {}  # answers to commits, by session …
        self._due = inf  # … and when the first of them leaves without a batch
        self.awaited: set[int] = set()  # sessions that wait for answers, and for no batch

    def send(self, identity: bytes, message: Any) -> bool:
        """Send a message to a connection; return False where that is gone."""
        header = FROM_SERVER.encode(message)
        if is_channel(identity):
            return self.channels.tell(identity, [header])
        return self.socket.say(identity, header)

    def tell(self, message: Any) -> None:
        """Send a message to the trainer of its session, if it has one."""
        session = self.sessions.get(message.session)
        if session is not None:
            self.send(session.identity, message)

    # Batches, and answers to commits

    def deliver(self, desk: Desk, effect: Send) -> None:
        """Send a batch: as a reference to memory that the trainer maps, or as its bytes."""
        session = self.sessions.get(effect.session)
        if session is None:
            return
        batch = effect.batch
        place = batch.body
        session.tally.sent(batch.rows, batch.nbytes)
        if session.local and not (place.crowded and self._keeps_too_much(session)):
            session.mapped[effect.token] = (effect.seq, batch)
            desk.dispatcher.pin(batch, (session.number, effect.token))
            self._out.setdefault(session.number, []).append(delivery_of(effect, None))
            return
        if not session.local:
            session.tally.wire_batches += 1
            session.tally.wire_bytes += batch.nbytes
        self._send_references(session, self._out.pop(session.number, []))
        answers = self._answers.pop(session.number, _NOTHING)
        header = FROM_SERVER.encode(Deliver(session.number, (delivery_of(effect, 1),), *answers))
        try:
            block = self._block_of(batch)
        except OSError as error:
            logger.warning("a batch is not sent before its lease has ended: %s", error)
            return
        if is_channel(session.identity):  # a copy, since the block may be freed before it is read
            most_bytes = self.max_credits * batch.nbytes
            self.channels.send_payload(session.identity, [header, bytes(block)], most_bytes)
            return
        frame = object()
        desk.dispatcher.pin(batch, frame)
        unpin = partial(desk.dispatcher.unpin, batch, frame)
        self.socket.send_block(session.identity, header, block, unpin)

    def _keeps_too_much(self, session: Session) -> bool:
        return session.mapped_bytes * len(self.sessions) > self._kept_bytes

    def _block_of(self, batch: Batch) -> memoryview:
        """Return the memory of a batch."""
        place: BlockPlace = batch.body
        memory = self._segments.get(place.segment)
        if memory is None:
            memory = map_segment(self.directory / place.segment).data
            self._segments[place.segment] = memory
        return memory[place.offset : place.offset + batch.nbytes]

    def answer(self, effect: Answer) -> None:
        """Gather the answers to commits, which leave with the next batch."""
        session = self.sessions.get(effect.session)
        if session is not None:
            session.tally.answered(effect)
        size = _ANSWERS_PER_MESSAGE
        for i in range(0, len(effect.committed), size):
            self._gather(effect.session, (effect.committed[i : i + size], (), ()))
        for i in range(0, len(effect.stale), size):
            self._gather(effect.session, ((), effect.stale[i : i + size], ()))
        for token, code, text in effect.faults:
            self._gather(effect.session, ((), (), ((token, code, text[:_LONGEST_FAULT]),)))

    def _gather(self, number: int, more: _Answers) -> None:
        answers = self._answers.get(number)
        if answers is not None:
            tokens = sum(map(len, answers + more))
            faults = len(answers[2]) + len(more[2])
            if tokens > _ANSWERS_PER_MESSAGE or faults > _FAULTS_PER_MESSAGE:
                self.tell(Outcome(number, *answers))
            else:
                more = answers[0] + more[0], answers[1] + more[1], answers[2] + more[2]
        self._answers[number] = more
        if more[1] or more[2] or number in self.awaited:
            self._due = 0.0
        elif self._due == inf:
            self._due = time.monotonic() + _MOMENT_S

    def hurry(self, number: int) -> None:
        """Send the answers to a session without a batch, until its next commit."""
        self.awaited.add(number)
        if number in self._answers:
            self._due = 0.0

    @property
    def due_in_s(self) -> float:
        """Seconds until ``flush`` sends gathered answers."""
        return max(0.0, self._due - time.monotonic()) if self._answers else inf

    def flush(self) -> None:
        """Send references that have gathered, several to a message, and answers that are due."""
        for number, items in self._out.items():
            session = self.sessions.get(number)
            if session is not None:
                self._send_references(session, items)
        self._out.clear()
        if self._answers and time.monotonic() >= self._due:
            for number in list(self._answers):
                self._send_answers(number)
        if not self._answers:
            self._due = inf

    def _send_references(self, session: Session, items: list[Delivery]) -> None:
        number = session.number
        for i in range(0, len(items), _PER_MESSAGE):
            part = tuple(items[i : i + _PER_MESSAGE])
            answers = self._answers.pop(number, _NOTHING)
            try:
                self.send(session.identity, Deliver(number, part, *answers))
            except ProtocolError:  # many columns: the header would be too long
                self._answers[number] = answers
                for item in part:
                    self.send(session.identity, Deliver(number, (item,)))

    def _send_answers(self, number: int) -> None:
        answers = self._answers.pop(number, None)
        if answers is not None:
            self.tell(Outcome(number, *answers))

    def forget(self, number: int) -> None:
        """Drop the messages to a trainer that is gone."""
        self._out.pop(number, None)
        self._answers.pop(number, None)
        self.awaited.discard(number)

    # News of a feed

    def finish(self, number: int) -> None:
        """Tell a trainer that its feed is done."""
        self._send_answers(number)
        self.tell(Ended(number))

    def tell_turn(
        self,
        message: messages.EpochBegun | messages.Following | messages.Idle | messages.Passed,
    ) -> None:
        """Send a trainer a notice about this owner's turn, after its batches."""
        self.flush()
        self.tell(message)

    def snapshotted(self, answer: Answered) -> None:
        """Answer a trainer's last snapshot request, and keep the answer for repeats."""
        session = self.sessions.get(answer.session)
        if session is not None and session.snapshot == answer.request:
            session.snapshotted = answer
            self.send(session.identity, answer)

    def end(self, feed: str, code: str, text: str) -> None:
        """Tell all trainers of a feed that it stops, and why."""
        for session in self.sessions.present():
            if feed == session.feed:
                self._send_answers(session.number)
                self.send(session.identity, Ended(session.number, code, text[:8000]))

    def stop(self, session: Session, desk: Desk, returns: bool) -> None:
        """Tell a trainer that the server stops, and whether another will go on with the feed.

        A trainer of a feed that is over gets its end again.
        """
        self._send_answers(session.number)
        if desk.over:
            code, text = desk.failure or ("", "")
            self.send(session.identity, Ended(session.number, code, text[:8000]))
        text = "the server was stopped"
        self.send(session.identity, Ended(session.number, "lost", text, returns and not desk.over))

    def retire(self, segment: str) -> None:
        """Remove an empty segment, and have trainers unmap it."""
        (self.directory / segment).unlink(missing_ok=True)
        self._segments.pop(segment, None)
        for session in self.sessions.present():
            if session.local:
                self.send(session.identity, messages.Retired(session.number, (segment,)))
