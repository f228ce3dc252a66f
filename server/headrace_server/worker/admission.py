"""Admission: a greeting opens a session with a feed, or goes on with one, or is refused.

Hello ─► hear() ─► desk ─► welcome()   a session is open, or goes on
                        ─► refuse()    it does not fit the others
                ─► Refused             an error's code and text
                ─► Pulse               not yet: the trainer repeats its greeting
                ─► ServedShare         it knows another number of workers
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace_proto import __version__, limits
from headrace_proto.channel import Frame
from headrace_proto.errors import (
    FeedRewound,
    HeadraceError,
    NotAllowed,
    ProtocolError,
    code_of,
)
from headrace_proto.messages import Ended, Hello, Pulse, Refused, ServedShare, Welcome

from ..leasing import protocol
from ..leasing.protocol import ANYONE, Answer, Batch, Slot
from ..process.bounded_map import BoundedMap
from ..process.refusals import check_version, feed_named
from ..process.sockets import is_shortage
from .resuming import PUT_BACK, Later, PresentTrainer, wanted_by
from .served_feed import ServedFeed, Usage
from .sessions import Session

if TYPE_CHECKING:
    from .switchboard import Switchboard

logger = logging.getLogger("headrace.trainers")

REVOKED = "this trainer's public key is not, or no longer, in trainers/ of the server's keys"
#: Refusals that are counted, by the error's code.
_COUNTED = {"limit": "trainers", "denied": "revoked"}
#: Maximum number of greetings that wait until the feeds are open; the oldest is forgotten.
_MOST_HELD = 10_000
#: Maximum length of the text that says where a trainer runs.
_LONGEST_HOST = 100


class Admission:
    """The admission to all feeds of one owner."""

    def __init__(
        self, board: Switchboard, leave: Callable[[Session], None], end: Callable[[bytes], None]
    ) -> None:
        """``leave`` ends a session, ``end`` that of a connection."""
        self.config, self.feeds, self.clock = board.config, board.feeds, board.clock
        self.owner, self.outbox = board.worker, board.outbox
        self.leave, self.end = leave, end
        self._stores = board.partitions.stores
        self._socket, self._sessions = self.outbox.socket, self.outbox.sessions
        #: Greetings that came before the feeds were open, and the descriptors they came by.
        self._held: BoundedMap[bytes, tuple[Hello, Sequence[Frame], str, int]] = BoundedMap(
            _MOST_HELD
        )

    def opened(self) -> None:
        """Answer the greetings that came before the feeds were open."""
        held, self._held = self._held, BoundedMap(_MOST_HELD)
        for identity, greeting in held.items():
            self.hear(identity, *greeting)

    def hear(
        self, identity: bytes, hello: Hello, frames: Sequence[Frame], key: str, came_by: int
    ) -> None:
        """Answer a greeting: have the desk judge it, or send Refused, or a reason to wait.

        ``came_by``: the descriptor of its connection.
        """
        try:
            feed = self._feed_of(hello.feed)
            if (hello.share, hello.shares) != feed.share:
                text = f"this is share {feed.of_share} of feed {feed.name!r}"
                self.outbox.send(identity, Pulse(0, 0, text))
                return
            if hello.owners not in (0, feed.owners):  # of a server before this one
                workers = ("",) * feed.owners
                share = ServedShare(feed.name, *feed.share, feed.of_feed, "", {}, workers)
                self.outbox.send(identity, share)
                return
            if not feed.opened:
                self._held[identity] = hello, frames, key, came_by
                raise Later("the workers are opening the feed's source")
            self._admit(identity, hello, frames, key, came_by)
        except Later as error:
            self.outbox.send(identity, Pulse(0, 0, str(error)))
        except HeadraceError as error:
            code = code_of(error)
            if code in _COUNTED:
                text = f"refused a trainer: {error}"
                self._socket.refusals.add(_COUNTED[code], "", text, self.clock())
            self.outbox.send(identity, Refused(code, str(error)))

    def _checked(self, hello: Hello, key: str) -> tuple[ServedFeed, str]:
        """Return the feed that a greeting is for, and the name of its key."""
        check_version(hello)
        if not 0 < len(hello.nonce) <= 64:
            raise ProtocolError("a Hello carries a nonce of 1 to 64 bytes")
        name = self._socket.name_of(key)
        if name is None:
            raise NotAllowed(REVOKED)
        feed = self._feed_of(hello.feed)
        if hello.owner not in (-1, self.owner):
            raise ProtocolError(
                f"a Hello names owner {hello.owner}; feed {feed.name!r} has {feed.owners}, and "
                f"this is owner {self.owner}"
            )
        return feed, name

    def _admit(
        self, identity: bytes, hello: Hello, frames: Sequence[Frame], key: str, came_by: int
    ) -> None:
        feed, name = self._checked(hello, key)
        now = self.clock()
        session = self._sessions.named(feed.name, hello.nonce)
        if session is not None and session.key != key:
            raise ProtocolError("another key has opened the session that a Hello names")
        if session is not None and session.greeting is not None:
            if hello.connection < session.greeting.connection:
                return  # it is late, of an earlier connection
            if hello.connection == session.greeting.connection and identity == session.greeted_by:
                if not session.welcome:
                    raise Later(feed.describe(now, self._sessions.name_of))
                return  # the answer is under way
        feed.check_ranks(hello.rank, hello.world_size)
        greeting, faults = _greeting_of(hello, frames, feed)
        if session is None:
            session = self._opened(identity, hello, feed, key, name, now)
        else:
            self.outbox.forget(session)
            self._sessions.move(session, identity)
            session.goes_on = True
        session.greeted(hello, identity)
        self._socket.opened(session.number, came_by, now)
        session.seen = now
        if feed.failure is not None:
            self.welcome_to_failed(session, feed)
            self.outbox.tell(session, Ended(session.number, *feed.failure))
            return
        if faults:
            self.outbox.answer(session, Answer(faults=tuple(faults)))
        feed.desk.hello(greeting, now)

    def _opened(
        self, identity: bytes, hello: Hello, feed: ServedFeed, key: str, name: str, now: float
    ) -> Session:
        """Open a session for a trainer that has none."""
        members = (
            PresentTrainer(s.process, s.resumed, s.seen, s.uses and not feed.over)
            for s in self._sessions.of_feed(feed.name)
            if s.present
        )
        feed.resuming.admit(hello, members, now)
        last = hello.acknowledged if feed.serves else ()
        for partition, token in zip(last[::2], last[1::2], strict=False):
            known = partition not in feed.partitions or token >> protocol.COUNTER_BITS == feed.term
            if not known and self._stores.lacks((feed.name, partition), token):
                logger.warning("a trainer of %r greets: its commits are gone", feed.name)
                what = f"commits of this trainer are not in the state of feed {feed.name!r}"
                raise FeedRewound(f"{what}: {PUT_BACK}")
        self.end(identity)
        try:
            session = self._sessions.open(hello.nonce, feed.name, identity, key, name)
        except OSError as error:
            if not is_shortage(error):
                raise
            raise Later(f"the server can open no file for a new trainer now: {error}") from None
        session.process, session.resumed = hello.process, wanted_by(hello)
        session.host = hello.host[:_LONGEST_HOST]
        feed.farewell.back(hello.nonce)
        return session

    # What the desk says

    def welcome(self, session: Session, welcome: protocol.Welcome) -> None:
        """Answer the greeting of a session, which is open."""
        feed, hello = self.feeds[session.feed], session.greeting
        assert hello is not None, f"{session} has no greeting"
        session.welcome = True
        if not session.goes_on:
            # A trainer has a session with each owner: the log names it once.
            level = logging.DEBUG if feed.owner else logging.INFO
            logger.log(level, "%s joined feed %r", session.described, feed.name)
        next_ = tuple(
            number
            for partition, turn in sorted(welcome.next.items())
            for number in (partition, *turn)
        )
        message = Welcome(
            protocol=limits.PROTOCOL,
            library=__version__,
            session=session.number,
            feed=feed.name,
            schema=feed.schema or [],
            heartbeat_s=self.config.heartbeat_s,
            lease_ttl_s=self.config.lease_ttl_s,
            max_credits=self.config.max_credits,
            directory=self.config.directory,
            session_file=str(session.path),
            resumed=session.goes_on,
            connection=hello.connection,
            properties=feed.described(hello.world_size),
            channel=str(self.outbox.channels.path),
            used=None if session.goes_on else self._used(session, feed, hello),
            owner=self.owner,
            owners=feed.owners,
            partitions=feed.of_feed,
            next=next_,
            stale=tuple(welcome.stale),
            others=welcome.others,
            run=welcome.run,
            state_buffer=feed.states.buffer_bytes,
        )
        self.outbox.send(session.identity, message)

    def welcome_to_failed(self, session: Session, feed: ServedFeed) -> None:
        """Answer the greeting of a session, whose feed has failed."""
        self.welcome(session, protocol.Welcome(dict.fromkeys(feed.partitions, (0, 0)), []))

    def refuse(self, session: Session, refused: protocol.Refused) -> None:
        """Send a trainer away that does not fit the others, or whose place another one has."""
        logger.info("%s of %r is refused: %s", session.who, session.feed, refused.text)
        self.outbox.send(session.identity, Refused(refused.code, refused.text))
        self.leave(session)

    def _used(self, session: Session, feed: ServedFeed, hello: Hello) -> Usage | None:
        """Return how far others have used a feed, where a new trainer has to know."""
        if feed.failure is not None or hello.known:
            return None
        usage = feed.usage()
        at_work = any(  # not an earlier cell of the same notebook
            s.uses and s.process != session.process for s in self._sessions.of_feed(feed.name)
        )
        begun = usage.batches and not wanted_by(hello) and not at_work
        return usage if usage.finished or begun else None

    def _feed_of(self, name: str) -> ServedFeed:
        return self.feeds[feed_named(name, self.feeds)]


def _greeting_of(
    hello: Hello, frames: Sequence[Frame], feed: ServedFeed
) -> tuple[protocol.Hello, list[tuple[int, str, str]]]:
    """Return a greeting as the desk judges it, and the commits whose states are not valid."""
    slot: Slot = ANYONE
    if hello.world_size:
        slot = hello.rank
    elif feed.order == "lanes":
        slot = hello.nonce
    places, states = [*frames, b"", b""][:2]
    greeting = protocol.Hello(hello.nonce, hello.rank, hello.world_size, hello.run, hello.birth)
    faults: list[tuple[int, str, str]] = []
    at = state_at = 0
    for handed in hello.batches:
        place = bytes(places[at : at + handed.place_bytes])
        block = states[state_at : state_at + handed.state_bytes]
        at, state_at = at + handed.place_bytes, state_at + handed.state_bytes
        if len(place) != handed.place_bytes or len(block) != handed.state_bytes:
            raise ProtocolError("the places and states of a Hello do not fit its frames")
        turn = handed.epoch, handed.index
        batch = Batch(handed.partition, handed.number, slot, turn, handed.rows, place)
        if not handed.committed:
            greeting.held.append((handed.token, batch))
        elif fault := feed.fault_of_states(batch, handed.columns, block or None):
            faults.append((handed.token, "state", fault))
        else:
            payload = feed.payload_of(handed.columns, block or None)
            greeting.commits.append((handed.token, batch, payload))
    numbers = hello.gets
    if len(numbers) % 3 or not feed.partitions.keys() >= set(numbers[1::3]):
        raise ProtocolError("the requests of a Hello are not of this owner's partitions")
    greeting.gets += zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    return greeting, faults
