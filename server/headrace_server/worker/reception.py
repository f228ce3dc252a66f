"""The reception: trainers' messages in their sessions, and the beginnings and ends of sessions.

channels, socket ─► limits ┬─ Hello ─► _greet ─► desk ─► welcome()   a session is open, or goes on
                           │                        ─► refuse()    it does not fit the others
                           │                 ─► Refused            an error's code and text
                           │                 ─► Pulse              not yet: it is repeated
                           │                 ─► ServedShare        there are other workers
                           ├─ of a session ─► the handler of the message's type
                           └─ neither ─► Unknown, or garbage: refusals.py

A message can do no more harm than end its sender's own session: bytes that are no message are
counted and answered once, a session number that is not the sender's is answered Unknown, and a
connection that only makes work is muted.  Messages to trainers leave by outbox.py.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_proto.channel import Frame
from headrace_proto.errors import (
    FeedRewound,
    HeadraceError,
    NotAllowed,
    ProtocolError,
    code_of,
    one_line,
    shown,
)
from headrace_proto.log_messages import Append, Produce
from headrace_proto.messages import (
    Attach,
    Bye,
    Ended,
    Hello,
    Pulse,
    Refused,
    Renew,
    Save,
    ServedShare,
    Step,
    Unknown,
    Welcome,
)
from headrace_proto.state_buffers import (
    FIRST_BUFFER,
    MOST,
    MOST_BYTES,
    PROOF_BYTES,
    file_bytes,
    mapped,
)

from ..leasing.words import ANYONE, COUNTER_BITS, Batch, Greeting, Slot, Token, Turn
from ..net.bounded_map import BoundedMap
from ..net.channel_server import TURN_S
from ..net.refusals import REVOKED, RateLimits, check_version, feed_named
from ..net.sockets import is_shortage
from ..partition.partition_run import Payload
from .producers import Producers
from .resuming import PUT_BACK, Later, wanted_by
from .served_feed import ServedFeed
from .sessions import Session

if TYPE_CHECKING:
    from .switchboard import Handler, Switchboard

logger = logging.getLogger("headrace.trainers")

#: Maximum number of sessions with buffers, since a mapping takes a descriptor.
_MOST_SESSIONS = 64
#: A session takes at most this part of the shared memory that is free: slabs and journals need it.
_FREE_PARTS = 16
#: Refusals that are counted, by the error's code.
_COUNTED = {"limit": "trainers", "denied": "revoked"}
#: Maximum number of greetings that wait until the feeds are open; the oldest is forgotten.
_MOST_HELD = 10_000
#: Answer to a trainer that waits, where no other reason is known.
_ONLY_ITS_COMMITS = "nothing is left but the commits of this trainer"
#: Maximum length of the text that says where a trainer runs.
_LONGEST_HOST = 100


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
        most = min(MOST_BYTES, self._left, free // _FREE_PARTS)
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
_SLAB_PARTS = 8
#: Rate-limit cost, in messages, of each commit beyond those that a trainer can have under way.
_EXCESS_WEIGHT = 10


class Reception:
    """All trainers of all feeds."""

    def __init__(self, board: Switchboard) -> None:
        self.config, self.feeds, self.clock = board.config, board.feeds, board.clock
        self.outbox = outbox = board.outbox
        self._board = board
        self._socket, self._channels = outbox.socket, outbox.channels
        self._sessions, self._connected = outbox.sessions, outbox.sessions.by_connection
        self._looked = 0.0  # at sessions, to renew their leases
        self._most_commits = 2 * self.config.max_credits
        self._budget = BufferBudget(self.config.slab_bytes // _SLAB_PARTS)
        self._limits = RateLimits(
            most=self.config.max_messages_per_s,
            refusals=self._socket.refusals,
            handle=self._on_message,
            who=self._who,
            send=outbox.send,
            end=self._end,
        )
        self._handlers: dict[type, Handler] = {
            Renew: self._on_renew,
            Attach: self._on_attach,
            Bye: self._on_bye,
            **board.handlers,
        }
        self._owner, self._stores = board.worker, board.partitions.stores
        self.producers = Producers(board.partitions.logs, self._socket)
        #: Greetings that came before the feeds were open, and the descriptors they came by.
        self._held: BoundedMap[bytes, tuple[Hello, Sequence[Frame], str, int]] = BoundedMap(
            _MOST_HELD
        )

    # In

    def receive_from_socket(self, burst: int) -> None:
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
            self._limits.take(identity, frames, key, self.clock())

    def receive_from_channels(self) -> None:
        """Handle messages of trainers of this host, which came by their channels."""
        self._channels.receive(partial(self._limits.take, key=None, now=self.clock()))

    def opened(self) -> None:
        """Answer the greetings that came before the feeds were open."""
        held, self._held = self._held, BoundedMap(_MOST_HELD)
        for identity, greeting in held.items():
            self._greet(identity, *greeting)

    def _who(self, identity: bytes) -> str:
        session = self._connected.get(identity)
        return "a trainer" if session is None else session.who

    def _on_message(
        self, identity: bytes, message: Any, frames: Sequence[Frame], key: str | None, now: float
    ) -> None:
        """Handle a message that came by a public key ("" without keys), or (None) a channel."""
        session = self._connected.get(identity)
        if session is not None and session.number != getattr(message, "session", 0):
            session = None
        if type(message) is Step and session is not None and session.welcome:  # as mostly
            session.seen, session.open = now, True
            self._on_step(session, message, frames)
            session.heard += 1
            return
        if type(message) is Append:
            self.producers.append(identity, message, frames, now)
            return
        if isinstance(message, Produce):
            self._greet_producer(identity, message, key, now)
            return
        if isinstance(message, Hello):
            if key is None:
                raise ProtocolError("a Hello comes by the public address, not by a channel")
            self._greet(identity, message, frames, key, self._socket.last_came_by)
            return
        if isinstance(message, Bye) and not message.session:  # its greeting has no answer
            self._on_early_bye(identity)
            return
        if session is None and key is None and isinstance(message, Attach):
            self._on_channel(identity, message)
            return
        if session is None or not (session.welcome or type(message) is Bye):
            self.outbox.send(identity, Unknown(message.session))
            return
        session.seen, session.open = now, True
        self._handlers[type(message)](session, message, frames)
        session.heard += not isinstance(message, Attach)

    def _on_renew(self, session: Session, renew: Renew, frames: object) -> None:
        feed = session.feed
        if renew.said != session.heard:  # one was lost: the trainer greets again
            logger.warning(
                "%s of %r: %d of its messages were lost",
                session.who,
                feed.name,
                renew.said - session.heard,
            )
            session.welcome = False
            self.outbox.send(session.identity, Unknown(session.number))
            return
        self._board.hurry(session)
        session.tally.on_renew(renew)
        session.heard_end = renew.ended
        if renew.ended:
            self._board.wake()
        # A batch that was sent and is not mapped was released, which the trainer says once.
        read = frozenset(renew.mapped)
        session.again -= read
        for token in list(session.mapped):
            if token <= renew.mapped_upto and token not in read and token not in session.again:
                self.outbox.unmap(session, token)
        wait = feed.describe(session.seen)
        waits = "; ".join(filter(None, (self._board.inside(), wait))) or _ONLY_ITS_COMMITS
        self.outbox.send_to(session, Pulse(session.number, 0, waits[:1000]))

    def _on_attach(self, session: Session, attach: Attach, frames: object) -> None:
        self._sessions.attach(session, attach.proof)
        self._give_buffers(session)

    def _on_bye(self, session: Session, bye: Bye, frames: object) -> None:
        feed = session.feed
        level = logging.DEBUG if feed.owner else logging.INFO
        logger.log(level, "%s left feed %r", session.described, feed.name)
        self.outbox.send(session.identity, Unknown(session.number))
        self._leave(session)

    def _greet_producer(self, identity: bytes, hello: Produce, key: str | None, now: float) -> None:
        try:
            self.producers.greet(identity, hello, key or "", self._socket.last_came_by, now)
        except HeadraceError as error:
            self.outbox.send(identity, Refused(code_of(error), str(error)))

    def _on_early_bye(self, identity: bytes) -> None:
        if self.producers.leave(identity):
            return
        self._held.pop(identity, None)
        # The answer may have come meanwhile, and the trainer's channel with it.
        if (session := self._sessions.greeted_by(identity)) is not None:
            self._leave(session)
        self.outbox.send(identity, Unknown(0))

    def _on_channel(self, identity: bytes, attach: Attach) -> None:
        """Send to a trainer of this host by its new channel from now on."""
        session = self._sessions.come_by_channel(attach.session, attach.proof, identity)
        if session is None:  # it greets by the public address again
            self._channels.drop(identity)
            return
        # it has closed since, or its locks are not visible here: it greets again
        if not session.local:
            self._leave(session)
            return
        session.open = True
        self._give_buffers(session)

    def _give_buffers(self, session: Session) -> None:
        if session.local:
            self._budget.open(session, session.feed.states.buffer_bytes)

    def _on_step(self, session: Session, step: Step, frames: Sequence[Frame]) -> None:
        _, commits, released, returned, withdrawn, gets, saves = step
        feed = session.feed
        excess = len(commits) + len(saves) - self._most_commits
        if excess > 0 and not self._limits.bears(  # more commits than it can have batches
            session.identity, session.seen, _EXCESS_WEIGHT * excess
        ):
            return
        for token in released:
            self.outbox.unmap(session, token)
        if not feed.serves:
            return
        desk, name = feed.desk, session.nonce
        if commits or saves:
            if not feed.resuming.is_touched:
                feed.resuming.touched()
            session.awaits = False
        for token in commits:
            desk.commit(name, token)
        for save in saves:
            desk.commit(name, save.token, self._states_of(session, save, frames))
        if returned:
            desk.give_back(name, returned)
        if withdrawn:
            desk.withdraw(name, withdrawn)
        if gets:
            desk.ask(name, gets)

    @staticmethod
    def _states_of(session: Session, save: Save, frames: Sequence[Frame]) -> Payload | None:
        """Return the states of a save, which lie in a frame or in a buffer; None without states."""
        number = save.frame
        if not number and session.feed.stateful:
            return None
        blocks, first = (frames, 1) if number < FIRST_BUFFER else (session.buffers, FIRST_BUFFER)
        if not session.feed.stateful or number - first >= len(blocks or ()):
            where = f"frame {number}" if first == 1 else f"buffer {number - first}"
            name = session.feed.name
            raise ProtocolError(f"states came for {name!r} in {where}, which is none")
        return (save.columns, blocks[number - first]) if blocks else None

    # Greetings

    def _greet(
        self, identity: bytes, hello: Hello, frames: Sequence[Frame], key: str, came_by: int
    ) -> None:
        """Answer a greeting: have the desk judge it, or send Refused, or a reason to wait.

        ``came_by``: the descriptor of its connection.
        """
        try:
            self._admit(identity, hello, frames, key, came_by)
        except Later as error:
            self.outbox.send(identity, Pulse(0, 0, str(error)))
        except HeadraceError as error:
            code = code_of(error)
            if code in _COUNTED:
                text = f"refused a trainer: {error}"
                self._socket.refusals.add(_COUNTED[code], text, self.clock())
            self.outbox.send(identity, Refused(code, str(error)))

    def _admit(
        self, identity: bytes, hello: Hello, frames: Sequence[Frame], key: str, came_by: int
    ) -> None:
        feed = self.feeds[feed_named(hello.feed, self.feeds)]
        if (hello.share, hello.shares) != feed.share:
            raise Later(f"this is share {feed.of_share} of feed {feed.name!r}")
        if hello.owners not in (0, feed.owners):  # of a server before this one
            workers = ("",) * feed.owners
            share = ServedShare(feed.name, *feed.share, feed.of_feed, "", {}, workers)
            self.outbox.send(identity, share)
            return
        if not feed.opened:
            self._held[identity] = hello, frames, key, came_by
            raise Later(self._board.inside() or "the workers are opening the feed's source")
        self._held.pop(identity, None)  # it came before this feed was open, and others are not yet
        check_version(hello)
        if not 0 < len(hello.nonce) <= 64:
            raise ProtocolError("a Hello carries a nonce of 1 to 64 bytes")
        name = self._socket.name_of(key)
        if name is None:
            raise NotAllowed(REVOKED)
        if hello.owner not in (-1, self._owner):
            raise ProtocolError(
                f"a Hello names owner {hello.owner}; feed {feed.name!r} has {feed.owners}, and "
                f"this is owner {self._owner}"
            )
        now = self.clock()
        session = feed.present.get(hello.nonce)
        if session is not None and session.key != key:
            raise ProtocolError("another key has opened the session that a Hello names")
        if session is not None and session.greeting is not None:
            if hello.connection < session.greeting.connection:
                return  # it is late, of an earlier connection
            if hello.connection == session.greeting.connection and identity == session.greeted_by:
                if not session.welcome:
                    raise Later(feed.describe(now))
                return  # the answer is under way
        feed.check_ranks(hello.rank, hello.world_size)
        greeting = _greeting_of(hello, frames, feed)
        if session is None:
            session = self._opened(identity, hello, feed, key, name, now)
        else:
            self.outbox.forget(session)
            self._sessions.move(session, identity)
            session.goes_on = True
        session.greeted(hello, identity)
        self._socket.connections.belongs(came_by, session.number, now)
        session.seen = now
        if feed.failure is not None:
            self.welcome_to_failed(session)
            self.outbox.send_to(session, Ended(session.number, *feed.failure))
            return
        greeting.to = session
        feed.desk.hello(greeting, now)

    def _opened(
        self, identity: bytes, hello: Hello, feed: ServedFeed, key: str, name: str, now: float
    ) -> Session:
        """Open a session for a trainer that has none."""
        feed.resuming.admit(hello, [*feed.present.values()], feed.over, now)
        last = hello.acknowledged if feed.serves else ()
        for partition, token in zip(last[::2], last[1::2], strict=False):
            part = feed.partitions.get(partition)
            known = part is None or token >> COUNTER_BITS == feed.term
            if part is not None and not known and self._stores.lacks(part, token):
                logger.warning("a trainer of %r greets: its commits are gone", feed.name)
                what = f"commits of this trainer are not in the state of feed {feed.name!r}"
                raise FeedRewound(f"{what}: {PUT_BACK}")
        self._end(identity)
        try:
            session = self._sessions.open(hello.nonce, feed, identity, key, name)
        except OSError as error:
            if not is_shortage(error):
                raise
            raise Later(f"the server can open no file for a new trainer now: {error}") from None
        session.process, session.resumed = hello.process, wanted_by(hello)
        session.host = one_line(hello.host, _LONGEST_HOST)
        feed.back(hello.nonce)
        return session

    # Messages of the desk

    def welcome(
        self,
        session: Session,
        next: dict[int, Turn],
        stale: Sequence[Token] = (),
        others: int = 0,
        run: int = 0,
    ) -> None:
        """Answer the greeting of a session, which is open."""
        feed, hello = session.feed, session.greeting
        assert hello is not None, f"{session} has no greeting"
        session.welcome = True
        if not session.goes_on:
            # A trainer has a session with each owner: the log names it once.
            level = logging.DEBUG if feed.owner else logging.INFO
            logger.log(level, "%s joined feed %r", session.described, feed.name)
        next_ = tuple(
            number for partition, turn in sorted(next.items()) for number in (partition, *turn)
        )
        finished, done = (False, 0) if session.goes_on else self._used(session, hello)
        message = Welcome(
            session=session.number,
            feed=feed.name,
            schema=feed.schema or [],
            heartbeat_s=self.config.heartbeat_s,
            max_credits=self.config.max_credits,
            directory=self.config.directory,
            session_file=str(session.path),
            resumed=session.goes_on,
            connection=hello.connection,
            properties=feed.properties,
            channel=str(self.outbox.channels.path),
            finished=finished,
            done=done,
            owners=feed.owners,
            partitions=feed.of_feed,
            next=next_,
            stale=tuple(stale),
            others=others,
            run=run,
            state_buffer=feed.states.buffer_bytes,
        )
        self.outbox.send(session.identity, message)

    def welcome_to_failed(self, session: Session) -> None:
        """Answer the greeting of a session, whose feed has failed."""
        self.welcome(session, dict.fromkeys(session.feed.partitions, (0, 0)))

    def refuse(self, session: Session, code: str, text: str) -> None:
        """Refuse a trainer that does not fit the others, or whose rank another one has."""
        logger.info("%s of %r is refused: %s", session.who, session.feed.name, shown(text))
        self.outbox.send(session.identity, Refused(code, text))
        self.forget(session)

    @staticmethod
    def _used(session: Session, hello: Hello) -> tuple[bool, int]:
        """Return whether a feed is finished and the number of its batches, for a new trainer."""
        feed = session.feed
        if feed.failure is not None or hello.known:
            return False, 0
        at_work = any(  # not an earlier cell of the same notebook
            s.uses and s.process != session.process for s in feed.present.values()
        )
        tells = feed.over or not (wanted_by(hello) or at_work)
        return feed.over, feed.counters.counts["batches"] if tells else 0

    # The ends of sessions

    def _end(self, identity: bytes) -> None:
        """End the session of a connection, if it has one."""
        session = self._connected.get(identity)
        if session is not None:
            self._leave(session)

    def _leave(self, session: Session) -> None:
        """End a session: its batches go to others."""
        if session.feed.serves:
            session.feed.desk.leave(session.nonce)
        self.forget(session)

    def forget(self, session: Session) -> None:
        """End a session that the desk has ended."""
        self._board.wake()
        self._sessions.leave(session)
        self._socket.connections.left(session.number, self.clock())
        self._channels.drop(session.identity)
        self.outbox.forget(session)
        session.feed.counters.on_left(session.tally)

    # Time

    def tick(self, now: float) -> None:
        """End the sessions of trainers that are gone, silent or banned."""
        self.producers.tick(now, self._judge(now))
        for session in self._sessions.present():
            feed = session.feed
            looks = session.seen >= self._looked and feed.serves and session.welcome
            if looks and not feed.desk.seen(session.nonce, session.seen):
                self.outbox.send_to(session, Unknown(session.number))
        self._looked = now
        for feed in self.feeds.values():
            for nonce in feed.desk.tick(now) if feed.serves else ():
                lost = feed.present.get(nonce)
                if lost is not None:
                    logger.warning("%s of %r is silent: given up", lost.described, feed.name)
                    self.forget(lost)
        for session in self._sessions.present():
            # The lock of a local trainer shows its death; of others only the connection can.
            silent = now - session.seen > _SILENT * self.config.heartbeat_s
            if silent and not session.local and not self.outbox.reaches(session):
                logger.warning("%s of %r is gone", session.described, session.feed.name)
                if not session.heard_end:
                    session.feed.lost(session)
                self._leave(session)
        self._bury()

    def _bury(self) -> None:
        """End the sessions of local trainers whose file lock shows that they have died."""
        for session in self._sessions.dead():
            if session.present:
                # A trainer has a session with each owner: the log names it once.
                level = logging.DEBUG if session.feed.owner else logging.WARNING
                logger.log(level, "%s of %r died", session.described, session.feed.name)
                self._leave(session)
            for token in list(session.mapped):
                self.outbox.unmap(session, token)
            self._budget.close(session)

    def _judge(self, now: float) -> bool:
        """End sessions with revoked keys; return whether the keys have changed."""
        if changed := self._socket.tick(now):
            for session in self._sessions.present():
                if self._socket.name_of(session.key) is None:
                    self._limits.silence("revoked", session.identity, NotAllowed(REVOKED), now)
        return changed

    def access(self) -> dict[str, dict[str, int]]:
        """Return the trainers that are present, and counts of refusals by this process."""
        present = Counter(session.name for session in self._sessions.present())
        refused = dict(self._socket.refusals.counts)
        return {"refused": refused, "present": dict(present)}

    def close(self) -> None:
        """Send all trainers the stop of the server.

        The next server on the state directory goes on, so trainers wait for it.  Those in the
        program that stops the server do not, since only that program would start another.
        """
        durable = self.config.state_directory is not None
        for session in self._sessions.present():
            returns = durable and session.process != self.config.program
            self.outbox.stop(session, returns)


def _greeting_of(hello: Hello, frames: Sequence[Frame], feed: ServedFeed) -> Greeting:
    """Return a greeting as the desk judges it."""
    slot: Slot = ANYONE
    if hello.world_size:
        slot = hello.rank
    elif feed.order == "lanes":
        slot = hello.nonce
    places, states = [*frames, b"", b""][:2]
    greeting = Greeting(hello.nonce, hello.rank, hello.world_size, hello.run, hello.birth)
    at = state_at = 0
    for handed in hello.batches:
        place = bytes(places[at : at + handed.place_bytes])
        block = states[state_at : state_at + handed.state_bytes]
        at, state_at = at + handed.place_bytes, state_at + handed.state_bytes
        if (len(place), len(block)) != (handed.place_bytes, handed.state_bytes):
            raise ProtocolError("the places and states of a Hello do not fit its frames")
        turn = handed.epoch, handed.index
        batch = Batch(handed.partition, handed.number, slot, turn, handed.rows, place)
        if not handed.committed:
            greeting.held.append((handed.token, batch))
        else:
            payload = (handed.columns, block) if block else None
            greeting.commits.append((handed.token, batch, payload))
    numbers = hello.gets
    if len(numbers) % 3 or not feed.partitions.keys() >= set(numbers[1::3]):
        raise ProtocolError("the requests of a Hello are not of this owner's partitions")
    greeting.gets += zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    return greeting
