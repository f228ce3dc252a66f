"""Feeds, trainers and partitions of one worker: what each says becomes calls to the others.

    trainers    ─► reception ─┐               ┌─ sent ─► outbox ─► trainers
    supervisor  ─► orders    ─┼─► desk (of a ─┼─ log ──► stores ── stored ─► desk
    partitions  ─► made      ─┘    feed)      └─ gone ─► blocks

No call here waits.  A partition may work in another thread while this one serves trainers; the desk
keeps what concerns it until it has made something.  Other calls of partitions are *deferred* until
the step has ended.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgpack

from headrace_proto.clock import AwakeClock
from headrace_proto.codec import pack
from headrace_proto.messages import Answered, Idle, Over, Unknown

from ..leasing import protocol
from ..leasing.desk import SESSIONS
from ..process.child import Pipe, perform
from ..process.config import RunConfig
from .feed_status import feed_status, users_of
from .outbox import Outbox
from .partitions import Partitions
from .reception import Reception
from .requests import FeedRequests
from .served_feed import Known, ServedFeed
from .sessions import Session

logger = logging.getLogger("headrace.trainers")


#: A call, and its arguments.
Deferred = tuple[Callable[..., object], tuple[Any, ...]]
#: The note of an owner's first partition that lists the trainers which have a session.
_KNOWN = "known"
#: In place of a trainer: one that never greets, so that the whole grace is waited for.
_ANYBODY = b""


@dataclass(eq=False)
class Switchboard:
    """All feeds of a worker."""

    config: RunConfig
    worker: int
    feeds: dict[str, ServedFeed]
    partitions: Partitions
    pipe: Pipe
    clock: AwakeClock
    outbox: Outbox
    #: Returns the user function in which the worker has been for long, in words.
    inside: Callable[[], str] = lambda: ""

    def __post_init__(self) -> None:
        partitions, outbox = self.partitions, self.outbox
        self._stores = partitions.stores
        self.requests = FeedRequests(self)
        self.reception = Reception(self)
        self._logged: dict[str, Counter[int]] = {name: Counter() for name in self.feeds}
        self._reported_open = False
        self._reported_over: set[str] = set()  # names of feeds
        self._paused = False  # whether no more batches are handed out …
        self._pausing: list[int] = []  # pause requests, answered when no lease is left
        self.stopping = False
        #: Calls to partitions, for when their step has ended; None between steps.
        self.deferred: list[Deferred] | None = None
        requests, feeds = self.requests, self.feeds
        #: What a desk says to a session, by type.
        self._sent: dict[type, Callable[[Session, Any], object]] = {
            protocol.Give: outbox.give,
            protocol.Answer: outbox.answer,
            protocol.Idle: self._idle,
            protocol.Over: self._over,
            protocol.Welcome: self._welcome,
            protocol.Refused: self.reception.refuse,
            protocol.Unknown: lambda session, _: outbox.tell(session, Unknown(session.number)),
        }
        self._orders: dict[str, Callable[..., None]] = {
            "fail": self._fail,
            "pause": self._pause,
            "stats": self._answer_stats,
            "users": self._answer_users,
            "inspect": lambda feed, **asked: requests.inspect(feeds[feed], **asked),
            "copy": lambda feed, **asked: requests.copy(feeds[feed], **asked),
            "close": self._close,
            "snapshotted": lambda **answer: outbox.snapshotted(Answered(**answer)),
            "not_taken_back": self._refuse_rewind,
            "all_opened": self._all_opened,
            "stop": self._stop,
        }

    def begin(self, begun: Mapping[str, Any]) -> None:
        """Begin in the state that the supervisor gives.

        "paused", "failed" (code and text of a failure, by feed) and "all_opened" (as in the order
        of that name, if it was given before).
        """
        self._paused = bool(begun["paused"])
        for feed in self.feeds.values():
            if feed.name in begun["failed"]:
                feed.fail(*begun["failed"][feed.name])
        if begun["all_opened"] is not None:
            self._all_opened(**begun["all_opened"])

    def open(self, feed: ServedFeed) -> None:
        """Open a feed's desk: all of its partitions are open."""
        for part in feed.partitions.values():
            feed.on_opened(part)
        self.partitions.opened(feed)
        ahead = part.run.capacity or self.config.max_ahead
        feed.start(self._known_before(feed), ahead, self.clock())
        feed.desk.paused = self._paused

    def _known_before(self, feed: ServedFeed) -> dict[bytes, Known]:
        """Return the trainers of the life before.  Of other owners' lives all may be unknown."""
        known: dict[bytes, Known] = {}
        complete = True
        for place, part in enumerate(feed.partitions.values()):
            note = part.noted.get(_KNOWN, b"")
            owners, sessions, births = msgpack.unpackb(note) if note else (0, [], [])
            known.update({nonce: tuple(of) for nonce, *of in sessions})
            for rank, *of in births:
                feed.births[rank] = max(tuple(of), feed.births.get(rank, (0, 0)))
            if place and note:  # it was the first of another owner
                self._stores.note(part, _KNOWN, b"")
            if not place:
                complete = owners == feed.owners or not feed.used
        return known if complete else {**known, _ANYBODY: (0, -1, 0)}

    def do(self, action: Callable[..., object], *arguments: Any) -> None:
        """Call the partitions, after their current step."""
        if self.deferred is None:
            action(*arguments)
        else:
            self.deferred.append((action, arguments))

    # The supervisor

    def obey(self, order: Mapping[str, Any]) -> None:
        """Carry out an order of the supervisor."""
        perform(self._orders, order)

    def _answer(self, request: int, **values: Any) -> None:
        self.pipe.report("answer", request=request, **values)

    def _fail(self, code: str, text: str, feed: str | None = None) -> None:
        for one in self.feeds.values():
            if not one.over and feed in (None, one.name):
                one.fail(code, text)

    def _pause(self, request: int | None = None) -> None:
        """Hand out nothing more, and have trainers return what they have not begun."""
        self._pausing += [] if request is None else [request]
        if self._paused:
            return
        self._paused = True
        for feed in self.feeds.values():
            if feed.serves:
                feed.desk.paused = True
                self.drain(feed)  # what it has handed out goes first
        for session in self.outbox.sessions.present():
            if session.welcome:
                self.outbox.let_go(session)

    def _answer_stats(self, request: int) -> None:
        self.do(self.partitions.report)
        sessions, now = self.outbox.sessions, self.clock()
        feeds = {name: feed_status(feed, sessions, now) for name, feed in self.feeds.items()}
        workers = [{"worker": self.worker, **self.partitions.status()}]
        self._answer(request, feeds=feeds, workers=workers, access=self.reception.access())

    def _answer_users(self, request: int, feed: str) -> None:
        self._answer(request, users=users_of(self.feeds[feed], self.outbox.sessions))

    def _close(self, request: int, feed: str, cancel: bool) -> None:
        self.requests.close(self.feeds[feed], cancel, partial(self._answer, request))

    def _refuse_rewind(self, feed: str, snapshot: str, code: str, text: str) -> None:
        self.feeds[feed].resuming.refuse(snapshot, code, text)

    def _all_opened(self, used: list[list[Any]], touched: list[list[Any]]) -> None:
        """Note the other owners' reports on the feeds, now that all owners have opened theirs."""
        for feed in self.feeds.values():
            named = [feed.name, feed.resuming.generation]
            feed.resuming.all_opened(named in used, named in touched)

    def _stop(self) -> None:
        self.stopping = True

    # Desks

    def act(self) -> None:
        """Carry out what the desks say, and what follows from that."""
        for feed in self.feeds.values():
            if feed.serves:
                self.drain(feed)
            if feed.name in self.requests.calls:
                self.requests.act(feed)
            if feed.reports:
                self._report_on(feed)
            if feed.over:
                self._act_on_end(feed)
        if self._pausing or not self._reported_open:
            self._report()
        while self.partitions.removed:
            self.outbox.retire(self.partitions.removed.pop())

    def drain(self, feed: ServedFeed) -> None:
        desk, sent, named = feed.desk, self._sent, self.outbox.sessions.named
        while desk.log or desk.sent or desk.gone:
            if desk.log:
                entries, desk.log = desk.log, []
                self._store(feed, entries)
            if desk.sent:
                messages, desk.sent = desk.sent, []
                for nonce, message in messages:
                    if (session := named(feed.name, nonce)) is not None:
                        sent[type(message)](session, message)
            if desk.gone:
                gone, desk.gone = desk.gone, []
                for batch in gone:
                    self.partitions.blocks.gone(batch)

    def _store(self, feed: ServedFeed, entries: list[tuple[Any, ...]]) -> None:
        """Have the entries of a desk's log stored, and the desk learn of that."""
        logged, stores = self._logged[feed.name], self._stores
        touched: dict[int, None] = {}
        known = False
        for kind, key, *rest in entries:
            if kind == "join":
                run, rank, birth = rest
                feed.known[key] = run, rank, birth
                if rank >= 0:
                    feed.births[rank] = run, birth
                known = True
            elif kind == "leave":
                known = feed.known.pop(key, None) is not None or known
            else:
                tokens, rows = ((rest[0],), rest[1]) if kind == "commit" else ((), 0)
                stores.submit(feed.partitions[key], tokens, rows, at_once=kind in _AT_ONCE)
            at = SESSIONS if kind in ("join", "leave") else key
            logged[at] += 1
            touched[at] = None
        first = next(iter(feed.partitions.values()))
        if known:
            sessions = [[nonce, *of] for nonce, of in feed.known.items()]
            births = [[rank, *of] for rank, of in feed.births.items()]
            stores.note(first, _KNOWN, pack([feed.owners, sessions, births]))
        for at in touched:
            part = first if at == SESSIONS else feed.partitions[at]
            stores.then(part, partial(feed.on_stored, at, logged[at]))

    def _welcome(self, session: Session, welcome: protocol.Welcome) -> None:
        self.reception.welcome(session, welcome)
        if self._paused:
            self.outbox.let_go(session)

    def _idle(self, session: Session, idle: protocol.Idle) -> None:
        live = (idle.request,) if idle.live else ()
        self.outbox.tell(session, Idle(session.number, (idle.request,), live))

    def _over(self, session: Session, over: protocol.Over) -> None:
        epoch = -1 if over.epoch is None else over.epoch
        self.outbox.tell(
            session, Over(session.number, over.request, over.partition, epoch, over.also)
        )

    def _report_on(self, feed: ServedFeed) -> None:
        """Send the supervisor the reports and requests of a feed."""
        for kind, values in feed.reports:
            self.pipe.report(kind, feed=feed.name, **values)
        feed.reports.clear()

    def _act_on_end(self, feed: ServedFeed) -> None:
        """Report the end of a feed, once: a failure at once, else when all trainers know of it."""
        if feed.failure is None:
            self.outbox.finish(feed.name)
        if feed.name in self._reported_over:
            return
        if feed.failure is not None:
            for session in self.outbox.sessions.of_feed(feed.name):
                if session.present and not session.welcome:
                    self.reception.welcome_to_failed(session, feed)
            self.outbox.end(feed.name, *feed.failure)
            self.do(self.partitions.abandon, feed)
        elif self.deferred is not None or not self.reception.all_heard(feed, self.clock()):
            return
        self._reported_over.add(feed.name)
        code, text = feed.failure or ("", "")
        self.pipe.report("over", feed=feed.name, code=code, text=text)

    def _report(self) -> None:
        if not self._reported_open and all(feed.opened for feed in self.feeds.values()):
            self._reported_open = True
            self.reception.opened()
            self.pipe.report("open")
        if self._pausing and not any(
            feed.desk.leased or feed.desk.saving for feed in self.feeds.values() if feed.serves
        ):
            for request in self._pausing:
                self.pipe.report("answer", request=request)
            self._pausing.clear()


#: Entries that are stored at once: what was dealt, or ordered, goes out under it.
_AT_ONCE = frozenset(("deal", "order"))
