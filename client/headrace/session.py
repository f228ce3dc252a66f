"""A trainer's session as a pure machine: what was received, what is held, what is to be said.

    greeting ── Welcome ──► open ── Ended ──► ended
        ▲                    │
        └──── Unknown, silence, a server that stops and will be back: say Hello again
              with the same nonce

Messages and the time come in, messages go out; sockets, threads and memory are elsewhere.  All
that must not get lost is kept until it is answered: commits, saved states with their bytes, and
requests are said again after a reconnection.
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
    Full,
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

from .greeting import Greeting
from .leases import Received
from .requests import Requests

#: Messages that count in whichever session they come.
_OF_NO_SESSION = (Welcome, Refused, ServedShare, Pulse)
_HELLO_S = 1.0  # Hello is said again after this long without an answer
_SILENT = 2.5  # heartbeats, each answered, without a word after which the server counts as lost


@dataclass(slots=True)
class Session(Greeting):
    """One feed, seen by one trainer."""

    welcome: Welcome | None = None
    failure: HeadraceError | None = None  # for good
    finished: bool = False
    waiting: str = ""  # what the server said that the feed waits for
    passed: set[int] = field(default_factory=set)  # partitions that make no more batches
    epoch: int = 0  # no batch of an earlier one comes, where batches end with their epoch
    following: tuple[int, int] = (0, 0)  # no new batch stands before this number and partition
    regrouped: int = 0  # another number of owners, which a server that is started anew has
    stopped: bool = False  # the server has stopped, and announced that it will be back
    heard_at: float = 0.0  # when the server was last heard of
    retired: list[str] = field(default_factory=list)
    requests: Requests = field(default_factory=Requests)
    connected: bool = False  # whether the server has let it in, and was not lost since

    _known_by_number: bool = False  # whether a server that is started anew knows batches by that
    _idle_at: int = -1  # number of the delivery after which its owner had nothing to give
    _wanting: bool = False

    def beside(self, owner: int) -> Session:
        """A session of the same trainer with another owner of the same server."""
        assert self.welcome is not None
        beside = self.alike(self.address, owner)
        beside.feed, beside.owners = self.welcome.feed, self.owners
        beside.generation = self._property("generation", -1)
        beside.share, beside.shares, beside.run = self.share, self.shares, self.run
        return beside

    def again(self, resume: str) -> Session:
        """A session in place of this one, which goes on from a snapshot."""
        feed = self.feed if self.welcome is None else self.welcome.feed
        nonce = secrets.token_bytes(16)
        shared = self.prefetch, self.rank, self.world_size, self.process
        again = Session(feed, nonce, *shared, resume, self.host, self.explicit)
        again.owner, again.order = -1 if self.rank < 0 else 0, self.order
        again.group, again.members = self.group, self.members
        return again

    def hand_over(self, sessions: Sequence[Session]) -> None:
        """Give the batches in this trainer's hands to these sessions, by their partitions.

        They are with the owners of a server that is started anew, with another number of them.
        Batches that were delivered and not taken go out again.
        """
        for session in sessions:
            session.welcome, session.openings = self.welcome, max(session.openings, self.openings)
            session.sized = self.sized
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
        """The next batch, if there is one.

        None while the server is greeted: it was told what is in the trainer's hands, and a batch
        taken since would be unknown to a server that is started anew.
        """
        if not self.ready or not self.connected:
            return None
        self._wanting = False
        received = self.ready.popleft()
        if self._known_by_number:  # before a greeting could tell what is in hand
            self.place(received.delivery.token)
        return received

    @property
    def much_to_say(self) -> bool:
        """Whether a fourth of what may come ahead could come, and the server was not told."""
        window = self.last_seq - len(self.ready) + self.prefetch
        return window - self._said_window >= max(1, self.prefetch // 4)

    @property
    def may_have_come(self) -> bool:
        """Whether none is ready, and the server was told that one may come."""
        return not self.ready and self._said_window > self.last_seq

    def want(self) -> None:
        """The trainer waits for a batch now, whatever ``prefetch`` says."""
        if self.sized[0]:
            self._take_due = True
        else:
            self._wanting = True

    def begin_take(self, request: int, rows: int) -> None:
        """Let the next batch be of so many rows; those that are ready go back."""
        self._let_ready_go()
        self.sized, self._take_due, self._wanting = (request, rows), False, False
        self._idle_at = -1

    def end_take(self) -> bool:
        """Wait for a batch of that size no longer; whether the server is to learn that."""
        self._let_ready_go()
        self.sized, self._take_due = (0, 0), False
        return self._said_take > 0

    def ask_what_is_left(self) -> None:
        """Have the server tell at once whether any batch is left, by its answer to a heartbeat."""
        if self.connected and not self.ready:
            self.hurry()

    def failed(self) -> HeadraceError:
        """The failure, to be raised: a copy, for a traceback would keep all that it names alive."""
        assert self.failure is not None
        return type(self.failure)(*self.failure.args)

    @property
    def ended(self) -> bool:
        """Whether the feed has ended for this trainer: its own commits were answered too."""
        return self.finished and self.settled

    def over(self, holds: bool) -> bool:
        """Whether nothing more comes of this owner to a trainer that ``holds`` a batch, or none.

        One that commits explicitly and holds all that it can get would wait for itself, or for
        another that does.
        """
        waits_for_itself = self.explicit and self.exhausted and holds
        return self.ended or (waits_for_itself and self.connected and not self.ready)

    @property
    def idle(self) -> bool:
        """Whether its owner gives no batch before trainers have saved or committed some."""
        return self._idle_at == self.last_seq

    # The server

    def receive(self, message: Any, frames: list[Any], now: float) -> None:
        """A message, with the frames that came after its header."""
        self.heard_at = now
        known = None if self.welcome is None else self.welcome.session
        if isinstance(message, Deliver):
            if message.session == known and self.connected:  # else one before it may be lost
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
        self._idle_at = idle.seq

    def _on_full(self, full: Full) -> None:
        self.following = full.number, full.partition

    def _on_passed(self, passed: Passed) -> None:
        if not self.connected:  # a delivery before it may be lost; the server sends both again
            return
        self.last_seq = max(self.last_seq, passed.seq)
        # Another owner may be asked, and if this one is, it learns it.
        self._wanting, self._take_due, self.prefetch = False, False, 0
        self._said_take, self._said_window = 0, self.last_seq
        self.passed.add(passed.partition)

    def continues(self, welcome: Welcome) -> bool:
        """Whether this is the session that is known here.

        The server may have resumed one whose Welcome never came: for us that is a new one.
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
            self.owner = welcome.owner  # another greeting goes to the owner that has this session
        changed = known is not None and welcome.schema != known.schema
        if known is not None and known.schema and welcome.schema and changed:
            self.failure = from_code(
                "protocol",
                f"the feed {welcome.feed!r} has another schema since the reconnection: "
                f"{welcome.schema} instead of {known.schema}",
            )
            return
        anew = not self.continues(welcome)
        self.missed = self.missed if anew else set()  # a session that goes on knows all in hand
        if anew:
            # Another session counts anew; what waits untaken goes back, lost or still leased.
            self._let_ready_go()
            self.exhausted, self._idle_at, self.following = False, -1, (0, 0)
            self.passed.clear()
            self.last_seq = self.epoch = 0
            self.mapped.used = False
            self.openings += 1
        self._said_window = self._said_take = 0
        self.welcome = welcome
        recovers = True in map(self.properties.get, ("durable", "recovers"))
        self._known_by_number = recovers and self.properties.get("shape") != "sequences"
        self.connected, self.stopped = True, False
        self._say_again(anew)
        self.requests.reopened(welcome.session, anew)

    def _on_ended(self, message: Ended) -> None:
        if not message.code:
            self.finished = True
        elif not self.ended:  # a server that is stopped then takes nothing from this trainer
            if message.returns:
                self.stopped, self.connected = True, False
                return
            text = message.text if self.shares == 1 else f"{self.where}: {message.text}"
            self.failure = self.failure or from_code(message.code, text)
        self._said_at = -1e9  # the server waits for the heartbeat that says that this was heard

    def _on_epoch(self, message: EpochBegun) -> None:
        self._idle_at = -1
        if message.epoch > self.epoch:  # else it is sent again after a reconnection
            self.epoch = message.epoch
            self.passed.clear()

    def _property(self, name: str, unknown: int) -> int:
        """A number in the properties of the feed: ``generation``, or ``epoch``, the term."""
        value = self.properties.get(name, unknown)
        return value if isinstance(value, int) else unknown

    # Outgoing messages

    def outgoing(self, now: float) -> list[Any]:
        """Messages that are due."""
        if not self.connected:
            if self.failure is not None or now - self._said_at < _HELLO_S:
                return []
            self._said_at = now
            if self.served is not None and not self.shares:  # it was only asked
                return []
            known = "" if self.welcome is None else self.welcome.session_file
            generation = self._property("generation", self.generation)
            return [self._hello(known, generation, self._property("epoch", 0))]
        assert self.welcome is not None
        number = self.welcome.session
        # A batch that was sent before the last one that came was taken, waits here, or is lost.
        # The batch that is waited for counts as taken: else its taking would be one message more.
        window = self.last_seq - len(self.ready) + self.prefetch + self._wanting
        news = self._commits or window > self._said_window or self._returned
        more = news or self.mapped.released or self.uploads.unsaid
        messages: list[Any] = list(self._steps(number, window)) if more else []
        if self._take_due or self._said_take:
            messages += self._take_to_say(number)
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
            yields=self.yields,
            awaited_s=self.awaited_s,
        )

    def silence(self, now: float) -> float:
        """Seconds since the server was heard of, 0 while that is no reason to worry."""
        heartbeat_s = self.welcome.heartbeat_s if self.welcome is not None else _HELLO_S
        silent = now - self.heard_at
        return silent if silent > _SILENT * heartbeat_s else 0.0

    def lose(self) -> None:
        """The server was silent for too long: greet it again."""
        self.connected = False

    def greet(self) -> None:
        """The way to the server has ended: greet it again, at once."""
        self.connected = False
        self.hurry()

    def hurry(self) -> None:
        """Say the next heartbeat at once: this process could not say it in time."""
        self._said_at = -1e9

    def due_in(self, now: float) -> float:
        """Seconds until there is something to say without a new event."""
        if not self.connected:
            return max(0.0, self._said_at + _HELLO_S - now)
        assert self.welcome is not None
        return max(0.0, self._said_at + self.welcome.heartbeat_s - now)

    def goodbye(self) -> Bye | None:
        """The last message, when there is anybody to say it to."""
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
    Full: Session._on_full,
    EpochBegun: Session._on_epoch,
    Retired: lambda session, message: session.retired.extend(message.segments),
    Unknown: lambda session, message: session.greet(),
    Passed: Session._on_passed,
    object: lambda session, message: session.requests.receive(message),
}
