"""Messages to trainers: batches, answers to commits, news of their feed.

    batches, Idle, Over … ─► a line for each trainer ─► flush() ─► references to memory, or bytes
    answers ─► gathered ─► leave with the next batch, or by themselves

Answers to commits that are stored leave with the trainer's next batch, where that comes soon: no
trainer waits for them while it waits for a batch.  The heartbeat of one that waits for answers
alone asks for them.

After a Welcome a line waits for the trainer's next message: until then the trainer may turn from
the public address to a channel, and messages must not come by both.

A message leaves by the connection of the trainer: a channel, or the worker's public socket.
Whether a batch leaves as a reference or as bytes is decided then: by that time the trainer has said
whether it shares this host's memory.

The memory of a batch is pinned for as long as its trainer maps it, or its bytes wait to be sent.
A message that can not be sent is dropped: its trainer notices that, and greets again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import inf

from headrace_proto.limits import MAX_HEADER_BYTES
from headrace_proto.messages import FROM_SERVER, Answered, Ended, Give, Idle, LetGo, Pulse
from headrace_proto.step_messages import Answers, pack_give, pack_given

from ..leasing.words import Batch
from ..net.channel_server import ChannelServer, is_channel
from ..net.public_socket import PublicSocket
from .blocks import Blocks
from .served_feed import ServedFeed
from .sessions import Session, SessionTable

logger = logging.getLogger("headrace.trainers")

#: A batch waits for others to leave with it, at most so long and up to bytes that caches hold.
_GATHER_S, _GATHER_BYTES = 0.001, 6 << 20
#: Maximum number of batches in one Give; more may not fit a header.
_PER_MESSAGE = 16
#: Maximum number of answers to commits in one message, and of faults among them, …
_ANSWERS_PER_MESSAGE = 64
_FAULTS_PER_MESSAGE = 8
#: … and length of a fault's text: so all answers fit headers.
_LONGEST_FAULT = 1000
#: Time that answers wait for a batch to leave with: most steps of training take less …
_MOMENT_S = 0.25
#: … and to a trainer with state buffers, each of which it uses again once its commit is answered.
_BUFFERS_S = 0.005


#: A batch in a session's line: request, token, the batch, and whether its lanes go on.
_Leased = tuple[int, int, Batch, bool]


def _packed(leased: _Leased, segment: bytes = b"") -> bytes:
    """Return a batch as a message has it: by its place in a segment, or by the frame with it."""
    request, token, batch, live = leased
    body = batch.body
    place = (body.block.offset, 0, body.crowded) if segment else (0, 1, False)
    numbers = (
        *(request, token, batch.partition, batch.number, *batch.turn, batch.epoch, batch.rows),
        *(batch.nbytes, batch.bucket, *place, live),
    )
    return pack_given(numbers, body.columns, batch.place, segment)


@dataclass(eq=False)
class Outbox:
    """The messages to all trainers of all feeds."""

    socket: PublicSocket
    sessions: SessionTable
    channels: ChannelServer

    def __post_init__(self) -> None:
        self.blocks: Blocks  # set once the slab is there
        self.lines: dict[Session, None] = {}  # sessions with a line that waits for flush()
        self._answers: dict[Session, float] = {}  # and when answers leave without a batch …
        self.due_at = inf  # … the first of them
        self._gather_until = 0.0
        self._gathered_bytes = 0

    def send(self, identity: bytes, message: object) -> bool:
        """Send a message to a connection; return False if that is gone."""
        return self._send_header(identity, FROM_SERVER.encode(message))

    def _send_header(self, identity: bytes, header: bytes) -> bool:
        if is_channel(identity):
            return self.channels.send(identity, [header])
        return self.socket.send(identity, header)

    def send_to(self, session: Session, message: object) -> None:
        """Send a message to a trainer, after its queued batches and answers."""
        session.line.append(message)
        self.lines[session] = None

    def answer_request(self, message: Answered) -> None:
        """Answer a request of a trainer, if its session still exists."""
        session = self.sessions.get(message.session)
        if session is not None and session.present:
            self.send_to(session, message)

    # Batches, and answers to commits

    def give(self, session: Session, batch: Batch, live: bool) -> None:
        """Send a batch, whose bytes are pinned until it is sent or its trainer has read it."""
        if (body := batch.body) is None:  # an earlier life has made it, and the trainer has it
            logger.error("%s waits for batch %s, which is not here", session.who, batch)
            return
        nbytes = batch.nbytes
        body.pins += 1  # until ``Blocks.unpin``
        if not body.taken:
            body.taken = True
            body.made.taken += 1
            body.made.taken_bytes += nbytes
        tally = session.tally
        tally.batches += 1
        tally.rows += batch.rows
        tally.bytes += nbytes
        self._gathered_bytes += nbytes
        session.line.append((batch.request, batch.token, batch, live))
        self.lines[session] = None

    def gathers(self) -> bool:
        """Return whether the queued batches can wait for another one."""
        now = time.monotonic()
        if not self.lines:
            self._gather_until, self._gathered_bytes = now + _GATHER_S, 0
        return now < self._gather_until and self._gathered_bytes < _GATHER_BYTES

    def _map_again(self, session: Session, token: int) -> None:
        """Note that a batch is sent again that its trainer may still map."""
        self.blocks.unpin(session.mapped.pop(token))
        session.again.add(token)

    def unmap(self, session: Session, token: int) -> None:
        """Note that a trainer does not map a batch any more."""
        if (batch := session.mapped.pop(token, None)) is not None:
            session.again.discard(token)
            self.blocks.unpin(batch)

    def answer(
        self,
        session: Session,
        committed: Sequence[int] = (),
        stale: Sequence[int] = (),
        faults: Sequence[tuple[int, str, str]] = (),
    ) -> None:
        """Queue answers to commits; they are sent with the next batch."""
        if not session.present:
            return
        session.tally.answered(committed, stale, faults)
        session.committed += committed
        session.stale += stale
        session.faults += [(token, code, text[:_LONGEST_FAULT]) for token, code, text in faults]
        wait_s = _BUFFERS_S if session.buffers else _MOMENT_S
        if stale or faults or session.awaits:
            wait_s = 0.0
        self._send_within(session, wait_s)

    def _send_within(self, session: Session, wait_s: float) -> None:
        due = min(time.monotonic() + wait_s, self._answers.get(session, inf))
        self._answers[session] = due
        self.due_at = min(self.due_at, due)

    def hurry(self, session: Session) -> None:
        """Send the answers to a session without a batch, until its next commit."""
        session.awaits = True
        if session in self._answers:
            self._send_within(session, 0.0)

    def flush(self) -> None:
        """Send the queued batches, several in a message, and the due answers."""
        for session in list(self.lines) if self.lines else ():
            if not session.present:
                self.forget(session)
            elif session.open:
                self._send_line(session)
        if self.due_at == inf or (now := time.monotonic()) < self.due_at:
            return
        for session, due in list(self._answers.items()):
            if not session.open:
                self._answers[session] = now + _MOMENT_S
            elif due <= now:
                self._send_answers(session)
        self.due_at = min(self._answers.values(), default=inf)

    def _send_line(self, session: Session) -> None:
        self.lines.pop(session, None)
        line, session.line = session.line, []
        if session.local and set(map(type, line)) == {tuple}:  # as mostly
            self._send_references(session, line)
            return
        for kind, of in groupby(line, type):
            items = list(of)
            if kind is tuple and session.local:
                self._send_references(session, items)
            elif kind is tuple:
                for leased in items:
                    self._send_bytes(session, leased)
            else:
                for message in _joined(items) if kind is Idle else items:
                    self._send(session, message)

    def _send(self, session: Session, message: object) -> bool:
        if type(message) is Pulse:  # it says how many messages came before it
            message = Pulse(session.number, session.said, message.waiting)
        session.said += 1
        return self.send(session.identity, message)

    def reaches(self, session: Session) -> bool:
        """Probe a trainer's connection; return False where that is gone."""
        known = session.welcome or session.open  # the latter alone: it is to greet again
        return not known or self._send(session, Pulse(session.number))

    def _send_references(self, session: Session, items: list[_Leased]) -> None:
        packed, segment = [], self.blocks.segment
        for leased in items:
            if leased[1] in session.mapped:
                self._map_again(session, leased[1])
            session.mapped[leased[1]] = leased[2]
            packed.append(_packed(leased, segment))
        while len(packed) > _PER_MESSAGE:
            self._send_packed(session, packed[:_PER_MESSAGE])
            del packed[:_PER_MESSAGE]
        self._send_packed(session, packed)

    def _send_packed(self, session: Session, packed: list[bytes]) -> None:
        answers = self._take_answers(session)
        header = pack_give(session.number, answers, packed)
        if len(header) <= MAX_HEADER_BYTES:
            session.said += 1
            self._send_header(session.identity, header)
            return
        for one in packed:  # of many columns
            session.said += 1
            self._send_header(session.identity, pack_give(session.number, ((), (), ()), [one]))
        if any(answers):
            self._send(session, Give(session.number, (), *answers))

    def _send_bytes(self, session: Session, leased: _Leased) -> None:
        session.said += 1
        batch = leased[2]
        session.tally.wire_batches += 1
        session.tally.wire_bytes += batch.nbytes
        header = pack_give(session.number, self._take_answers(session), [_packed(leased)])
        memory, unpin = self.blocks.memory(batch), partial(self.blocks.unpin, batch)
        self.socket.send_block(session.identity, header, memory, unpin)

    def _take_answers(self, session: Session) -> Answers:
        """Take as many answers as fit a message: committed and stale tokens, and faults."""
        if session not in self._answers:
            return (), (), ()
        committed, stale = session.committed, session.stale
        left = _ANSWERS_PER_MESSAGE - len(committed)
        taken = (
            tuple(committed[:_ANSWERS_PER_MESSAGE]),
            tuple(stale[: max(0, left)]),
            tuple(session.faults[:_FAULTS_PER_MESSAGE]),
        )
        del committed[: len(taken[0])], stale[: len(taken[1])], session.faults[: len(taken[2])]
        if not (committed or stale or session.faults):
            del self._answers[session]
        return taken

    def _send_answers(self, session: Session) -> None:
        while session in self._answers:
            self._send(session, Give(session.number, (), *self._take_answers(session)))

    def forget(self, session: Session) -> None:
        """Drop the queued messages of a trainer that is gone or greets again."""
        for message in session.line:
            if type(message) is tuple:
                self.blocks.unpin(message[2])
        session.line = []
        session.committed, session.stale, session.faults = [], [], []
        session.awaits = False
        self.lines.pop(session, None)
        self._answers.pop(session, None)

    # News of a feed

    def finish(self, feed: ServedFeed) -> None:
        """Send each trainer of a feed its end, once."""
        for session in feed.present.values():
            if session.welcome and not session.knows_end:
                session.knows_end = True
                self.send_to(session, Ended(session.number))

    def let_go(self, session: Session) -> None:
        """Have a trainer return its unused batches, since no more are handed out."""
        self.send_to(session, LetGo(session.number))

    def snapshotted(self, answer: Answered) -> None:
        """Answer a trainer's last snapshot request, and keep the answer for repeats."""
        session = self.sessions.get(answer.session)
        if session is not None and session.snapshot == answer.request:
            session.snapshotted = answer
            self.answer_request(answer)

    def end(self, feed: ServedFeed, code: str, text: str) -> None:
        """Send all trainers of a feed the reason why it stops."""
        for session in feed.present.values():
            self.send_to(session, Ended(session.number, code, text[:8000]))

    def stop(self, session: Session, returns: bool) -> None:
        """Send a trainer the stop of the server, and whether another one will continue the feed.

        A trainer of a feed that is over gets its end again.
        """
        feed, session.open = session.feed, True
        self._send_line(session)
        self._send_answers(session)
        if feed.over:
            code, text = feed.failure or ("", "")
            self._send(session, Ended(session.number, code, text[:8000]))
        text = "the server was stopped"
        self._send(session, Ended(session.number, "lost", text, returns and not feed.over))


def _joined(idle: list[Idle]) -> list[Idle]:
    """Return one notice for several."""
    requests = tuple(request for one in idle for request in one.requests)
    return [Idle(idle[0].session, requests, tuple(live for one in idle for live in one.live))]
