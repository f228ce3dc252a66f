"""Messages to trainers: batches, answers to commits, news of their feed.

    Give to this host    ─► reference ─┐
    Idle, Over, …        ─► as it is ──┼─ a line for each trainer ─► flush() ─► Give, Idle, Over …
    Give to another host ─► bytes ─────┘     answers ride with the next Give

Answers to commits that are stored leave with the trainer's next batch, where that comes soon: no
trainer waits for them while it waits for a batch.

After a Welcome a line waits for the trainer's next message: until then the trainer may turn from
the public address to a channel, and messages must not come by both.

A trainer that keeps batches mapped makes the slab short of room for all.  While it is short,
a trainer that maps more than its share gets bytes, as if it were on another host.

A message leaves by the connection of the trainer: a channel, or the worker's public socket.

The memory of a batch is pinned for as long as its trainer maps it, or its bytes wait to be sent.
A message that can not be sent is dropped: its trainer notices that, and greets again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any

from headrace_proto import messages
from headrace_proto.errors import ProtocolError
from headrace_proto.messages import FROM_SERVER, Answered, Ended, Given, Idle, LetGo, Pulse

from ..leasing.protocol import Answer, Batch, Give
from ..making.slab import map_segment
from ..process.channel_server import ChannelServer, is_channel
from ..process.public_socket import PublicSocket
from .blocks import Blocks
from .served_feed import ServedFeed
from .sessions import Session, SessionTable

logger = logging.getLogger("headrace.trainers")

#: Maximum number of batches in one Give; more may not fit a header.
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


@dataclass(slots=True, eq=False)
class _Bytes:
    """A batch that goes out with its bytes, which are pinned until then."""

    given: Given
    batch: Batch


def given_of(give: Give, frame: int = 0) -> Given:
    """Return the description of a batch: by reference, or by the frame that carries it."""
    batch = give.batch
    body = batch.body
    return Given(
        give.request,
        give.token,
        batch.partition,
        batch.number,
        *batch.turn,
        batch.epoch,
        batch.rows,
        batch.nbytes,
        body.columns,
        batch.place,
        batch.bucket,
        batch.empty,
        "" if frame else body.segment,
        0 if frame else body.offset,
        frame,
        body.crowded and not frame,
        give.live,
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
        self.blocks: Blocks  # set once the slab is there
        self._segments: dict[str, memoryview] = {}  # that were sent from
        self._kept_bytes = self.slab_bytes * _KEPT_SHARE
        self._lines: dict[int, list[Any]] = {}  # what waits for flush(), by session
        self._answers: dict[int, _Answers] = {}  # answers to commits, by session …
        self._due = inf  # … and when the first of them leaves without a batch
        self.awaited: set[int] = set()  # sessions that wait for answers, and for no batch

    def send(self, identity: bytes, message: Any) -> bool:
        """Send a message to a connection; return False where that is gone."""
        header = FROM_SERVER.encode(message)
        if is_channel(identity):
            return self.channels.tell(identity, [header])
        return self.socket.say(identity, header)

    def tell(self, session: Session, message: Any) -> None:
        """Send a message to a trainer, after all that waits for it."""
        self._lines.setdefault(session.number, []).append(message)

    def answer_request(self, message: Answered) -> None:
        """Answer a request of a trainer, if it is still there."""
        session = self.sessions.get(message.session)
        if session is not None and session.present:
            self.tell(session, message)

    # Batches, and answers to commits

    def give(self, session: Session, give: Give) -> None:
        """Send a batch: as a reference to memory that the trainer maps, or as its bytes."""
        batch = give.batch
        body = batch.body
        if body is None:  # an earlier life has made it, and the trainer has it
            logger.error("%s waits for batch %s, which is not here", session.who, batch)
            return
        self.blocks.taken(batch)
        self.blocks.pin(batch)
        session.tally.sent(batch.rows, batch.nbytes)
        line = self._lines.setdefault(session.number, [])
        if session.local and not (body.crowded and self._keeps_too_much(session)):
            if (before := session.mapped.pop(give.token, None)) is not None:
                self.blocks.unpin(before)
                session.again.add(give.token)
            session.mapped[give.token] = batch
            line.append(given_of(give))
            return
        if not session.local:
            session.tally.wire_batches += 1
            session.tally.wire_bytes += batch.nbytes
        line.append(_Bytes(given_of(give, 1), batch))

    def _keeps_too_much(self, session: Session) -> bool:
        return session.mapped_bytes * len(self.sessions) > self._kept_bytes

    def unmap(self, session: Session, token: int) -> None:
        """Note that a trainer does not read a batch any more."""
        if (batch := session.mapped.pop(token, None)) is not None:
            session.again.discard(token)
            self.blocks.unpin(batch)

    def answer(self, session: Session, answer: Answer) -> None:
        """Gather the answers to commits, which leave with the next batch."""
        session.tally.answered(answer)
        number, size = session.number, _ANSWERS_PER_MESSAGE
        for i in range(0, len(answer.committed), size):
            self._gather(session, (answer.committed[i : i + size], (), ()))
        for i in range(0, len(answer.stale), size):
            self._gather(session, ((), answer.stale[i : i + size], ()))
        for token, code, text in answer.faults:
            self._gather(session, ((), (), ((token, code, text[:_LONGEST_FAULT]),)))
        if answer.stale or answer.faults or number in self.awaited:
            self._due = 0.0
        elif self._due == inf:
            self._due = time.monotonic() + _MOMENT_S

    def _gather(self, session: Session, more: _Answers) -> None:
        answers = self._answers.get(session.number)
        if answers is not None:
            tokens = sum(map(len, answers + more))
            faults = len(answers[2]) + len(more[2])
            if tokens > _ANSWERS_PER_MESSAGE or faults > _FAULTS_PER_MESSAGE:
                self.tell(session, messages.Answer(session.number, *answers))
            else:
                more = answers[0] + more[0], answers[1] + more[1], answers[2] + more[2]
        self._answers[session.number] = more

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
        """Send what waits, several batches to a message, and answers that are due."""
        if self._lines:
            for number in list(self._lines):
                session = self.sessions.get(number)
                if session is None or not session.present:
                    self.forget(number)
                elif session.open:
                    self._send_line(session, self._lines.pop(number))
        if self._answers and time.monotonic() >= self._due:
            for number in list(self._answers):
                session = self.sessions.get(number)
                if session is None or session.open:
                    self._send_answers(number, session)
            self._due = time.monotonic() + _MOMENT_S if self._answers else inf

    def _send_line(self, session: Session, line: list[Any]) -> None:
        for kind, of in groupby(line, type):
            items = list(of)
            if kind is Given:
                self._send_references(session, items)
            elif kind is _Bytes:
                for item in items:
                    self._send_bytes(session, item)
            else:
                for message in _joined(items) if kind is Idle else items:
                    self._send(session, message)

    def _send(self, session: Session, message: Any) -> bool:
        if type(message) is Pulse:  # it says how many messages came before it
            message = Pulse(session.number, session.said, message.waiting)
        session.said += 1
        return self.send(session.identity, message)

    def reaches(self, session: Session) -> bool:
        """Probe a trainer's connection; return False where that is gone."""
        return not session.open or self._send(session, Pulse(session.number))

    def _send_references(self, session: Session, items: list[Given]) -> None:
        number = session.number
        for i in range(0, len(items), _PER_MESSAGE):
            part = tuple(items[i : i + _PER_MESSAGE])
            answers = self._answers.pop(number, _NOTHING)
            try:
                self._send(session, messages.Give(number, part, *answers))
            except ProtocolError:  # many columns: the header would be too long
                session.said -= 1
                self._answers[number] = answers
                for item in part:
                    self._send(session, messages.Give(number, (item,)))

    def _send_bytes(self, session: Session, item: _Bytes) -> None:
        session.said += 1
        batch, number = item.batch, session.number
        answers = self._answers.pop(number, _NOTHING)
        header = FROM_SERVER.encode(messages.Give(number, (item.given,), *answers))
        block = self._block_of(batch)
        unpin = partial(self.blocks.unpin, batch)
        if is_channel(session.identity):  # a copy, since the block may be freed before it is read
            most_bytes = self.max_credits * batch.nbytes
            self.channels.send_payload(session.identity, [header, bytes(block)], most_bytes)
            unpin()
        else:
            self.socket.send_block(session.identity, header, block, unpin)

    def _block_of(self, batch: Batch) -> memoryview:
        """Return the memory of a batch."""
        body = batch.body
        memory = self._segments.get(body.segment)
        if memory is None:
            memory = map_segment(self.directory / body.segment).data
            self._segments[body.segment] = memory
        return memory[body.offset : body.offset + batch.nbytes]

    def _send_answers(self, number: int, session: Session | None) -> None:
        answers = self._answers.pop(number, None)
        if answers is not None and session is not None:
            self._send(session, messages.Answer(number, *answers))

    def forget(self, number: int) -> None:
        """Drop the messages to a trainer that is gone, or greets again."""
        for item in self._lines.pop(number, ()):
            if type(item) is _Bytes:
                self.blocks.unpin(item.batch)
        self._answers.pop(number, None)
        self.awaited.discard(number)

    # News of a feed

    def finish(self, feed: str) -> None:
        """Tell the trainers of a feed, once each, that it is done."""
        for session in self.sessions.present():
            if session.feed == feed and session.welcome and not session.knows_end:
                session.knows_end = True
                self.tell(session, Ended(session.number))

    def let_go(self, session: Session) -> None:
        """Have a trainer return what waits to be used: nothing more is handed out."""
        self.tell(session, LetGo(session.number))

    def snapshotted(self, answer: Answered) -> None:
        """Answer a trainer's last snapshot request, and keep the answer for repeats."""
        session = self.sessions.get(answer.session)
        if session is not None and session.snapshot == answer.request:
            session.snapshotted = answer
            self.answer_request(answer)

    def end(self, feed: str, code: str, text: str) -> None:
        """Tell all trainers of a feed that it stops, and why."""
        for session in self.sessions.present():
            if feed == session.feed:
                self.tell(session, Ended(session.number, code, text[:8000]))

    def stop(self, session: Session, feed: ServedFeed, returns: bool) -> None:
        """Tell a trainer that the server stops, and whether another will go on with the feed.

        A trainer of a feed that is over gets its end again.
        """
        session.open = True
        self._send_line(session, self._lines.pop(session.number, []))
        self._send_answers(session.number, session)
        if feed.over:
            code, text = feed.failure or ("", "")
            self._send(session, Ended(session.number, code, text[:8000]))
        text = "the server was stopped"
        self._send(session, Ended(session.number, "lost", text, returns and not feed.over))

    def retire(self, segment: str) -> None:
        """Remove an empty segment, and have trainers unmap it."""
        (self.directory / segment).unlink(missing_ok=True)
        self._segments.pop(segment, None)
        for session in self.sessions.present():
            if session.local:
                self.tell(session, messages.Retired(session.number, (segment,)))


def _joined(idle: list[Idle]) -> list[Idle]:
    """Return one notice for several."""
    requests = tuple(request for one in idle for request in one.requests)
    return [Idle(idle[0].session, requests, tuple(live for one in idle for live in one.live))]
