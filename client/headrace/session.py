"""A trainer's session as a pure machine: batches received and held, and messages to send.

    greeting ── Welcome ──► open ── Ended ──► ended
        ▲                    │
        └──── Unknown, silence, a server that stops and will be back: say Hello again
              with the same nonce

Messages and the time come in, messages go out; sockets, threads and memory are elsewhere.  All
that must not get lost is kept until it is answered: commits, saved states with their bytes, and
requests are sent again after a reconnection.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace_proto.errors import HeadraceError, from_code
from headrace_proto.messages import (
    Bye,
    Deliver,
    Ended,
    EpochBegun,
    Following,
    Idle,
    Outcome,
    Passed,
    Pulse,
    Refused,
    Renew,
    Retired,
    ServedShare,
    Step,
    Unknown,
    Welcome,
)
from headrace_proto.placement import partitions_of

from .hello import HelloFacts
from .leases import Received
from .requests import Requests

_OF_NO_SESSION = (Welcome, Refused, ServedShare, Pulse)  # handled also where none is open
_HELLO_S = 1.0  # Hello is sent again after this long without an answer
_SILENT = 2.5  # heartbeats without an answer after which the server counts as lost


@dataclass(slots=True)
class Session(HelloFacts):
    """One feed, seen by one trainer."""

    welcome: Welcome | None = None
    failure: HeadraceError | None = None  # permanent: the session can not recover
    finished: bool = False
    waiting: str = ""  # the server's description of what the feed waits for
    passed: set[int] = field(default_factory=set)  # partitions that make no more batches
    epoch: int = 0  # least epoch of coming batches, where batches end with their epoch
    following: tuple[int, int] = (0, 0)  # number and partition before which no new batch comes
    regrouped: int = 0  # the new number of owners, where a restarted server has another one
    stopped: bool = False  # the server has stopped, and announced that it will be back
    heard_at: float = 0.0  # when the last message of the server came
    retired: list[str] = field(default_factory=list)
    requests: Requests = field(default_factory=Requests)
    connected: bool = False  # whether the server has let it in, and is not lost since

    _known_by_number: bool = False  # whether a restarted server knows batches by their number
    _idle_at: int = -1  # number of the delivery after which its owner had no more batches
    _wanting: bool = False

    def beside(self, owner: int) -> Session:
        """Return a session of the same trainer with another owner of the same server."""
        assert self.welcome is not None
        beside = self.alike(self.address, owner)
        beside.feed, beside.owners = self.welcome.feed, self.owners
        beside.generation = self._property("generation", -1)
        beside.share, beside.shares, beside.run = self.share, self.shares, self.run
        return beside

    def again(self, resume: str) -> Session:
        """Return a session that replaces this one and goes on from a snapshot."""
        feed = self.feed if self.welcome is None else self.welcome.feed
        nonce = secrets.token_bytes(16)
        shared = self.prefetch, self.rank, self.world_size, self.process
        again = Session(feed, nonce, *shared, resume, self.host, self.explicit)
        again.owner, again.order = -1 if self.rank < 0 else 0, self.order
        return again

    def hand_over(self, sessions: Sequence[Session]) -> None:
        """Give the batches in this trainer's hands to these sessions, by their partitions.

        They are sessions with the owners of a restarted server that has another number of them.
        The server hands out again batches that were delivered and not taken.
        """
        for session in sessions:
            session.welcome, session.openings = self.welcome, max(session.openings, self.openings)
        self._divide(sessions, (self.share, self.shares))

    @property
    def properties(self) -> dict[str, Any]:
        """The description of the feed beside its schema; empty where it is not known yet."""
        known = None if self.welcome is None else self.welcome.properties
        return known if isinstance(known, dict) else {}

    @property
    def partitions(self) -> range:
        """The partitions of its owner."""
        assert self.welcome is not None
        share = self.share, self.shares
        return partitions_of(self.owner, self.owners, self.welcome.partitions, share)

    # The trainer

    def take(self) -> Received | None:
        """Return the next batch, if there is one.

        None while the server is greeted: the greeting lists the batches in the trainer's hands, and
        a batch taken since would be unknown to a restarted server.
        """
        if not self.ready or not self.connected:
            return None
        self._wanting = False
        received = self.ready.popleft()
        if self._known_by_number:  # taken before a greeting could list it
            self.place(received.delivery.token)
        return received

    @property
    def much_to_say(self) -> bool:
        """Whether room for a fourth of the prefetch is free and not reported to the server."""
        window = self.last_seq - len(self.ready) + self.prefetch
        return window - self._said_window >= max(1, self.prefetch // 4)

    @property
    def may_have_come(self) -> bool:
        """Whether no batch is ready, and the server knows that it may send one."""
        return not self.ready and self._said_window > self.last_seq

    def want(self) -> None:
        """Ask for a batch, even with ``prefetch=0``."""
        self._wanting = True

    def ask_what_is_left(self) -> None:
        """Send a heartbeat at once: its answer shows whether any batch is left."""
        if self.connected and not self.ready:
            self.hurry()

    def failed(self) -> HeadraceError:
        """Return the failure to raise: a copy, since a traceback keeps objects alive."""
        assert self.failure is not None
        return type(self.failure)(*self.failure.args)

    @property
    def ended(self) -> bool:
        """Whether the feed has ended for this trainer: its own commits were answered too."""
        return self.finished and self.settled

    def over(self, holds: bool) -> bool:
        """Return whether this owner has no more batches for a trainer that ``holds`` one, or none.

        A trainer that commits explicitly and holds all that it can get would wait for itself, or
        for another such trainer.
        """
        waits_for_itself = self.explicit and self.exhausted and holds
        return self.ended or (waits_for_itself and self.connected and not self.ready)

    @property
    def idle(self) -> bool:
        """Whether its owner gives no batch before trainers have saved or committed some."""
        return self._idle_at == self.last_seq

    # The server

    def receive(self, message: Any, frames: list[Any], now: float) -> None:
        """Handle a message, with the frames after its header."""
        self.heard_at = now
        known = None if self.welcome is None else self.welcome.session
        if isinstance(message, Deliver):
            if message.session == known and self.connected:  # else a message before it may be lost
                self._on_outcome(message)
                self._on_deliver(message, frames)
        elif isinstance(message, _OF_NO_SESSION) or message.session == known:
            _HANDLERS.get(type(message), _HANDLERS[object])(self, message)

    def _on_refused(self, refused: Refused) -> None:
        self.failure = self.failure or from_code(refused.code, refused.text)

    def _on_share(self, served: ServedShare) -> None:
        self.served = served
        self.waiting = f"this is share {served.share}/{served.shares} of feed {served.feed!r}"

    def _on_pulse(self, pulse: Pulse) -> None:
        self.waiting, self.exhausted = pulse.waiting, pulse.exhausted

    def _on_idle(self, idle: Idle) -> None:
        if idle.drains:
            self._let_ready_go()
        else:
            self._idle_at = idle.seq

    def _on_following(self, message: Following) -> None:
        self.following = message.number, message.partition

    def _on_passed(self, passed: Passed) -> None:
        if not self.connected:  # a delivery before it may be lost; the server sends both again
            return
        self.last_seq = max(self.last_seq, passed.seq)
        # Another owner may be asked instead, and if not, this one is asked again.
        self._wanting, self.prefetch, self._said_window = False, 0, self.last_seq
        self.passed.add(passed.partition)

    def continues(self, welcome: Welcome) -> bool:
        """Return whether this is the session that is known here.

        The server may have resumed a session whose Welcome never came: for us it is a new one.
        """
        known = self.welcome
        return (
            welcome.resumed
            and known is not None
            and (known.session, known.session_file) == (welcome.session, welcome.session_file)
        )

    def _on_welcome(self, welcome: Welcome) -> None:
        known = self.welcome
        if self.owners not in (0, welcome.owners):
            self.regrouped = welcome.owners
            return
        self.owners, self.run = welcome.owners, welcome.run
        if self.owner < 0 and (self.owners > 1 or self.shares > 1):
            self.owner = welcome.owner  # further greetings go to the owner that has this session
        changed = known is not None and welcome.schema != known.schema
        if known is not None and known.schema and welcome.schema and changed:
            self.failure = from_code(
                "protocol",
                f"the feed {welcome.feed!r} has another schema since the reconnection: "
                f"{welcome.schema} instead of {known.schema}",
            )
            return
        anew = not self.continues(welcome)
        self.missed = self.missed if anew else set()  # a resumed session knows all batches in hand
        if anew:
            # A new session counts anew; batches that were not taken go back.
            self._let_ready_go()
            self.exhausted, self._idle_at, self.following = False, -1, (0, 0)
            self.passed.clear()
            self.last_seq = self.epoch = 0
            self.mapped.used = False
            self.openings += 1
        self._said_window = 0
        self.welcome = welcome
        recovers = True in map(self.properties.get, ("durable", "recovers"))
        self._known_by_number = recovers and self.properties.get("shape") != "sequences"
        self.connected, self.stopped = True, False
        self._say_again(anew)
        self.requests.reopened(welcome.session, anew)

    def _on_ended(self, message: Ended) -> None:
        if not message.code:
            self.finished = True
        elif not self.ended:  # a server that is stopped then accepts nothing from this trainer
            if message.returns:
                self.stopped, self.connected = True, False
                return
            text = message.text if self.shares == 1 else f"{self.where}: {message.text}"
            self.failure = self.failure or from_code(message.code, text)
        self._said_at = -1e9  # the server waits for the heartbeat that acknowledges this

    def _on_epoch(self, message: EpochBegun) -> None:
        self._idle_at = -1
        if message.epoch > self.epoch:  # else it was resent after a reconnection
            self.epoch = message.epoch
            self.passed.clear()

    def _property(self, name: str, unknown: int) -> int:
        """Return a number of the feed's properties: ``generation``, or ``epoch``, the term."""
        value = self.properties.get(name, unknown)
        return value if isinstance(value, int) else unknown

    # Outgoing messages

    def outgoing(self, now: float) -> list[Any]:
        """Return the messages that are due."""
        if not self.connected:
            if self.failure is not None or now - self._said_at < _HELLO_S:
                return []
            self._said_at = now
            if self.served is not None and not self.shares:  # only asked for its share
                return []
            known = "" if self.welcome is None else self.welcome.session_file
            generation = self._property("generation", self.generation)
            return [self._hello(known, generation, self._property("epoch", 0))]
        assert self.welcome is not None
        number = self.welcome.session
        # Every batch that was sent before the last received one was taken, waits here, or is lost.
        # The batch that the trainer waits for counts as taken, which saves a message.
        window = self.last_seq - len(self.ready) + self.prefetch + self._wanting
        news = self._commits or window > self._said_window or self._returned
        more = news or self.mapped.released or self.uploads.unsaid
        messages: list[Any] = list(self._steps(number, window)) if more else []
        if self.requests.due:
            messages.extend(self.requests.to_say(number))
        if now - self._said_at >= self.welcome.heartbeat_s:
            self._said_at = now
            messages.append(self._renew(number, window, now))
        return messages

    def frames_of(self, message: Any) -> list[Any]:
        """Return the frames that follow the header of a message that is being sent."""
        if isinstance(message, Step):
            return self.uploads.frames_of(message) if message.saves else []
        return self.requests.frames_of(message)

    def _renew(self, number: int, window: int, now: float) -> Renew:
        """Return the heartbeat, which lists all that is mapped.

        So the server notices lost references, and releases whose message was lost.
        """
        mapped = self.mapped.listed()
        blocked_s, busy_s = self.meter.totals(now)
        return Renew(
            session=number,
            window=window,
            last_seq=self.last_seq,
            held=tuple(sorted(self._held)),
            mapped=mapped or (),
            mapped_upto=0 if mapped is None else self.last_seq,
            blocked_s=blocked_s,
            busy_s=busy_s,
            ended=self.finished or self.failure is not None,
            awaited_s=self.awaited_s,
        )

    def silence(self, now: float) -> float:
        """Return the seconds since the server's last message, 0 while that is normal."""
        heartbeat_s = self.welcome.heartbeat_s if self.welcome is not None else _HELLO_S
        silent = now - self.heard_at
        return silent if silent > _SILENT * heartbeat_s else 0.0

    def lose(self) -> None:
        """Greet a server again that was silent for too long."""
        self.connected = False

    def greet(self) -> None:
        """Greet the server again at once: the connection to it has ended."""
        self.connected = False
        self.hurry()

    def hurry(self) -> None:
        """Send the next heartbeat at once: this process could not send it in time."""
        self._said_at = -1e9

    def due_in(self, now: float) -> float:
        """Return the seconds until a message is due without a new event."""
        if not self.connected:
            return max(0.0, self._said_at + _HELLO_S - now)
        assert self.welcome is not None
        return max(0.0, self._said_at + self.welcome.heartbeat_s - now)

    def goodbye(self) -> Bye | None:
        """Return the last message, if a server is there to receive it."""
        return Bye(self.welcome.session) if self.connected and self.welcome is not None else None


#: How each message but a Deliver is handled; those that are not listed answer requests.
_HANDLERS: dict[type, Callable[[Session, Any], object]] = {
    Welcome: Session._on_welcome,
    Refused: Session._on_refused,
    ServedShare: Session._on_share,
    Pulse: Session._on_pulse,
    Outcome: Session._on_outcome,
    Ended: Session._on_ended,
    Idle: Session._on_idle,
    Following: Session._on_following,
    EpochBegun: Session._on_epoch,
    Retired: lambda session, message: session.retired.extend(message.segments),
    Unknown: lambda session, message: session.greet(),
    Passed: Session._on_passed,
    object: lambda session, message: session.requests.receive(message),
}
