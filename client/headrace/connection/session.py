"""A trainer's session with one owner of a feed, as a pure machine.

    greeting ── Welcome ──► open ── Ended ──► ended
        ▲                    │
        └──── Unknown, silence, a message that is missing, a server that stops and will be back

Messages and the time come in, messages go out; sockets, threads and memory are elsewhere.  What is
asked, held and committed is in the ``Trainer``, one for all sessions: a greeting takes from it all
that an owner needs to know, so nothing is repeated after a connection was lost.

A greeting without an answer is sent again as it was.  Whatever the trainer does meanwhile goes to
the owner after its Welcome.  What an older connection brings is ignored.

All sessions of a trainer bear one nonce, so servers and owners know it as one trainer.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from headrace_proto import __version__, limits
from headrace_proto.errors import (
    HeadraceError,
    ProtocolError,
    UnknownFeed,
    code_of,
    from_code,
    one_line,
)
from headrace_proto.messages import (
    Answered,
    Bye,
    Ended,
    Give,
    Handed,
    Hello,
    Idle,
    LetGo,
    Over,
    Pulse,
    Refused,
    Renew,
    Save,
    ServedShare,
    Step,
    Unknown,
    Welcome,
)
from headrace_proto.placement import partitions_of
from headrace_proto.state_buffers import FIRST_BUFFER
from headrace_proto.step_messages import made

from ..machine.requests import Requests
from ..machine.trainer import Trainer
from .batch_memory import Attachment
from .places import Server
from .state_block import FreeBuffers, StateBuffer

_HELLO_S = 1.0  # Hello is sent again after this long without an answer
#: Maximum wait of a commit, or of released memory, for the next request to its owner, and the same
#: while the loop waits for a batch: the owner may need them for it.
_MOMENT_S, _HASTE_S = 0.05, 0.001
_SILENT = 2.5  # heartbeats without an answer after which the server counts as lost
#: Maximum number of released batches in one message: any number may go at once, and a header is
#: bounded.
_PER_MESSAGE = 1000
#: Saves without a frame in one message: each describes all states.
_SAVES = 8
#: Maximum mapped batches that a heartbeat lists; with more of them it lists none.
_MAX_MAPPED = 4000
#: Maximum number of batches, of open requests and of acknowledged commits in a Hello, since its
#: header is bounded.  Further commits and requests follow the Welcome; other batches go to others.
_MOST_HANDED, _MOST_GETS, _MOST_ACKNOWLEDGED = 500, 1000, 100
_NO_FEED = code_of(UnknownFeed())
STALE = (
    "was committed after its lease had ended, and its rows went to another trainer: this "
    "work counts twice.  Either this trainer was silent for longer than the server's lease_ttl_s, "
    "or the server was started anew"
)

#: A message, and the frames after its header.
Said = tuple[Any, list[Any]]


class States(NamedTuple):
    """The states that a commit takes along: where each lies in a block, and the block.

    Without a block the states stay with the trainer, or there are none.
    """

    columns: list[Any]
    block: Any = None


@dataclass(slots=True)
class MappedBatches:
    """Batches in shared memory that this trainer may be reading, and released ones to report.

    Any thread may release a block while it holds any lock, so that only appends its token.
    """

    released: deque[int] = field(default_factory=deque)  # not reported
    last: int = 0  # the greatest token of a batch that came through shared memory
    _tokens: set[int] = field(default_factory=set)  # of those that are not reported

    def add(self, token: int) -> None:
        """Add a batch that was given by reference."""
        if token > self.last:
            self.last = token
        self._tokens.add(token)

    def due(self) -> list[int]:
        """Return released batches for one message; there may be more."""
        tokens: list[int] = []
        while self.released and len(tokens) < _PER_MESSAGE:
            tokens.append(self.released.popleft())
        self._tokens.difference_update(tokens)
        return tokens

    @property
    def listed(self) -> tuple[tuple[int, ...], int]:
        """The tokens that a heartbeat lists, and the last one; it lists none where that is 0."""
        tokens = self._tokens.difference(tuple(self.released))
        return ((), 0) if len(tokens) > _MAX_MAPPED else (tuple(sorted(tokens)), self.last)


class Meter:
    """How long a trainer waited for batches of a feed, and how long it was busy with them.

    Both are totals since it joined, running spans included.  Heartbeats carry them, and from two of
    them the server computes the share of time in which a trainer starved.
    """

    __slots__ = ("_since", "_spends", "_totals")

    def __init__(self) -> None:
        self._totals = {"blocked": 0.0, "busy": 0.0, "": 0.0}  # seconds
        self._spends = ""  # the kind of the running span
        self._since = 0.0

    def spends(self, kind: str, now: float) -> None:
        """Begin a span: "blocked", "busy", or "", which does not count."""
        self._totals[self._spends] += now - self._since
        self._spends, self._since = kind, now

    def totals(self, now: float) -> tuple[float, float]:
        """Return seconds blocked and busy so far."""
        self.spends(self._spends, now)
        return self._totals["blocked"], self._totals["busy"]


#: A trainer that knows nothing of its feed.
NEWCOMER = Hello(limits.PROTOCOL, __version__, feed="", nonce=b"")


@dataclass(slots=True, kw_only=True)
class Member:
    """A trainer as a member of its feed: what all its sessions share."""

    hello: Hello = NEWCOMER  # what each greeting says of it, whatever its owner
    explicit: bool = False  # batches are committed by name, not by asking for the next
    order: str = "feed"  # of its batches: "feed" or "any"

    # ``dataclasses.replace`` makes these anew, for the same trainer as a new member.
    connections: int = field(default=0, init=False)  # of all its sessions, so far
    trainer: Trainer = field(init=False, repr=False)  # what it asks, holds and has committed
    meter: Meter = field(default_factory=Meter, init=False)
    failure: Exception | None = field(default=None, init=False)  # permanent, of any session
    refused: deque[HeadraceError] = field(default_factory=deque, init=False)  # commits; raised once
    void: set[int] = field(default_factory=set, init=False)  # tokens of refused commits

    def __post_init__(self) -> None:
        self.learns(nonce=secrets.token_bytes(16), generation=-1)

    def learns(self, **known: Any) -> None:
        """Let later greetings say this too."""
        self.hello = replace(self.hello, **known)

    def fail(self, error: Exception) -> None:
        """Note why the feed is unusable; the first failure stands."""
        self.failure = self.failure or error


@dataclass(slots=True, eq=False)
class Session:
    """One feed, seen by one trainer: its session with one owner."""

    member: Member
    server: Server
    owner: int = 0  # which of its server's owners it is with, …
    owners: int = 1  # … of so many
    number: int = 0  # of its owner, among all owners of the feed

    welcome: Welcome | None = None
    finished: bool = False
    waiting: str = ""  # the server's description of what the feed waits for
    stopped: bool = False  # the server has stopped, and announced that it will be back
    heard_at: float = 0.0  # when the last message of the server came
    awaited_s: float = 0.0  # how long this trainer waited for a batch of this owner
    due_at: float = -1e9  # when a message is due without a new event, at the last ``outgoing``
    requests: Requests = field(default_factory=Requests)
    connected: bool = False  # whether the server has let it in, and is not lost since
    mapped: MappedBatches = field(default_factory=MappedBatches)
    memory: Attachment | None = None  # shared with the server in this session …
    buffers: FreeBuffers | None = None  # … for states that go to the server

    _connection: int = 0  # the number of the last greeting …
    _greeting: Said | None = None  # … and that greeting, until it is answered
    _stepped_at: float = -1e9  # when the last Step was sent
    _said_at: float = -1e9  # when the last greeting or heartbeat was sent
    _said: int = 0  # messages since the Welcome, to the owner …
    _heard: int = 0  # … and from it

    def __post_init__(self) -> None:
        self.member.connections += 1
        self._connection = self.member.connections

    @property
    def address(self) -> str:
        """The address of its owner."""
        return self.server.owners[self.owner]

    @property
    def properties(self) -> dict[str, Any]:
        """The description of the feed beside its schema; empty where it is not known yet."""
        return {} if self.welcome is None else self.welcome.properties

    @property
    def partitions(self) -> range:
        """The partitions of its owner."""
        served = self.server.served
        assert served is not None
        share = served.share, served.shares
        return partitions_of(self.owner, self.owners, served.partitions, share)

    @property
    def ended(self) -> bool:
        """Whether the feed has ended for this trainer: its own commits were answered too."""
        return self.finished and not self.member.trainer.unanswered(self.number)

    # The server

    def receive(self, message: Any, frames: list[Any], now: float) -> None:
        """Handle a message, with the frames after its header."""
        kind, welcome = type(message), self.welcome
        handle = _HANDLERS.get(kind) if self.connected else None
        if handle is not None and welcome is not None and message.session == welcome.session:
            self.heard_at = now
            handle(self, message, frames)
            self._heard += 1
            return
        if kind is ServedShare or (kind is Refused and message.code == _NO_FEED):
            return  # of another server, or one with other owners: the link asks the locator again
        self.heard_at = now
        if kind is Welcome and self.awaits(message):
            self._on_welcome(message)
        elif kind is Refused:
            self.member.fail(from_code(message.code, message.text))
        elif kind is Unknown and not message.session:  # the answer to a Bye before the Welcome
            self._greeting, self.connected = None, False
        elif kind is Pulse and not self.connected:
            # the feed is not open yet, and the locator's reason is an older one
            self.waiting, self.server.waiting = one_line(message.waiting), ""

    def awaits(self, welcome: Welcome) -> bool:
        """Return whether this answers the last greeting, and is the first answer."""
        return welcome.connection == self._connection and not self.connected

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
        if known is not None and welcome.schema not in ([], known.schema):
            raise ProtocolError(
                f"the feed {welcome.feed!r} has another schema since the reconnection: "
                f"{welcome.schema} instead of {known.schema}"
            )
        anew = not self.continues(welcome)
        if anew:
            self.mapped = MappedBatches()
        self.welcome, self._greeting = welcome, None
        known_before = self.member.hello
        self.member.learns(
            feed=welcome.feed,
            run=known_before.run or welcome.run,
            generation=self._property("generation", known_before.generation),
        )
        self._said = self._heard = 0
        self.connected, self.stopped = True, False
        self._connect_trainer(welcome)
        self.requests.reopened()
        self.hurry()  # the owner sends more once it hears by which way

    def _connect_trainer(self, welcome: Welcome) -> None:
        """Connect the trainer by the owner's answer to the greeting."""
        trainer, numbers, partitions = self.member.trainer, welcome.next, self.partitions
        if len(numbers) != 3 * len(partitions) or set(numbers[::3]) != set(partitions):
            raise ProtocolError(
                f"a server with {len(partitions)} partitions says of {len(numbers) // 3} where "
                "they are"
            )
        turns = zip(numbers[1::3], numbers[2::3], strict=True)
        upcoming = dict(zip(numbers[::3], turns, strict=True))
        known = welcome.properties
        lanes, segments = known.get("order") == "lanes", known.get("shape") == "sequences"
        chained = lanes and known.get("placement") == "server" and bool(known.get("states"))
        trainer.is_of(
            lanes=lanes,
            chained=chained,
            strict=segments and not known.get("across_batches", True),
            lazy=not segments or (lanes and not chained),
        )
        trainer.bound(welcome.max_credits)
        trainer.welcome(self.number, upcoming, welcome.stale, welcome.others)

    def _on_pulse(self, pulse: Pulse, frames: object) -> None:
        self.waiting = one_line(pulse.waiting)
        if pulse.said != self._heard:  # a message was dropped
            self.greet()

    def _on_ended(self, message: Ended, frames: object) -> None:
        if not message.code:
            self.finished = True
        elif not self.ended:  # a server that is stopped then accepts nothing from this trainer
            if message.returns:
                self.greet()
                self.stopped = True
                return
            where = self.server.where
            text = message.text if where == self.server.address else f"{where}: {message.text}"
            self.member.fail(from_code(message.code, text))
        self.hurry()  # the server waits for the heartbeat that acknowledges this

    def _property(self, name: str, unknown: int) -> int:
        """Return a number of the feed's properties: ``generation``, or ``epoch``, the term."""
        value = self.properties.get(name, unknown)
        return value if isinstance(value, int) else unknown

    def _on_give(self, message: Give, frames: list[Any]) -> None:
        _, items, *answers = message
        trainer, mapped, memory = self.member.trainer, self.mapped, self.memory
        if any(answers):
            self._on_answers(answers)
        for given in items:
            token, segment = given.token, given.segment
            if given.partition >= trainer.partitions:
                raise ProtocolError(f"a batch is of partition {given.partition}, which is none")
            if token in trainer.hands or token in trainer.commits:  # sent twice
                continue
            if segment:
                mapped.add(token)
                if memory is not None and segment not in memory.segments:
                    memory.keep(segment)
                trainer.give(self.number, given, memory, partial(mapped.released.append, token))
            elif 0 < given.frame <= len(frames):
                trainer.give(self.number, given, frames[given.frame - 1])
            else:
                raise ProtocolError(
                    f"batch {given.partition}/{given.number} names frame {given.frame}, "
                    f"but the message has {len(frames)} frames"
                )

    def _on_answers(self, answers: Sequence[Any]) -> None:
        """Take the answers to commits: committed and stale tokens, and faults."""
        for held, code, text in self.member.trainer.answer(*answers):
            name = named(held.given)
            text = f"{name}: {text}" if text else f"{name} {STALE}"
            self.member.refused.append(from_code(code, text))
            self.member.void.add(held.given.token)

    def _on_idle(self, idle: Idle, frames: object) -> None:
        self.member.trainer.idle(self.number, idle.requests, idle.live)

    def _on_let_go(self, message: LetGo, frames: object) -> None:
        self.member.trainer.let_go()

    def _on_over(self, over: Over, frames: object) -> None:
        trainer = self.member.trainer
        if max(over.partition, *over.also, 0) >= trainer.partitions:
            raise ProtocolError(
                f"a partition that is over is {over.partition} or {over.also!r:.80}"
            )
        trainer.over(self.number, over.request, over.partition, over.epoch, over.also)

    # Outgoing messages

    def outgoing(self, now: float) -> list[Said]:
        """Return the messages that are due."""
        if not self.connected:
            if self.member.failure is not None or now - self._said_at < _HELLO_S:
                return []
            self._said_at = now
            self.due_at = now + _HELLO_S
            if self._greeting is None:
                self._greeting = self._hello()
            return [self._greeting]
        # ``due`` asks for what is wanted, too
        if not self.member.trainer.due(self.number) and (due_in_s := self.due_in(now)) > 0:
            self.due_at = now + due_in_s
            return []
        welcome = self.welcome
        assert welcome is not None
        messages = self._steps(welcome.session, now)
        if self.requests.unsent:
            messages += self.requests.due(welcome.session)
        self._said += len(messages)
        self.due_at = self._said_at + welcome.heartbeat_s
        if self.due_at <= now:
            self._said_at, self.due_at = now, now + welcome.heartbeat_s
            messages.append((self._renew(welcome.session, now), []))
            self._said += 1
        return messages

    def _hello(self) -> Said:
        """Return a greeting with all that its owner needs to know."""
        member, served = self.member, self.server.served
        assert served is not None
        batches: list[Handed] = []
        places: list[bytes] = []
        blocks: list[bytes] = []
        held, commits, gets = member.trainer.greeting(self.number)
        left = [given.token for given, _ in commits]
        room = limits.MAX_UPLOAD_BYTES
        every = [*((one, False) for one in held), *commits]
        for given, states in sorted(every, key=lambda one: one[0].token)[:_MOST_HANDED]:
            block, committed = b"", states is not False
            if states and states.block is not None:
                block = bytes(states.block)
                committed = 0 < len(block) <= room
            columns = states.columns if states and block and committed else ()
            if committed:
                room -= len(block)
                blocks.append(block)
                left.remove(given.token)
            place = given.partition, given.number, given.turn_epoch, given.turn_index
            sizes = given.rows, len(given.place), committed, len(block) if committed else 0
            batches.append(Handed(given.token, *place, *sizes, columns))
            places.append(given.place)
        member.trainer.later(self.number, left, gets[_MOST_GETS:])
        acknowledged = member.trainer.acknowledged.items()
        known = sorted(acknowledged, key=lambda one: -one[1])[:_MOST_ACKNOWLEDGED]
        hello = replace(
            member.hello,
            connection=self._connection,
            batches=tuple(batches),
            gets=tuple(number for get in gets[:_MOST_GETS] for number in get),
            known="" if self.welcome is None else self.welcome.session_file,
            term=self._property("epoch", 0),
            acknowledged=tuple(number for one in known for number in one),
            owner=self.owner,
            owners=self.owners,
            share=served.share,
            shares=served.shares,
        )
        return hello, [b"".join(places), b"".join(blocks)] if batches else []

    def _renew(self, number: int, now: float) -> Renew:
        """Return the heartbeat, which lists all that is mapped.

        So the server notices releases whose message was lost.
        """
        over = self.finished or self.member.failure is not None
        times = self.member.meter.totals(now)
        return Renew(number, self._said, *self.mapped.listed, *times, over, self.awaited_s)

    def _steps(self, session: int, now: float) -> list[Said]:
        """Return messages with all that the trainer and its memory have to say.

        What is not due rides with what is, and waits for it for a moment.
        """
        mapped = self.mapped
        steps: list[Said] = []
        released = mapped.due()
        while mapped.released:
            steps.append((Step(session, released=released), []))
            released = mapped.due()
        commits, returned, withdrawn, gets = self.member.trainer.outgoing(self.number)
        tokens: list[int] = []
        saves: list[Save] = []
        frames: list[Any] = []
        for held in commits:
            token, states = held.given.token, held.payload
            if states is None:
                tokens.append(token)
                continue
            number, block = 0, states.block
            if type(block) is StateBuffer and block.owner is self.buffers:
                number, block = FIRST_BUFFER + block.number, None
            # at most one save with a frame goes in a message
            if len(saves) == _SAVES or (frames and block is not None):
                steps.append((Step(session, saves=saves), frames))
                saves, frames = [], []
            if block is not None:  # a state buffer of an older session is used again: copied
                number, frames = 1, [bytes(block) if type(block) is StateBuffer else block]
            saves.append(made(Save, (token, number, states.columns)))
        if commits or released or returned or withdrawn or gets:
            self._stepped_at = now
            fields = session, tokens, released, returned, withdrawn, gets, saves
            steps.append((made(Step, fields), frames))
        return steps

    # The connection

    def silence(self, now: float) -> float:
        """Return the seconds since the server's last message, 0 while that is normal."""
        heartbeat_s = self.welcome.heartbeat_s if self.welcome is not None else _HELLO_S
        silent = now - self.heard_at
        return silent if silent > _SILENT * heartbeat_s else 0.0

    def greet(self) -> None:
        """Greet the server again at once: it is lost, or may have missed a message."""
        self.member.connections += 1
        self._connection, self._greeting = self.member.connections, None
        self.connected = False
        self.member.trainer.lost(self.number)
        self.hurry()

    def hurry(self) -> None:
        """Send the next heartbeat at once: this process could not send it in time."""
        self._said_at = self.due_at = -1e9

    def due_in(self, now: float) -> float:
        """Return the seconds until a message is due without a new event."""
        if not self.connected:
            return max(0.0, self._said_at + _HELLO_S - now)
        assert self.welcome is not None
        due_at, trainer = self._said_at + self.welcome.heartbeat_s, self.member.trainer
        if self.mapped.released or trainer.owes(self.number):
            moment_s = _HASTE_S if trainer.waits else _MOMENT_S
            due_at = min(due_at, self._stepped_at + moment_s)
        return 0.0 if self.requests.unsent else max(0.0, due_at - now)

    @property
    def greets(self) -> bool:
        """Whether a greeting is on its way, or waits at the server."""
        return self._greeting is not None

    def goodbye(self) -> Bye | None:
        """Return the last message, if a server is there to receive it, or was greeted."""
        if self.connected and self.welcome is not None:
            return Bye(self.welcome.session)
        return Bye(0) if self.greets else None


def named(batch: Any) -> str:
    """Return the name of a batch, or of what its owner gave, for errors."""
    rows = f"{batch.rows} row{'' if batch.rows == 1 else 's'}"
    return f"batch {batch.partition}/{batch.number} (token {batch.token}, {rows})"


#: How each message of an open session is handled, with its further frames.
_HANDLERS: dict[type, Callable[[Session, Any, list[Any]], object]] = {
    Give: Session._on_give,
    Pulse: Session._on_pulse,
    Answered: lambda session, message, frames: session.requests.receive(message),
    Idle: Session._on_idle,
    Over: Session._on_over,
    LetGo: Session._on_let_go,
    Ended: Session._on_ended,
    Unknown: lambda session, message, frames: session.greet(),
}
