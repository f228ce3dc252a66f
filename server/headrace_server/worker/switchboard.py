"""The feeds of one worker: orders of its supervisor, and requests of trainers for a whole feed.

    trainers    ─► reception ─┐               ┌─► outbox ─► trainers
    supervisor  ─► orders    ─┼─► desk (of a ─┼─► stores ── stored ─► desk
    partitions  ─► made      ─┘    feed)      └─► blocks
                                     its port: desk_port.py

No call here blocks.  While a partition works in another thread, its desk keeps the calls that
concern it, and this class *defers* all other calls of partitions until the step has ended.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgpack

from headrace_proto.channel import Frame
from headrace_proto.clock import AwakeClock
from headrace_proto.messages import (
    Answered,
    Drain,
    Flush,
    Resize,
    Retarget,
    Snapshot,
    Stats,
    Version,
)

from ..leasing.words import Proposal
from ..process.child import Message, Pipe, perform
from ..process.config import MOST_FOUND, RunConfig
from ..shaping.machine import TOO_LATE
from ..watch.statuses import added
from .desk_port import KNOWN, DeskPort
from .feed_status import example_status, feed_status, users_of
from .outbox import Outbox
from .partitions import Partitions
from .reception import Reception
from .served_feed import Known, ServedFeed, ServedPartition
from .sessions import Session

logger = logging.getLogger("headrace.trainers")


#: Handles a message of a trainer's session, with its further frames.
Handler = Callable[[Session, Any, Sequence[Frame]], object]
#: A call, and its arguments.
Deferred = tuple[Callable[..., object], tuple[object, ...]]
#: Stands for an unknown trainer.  It never greets, so recovery waits for the full grace period.
_ANYBODY = b""


#: Gets the first changed batch of each partition, and any fault.
_Ordered = Callable[[list[list[int]], str], object]


@dataclass(slots=True, eq=False)
class _Orders:
    """One order to all partitions of a feed.  It is answered when each has stored it."""

    what: Proposal
    answer: _Ordered
    left: list[ServedPartition]  # partitions that have not stored it
    since: list[list[int]] = field(default_factory=list)
    fault: str = ""
    late: str = ""  # why partitions refuse it that have made all; a fault only if all have

    def stored(self, part: ServedPartition) -> None:
        """Note that a partition has stored or refused the order; answer after the last one."""
        self.left.remove(part)
        if not self.left:
            late = "" if self.since else self.late
            self.answer(sorted(self.since), self.fault or late)


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
    #: Names the user function in which the worker has been for more than a second.
    inside: Callable[[], str] = lambda: ""

    def __post_init__(self) -> None:
        partitions, outbox = self.partitions, self.outbox
        self._stores = partitions.stores
        partitions.logs.wake = self._wake_reader
        #: By feed: calls that wait until all its partitions are open.
        self._calls: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self.waits = True  # whether something may wait for ``act``
        for feed in self.feeds.values():
            feed.wakes = self.wake
        #: Requests of trainers that concern a whole feed, by type.
        self.handlers: dict[type, Handler] = {
            Flush: self._flush,
            Snapshot: self._snapshot,
            Retarget: self._retarget,
            Resize: self._resize,
            Drain: self._drain,
            Version: self._set_version,
            Stats: self._stats,
        }
        self.reception = Reception(self)
        self._reported_open = False
        self._reported_over: set[str] = set()  # names of feeds
        self.paused = False  # whether no more batches are handed out …
        self._pausing: list[int] = []  # pause requests, answered when no lease is left
        self.stopping = False
        #: Calls to partitions, for when their step has ended; None between steps.
        self.deferred: list[Deferred] | None = None
        self._orders: dict[str, Callable[..., None]] = {
            "fail": self._fail,
            "pause": self._pause,
            "stats": self._answer_stats,
            "users": self._answer_users,
            "inspect": self._inspect,
            "logs": self._answer_logs,
            "trim": self._trim,
            "copy": self._copy,
            "close": self._close,
            "snapshotted": lambda **answer: outbox.snapshotted(Answered(**answer)),
            "not_taken_back": self._refuse_rewind,
            "all_opened": self._all_opened,
            "stop": self._stop,
        }

    def begin(self, begun: Message) -> None:
        """Restore the state of the feeds that the supervisor keeps.

        "paused", "failed" (code and text of a failure, by feed) and "all_opened" (as in the order
        of that name, if it was given before).
        """
        self.paused = bool(begun["paused"])
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
        feed.start(DeskPort(self, feed), self._known_before(feed), ahead, self.clock())
        feed.desk.paused = self.paused

    def _known_before(self, feed: ServedFeed) -> dict[bytes, Known]:
        """Return the trainers of the process before this one.

        Where the partitions had other owners, some may be missing: _ANYBODY stands for them.
        """
        known: dict[bytes, Known] = {}
        lists: list[list[int]] = []
        complete = True
        for place, part in enumerate(feed.partitions.values()):
            note = part.noted.get(KNOWN, b"")
            owners, sessions, births, runs = msgpack.unpackb(note) if note else (0, [], [], [])
            known.update({nonce: tuple(of) for nonce, *of in sessions})
            feed.births += births
            lists.append(runs)
            if place and note:  # it was the first of another owner
                self._stores.note(part, KNOWN, bytes)
            if not place:
                complete = owners == feed.owners or not feed.used
        # A run that is over for one owner of an earlier life is not the present one of another.
        feed.runs = dict.fromkeys(run for runs in lists for run in runs[:-1])
        feed.runs |= dict.fromkeys(run for runs in lists for run in runs[-1:])
        return known if complete else {**known, _ANYBODY: (0, -1, 0)}

    def do(self, action: Callable[..., object], *arguments: object) -> None:
        """Call the partitions, after the current step if there is one."""
        if self.deferred is None:
            action(*arguments)
        else:
            self.deferred.append((action, arguments))

    def wake(self) -> None:
        """Have ``act`` examine the feeds, since one may have ended."""
        self.waits = True

    def _wake_reader(self, name: str, partition: int) -> None:
        """Retry a partition that waits for its log, after the current step."""
        feed = self.feeds[name]

        def wake() -> None:
            if feed.serves:
                feed.desk.wake(partition)

        self.do(wake)

    def _when_open(self, feed: str, call: Callable[[], object]) -> None:
        """Have ``act`` call the partitions of a feed once it is open."""
        self.waits = True
        self._calls[feed].append(call)

    # The supervisor

    def obey(self, order: Message) -> None:
        """Carry out an order of the supervisor."""
        perform(self._orders, order)

    def _answer(self, request: int, **values: object) -> None:
        self.pipe.report("answer", request=request, **values)

    def _fail(self, code: str, text: str, feed: str | None = None) -> None:
        for one in self.feeds.values():
            if not one.over and feed in (None, one.name):
                one.fail(code, text)

    def _pause(self, request: int | None = None) -> None:
        """Stop handing out batches, and have trainers return those that they have not begun."""
        self.waits = True
        self._pausing += [] if request is None else [request]
        if self.paused:
            return
        self.paused = True
        for feed in self.feeds.values():
            if feed.serves:
                feed.desk.paused = True
        for session in self.outbox.sessions.present():
            if session.welcome:
                self.outbox.let_go(session)

    def _answer_stats(self, request: int) -> None:
        self.do(self.partitions.report)
        now = self.clock()
        feeds = {name: feed_status(feed, now) for name, feed in self.feeds.items()}
        workers = [{"worker": self.worker, **self.partitions.status()}]
        self._answer(request, feeds=feeds, workers=workers, access=self.reception.access())

    def _answer_users(self, request: int, feed: str) -> None:
        self._answer(request, users=users_of(self.feeds[feed]))

    def _answer_logs(self, request: int) -> None:
        self._answer(request, logs=self.partitions.logs.described(self.clock()))

    def _trim(self, request: int, log: str, idle_s: float) -> None:
        self._answer(request, ended=self.partitions.logs.trim(log, idle_s, self.clock()))

    def _close(self, request: int, feed: str, cancel: bool) -> None:
        self._close_input(self.feeds[feed], cancel, partial(self._answer, request))

    def _refuse_rewind(self, feed: str, snapshot: str, code: str, text: str) -> None:
        self.feeds[feed].resuming.refuse(snapshot, code, text)

    def _all_opened(self, used: list[list[object]], touched: list[list[object]]) -> None:
        """Note the reports of the other owners; all owners have opened their feeds."""
        for feed in self.feeds.values():
            named: list[object] = [feed.name, feed.resuming.generation]
            feed.resuming.all_opened(named in used, named in touched)

    def _stop(self) -> None:
        self.stopping = True

    def _copy(self, request: int, feed: str, directory: str) -> None:
        """Copy the stores of all partitions."""
        served, faults = self.feeds[feed], list[str]()
        left = {*served.partitions}

        def copied(partition: int, fault: str) -> None:
            left.discard(partition)
            if fault:
                faults.append(f"partition {partition}: {fault}")
            if not left:
                answer()

        def answer() -> None:
            code, text = served.failure or (("server", faults[0]) if faults else ("", ""))
            self._answer(request, code=code, text=text)

        def call() -> None:
            if served.serves:
                self.partitions.copy(served, directory, copied)
            else:
                answer()

        self._when_open(feed, call)

    def _inspect(self, request: int, feed: str, key: str) -> None:
        """Answer with the places of the examples of a key (hexadecimal), and their trainers."""

        def seek() -> None:
            now, served = self.clock(), self.feeds[feed]
            places = [
                example_status(served, part.number, found, now)
                for part in (served.partitions.values() if served.serves else ())
                for found in part.run.machine.seek(bytes.fromhex(key))
            ]
            self._answer(request, found=places[:MOST_FOUND])

        self._when_open(feed, seek)

    # Requests of trainers that concern a whole feed

    def hurry(self, session: Session) -> None:
        """Store all commits now, since this trainer waits for its answers alone."""
        self.outbox.hurry(session)
        self.do(self._stores.hurry)

    def _flush(self, session: Session, flush: Flush, frames: Sequence[Frame]) -> None:
        """Store the states of a trainer's lanes; answer the last message of a flush."""
        self.do(self._keep, session, flush, frames[0] if frames else b"")

    def _keep(self, session: Session, flush: Flush, block: bytes) -> None:
        if not (feed := session.feed).serves:
            return
        answer = partial(self.outbox.answer_request, Answered(session.number, flush.request))
        if not flush.rows:
            answer()
            return
        batch = feed.desk.last_committed(session.nonce, flush.token)
        fault = feed.fault_of_flush(batch, flush.rows, flush.columns, block)
        if batch is None or fault[0]:
            failed = Answered(session.number, flush.request, None, *fault)
            self.outbox.answer_request(failed)
            return
        part = feed.partitions[batch.partition]
        part.run.keep(batch, list(flush.rows), flush.columns, block)
        self._stores.submit(part, at_once=True)
        if not flush.more:
            self._stores.then(part, answer)

    def _snapshot(self, session: Session, message: Snapshot, frames: object) -> None:
        """Ask the supervisor for a snapshot; a repeated request gets the same answer again."""
        feed, request = session.feed, message.request
        if session.snapshot == request:
            if session.snapshotted is not None:
                self.outbox.send_to(session, session.snapshotted)
            return
        session.snapshot, session.snapshotted = request, None
        failure = feed.failure
        if failure is None and not feed.durable:
            text = f"feed {feed.name!r}: a snapshot needs a server with a state_dir (--state-dir)"
            failure = "server", text
        if failure is not None:
            self.outbox.snapshotted(Answered(session.number, request, None, *failure))
        else:
            self.pipe.report(
                "snapshot",
                feed=feed.name,
                session=session.number,
                request=request,
                name=message.name,
                whole=message.whole,
            )

    def _drain(self, session: Session, message: Drain, frames: object) -> None:
        """Close the input of a feed for a trainer."""
        drained = Answered(session.number, message.request)
        answer = partial(self.outbox.answer_request, drained)
        self._close_input(session.feed, message.cancel, answer)

    def _retarget(self, session: Session, message: Retarget, frames: object) -> None:
        """Change the proportions of classes, or the weights of a mix, for a trainer."""
        kind = "weights" if message.mix else "target"
        self._change(session, message.request, (kind, list(message.probs)))

    def _resize(self, session: Session, message: Resize, frames: object) -> None:
        """Change the batch sizes for a trainer."""
        self._change(session, message.request, ("batch_size", list(message.sizes)))

    def _set_version(self, session: Session, message: Version, frames: object) -> None:
        """Note the version of the policy that trains."""
        for part in session.feed.partitions.values():
            if part.open:
                part.run.set_version(message.version)
        self.outbox.answer_request(Answered(session.number, message.request))

    def _change(self, session: Session, request: int, what: Proposal) -> None:
        """Change the batches of all partitions; answer with the first changed batch of each."""

        def answer(since: list[list[int]], fault: str) -> None:
            if what[0] == "batch_size" and not fault:
                session.feed.resized(what[1])
            code = "server" if fault else ""
            self.outbox.answer_request(Answered(session.number, request, since, code, fault))

        self._order(session.feed, what, answer)

    def _order(self, feed: ServedFeed, what: Proposal, answer: _Ordered) -> None:
        """Order all partitions of a feed to make other batches."""
        parts = [*feed.partitions.values()]
        orders = _Orders(what, answer, [*parts])
        self._when_open(feed.name, partial(self._steer, feed, orders, parts))

    def _steer(self, feed: ServedFeed, orders: _Orders, parts: Sequence[ServedPartition]) -> None:
        """Give an order to the partitions that can take one now, and to the others later.

        Batches of an earlier life that trainers hold are claimed first, so that they still count.
        """
        if not feed.serves:
            orders.answer([], "the feed has failed")
            return
        if feed.desk.recovering:
            self._when_open(feed.name, partial(self._steer, feed, orders, parts))
            return
        ordered, later, over = (list[ServedPartition]() for _ in range(3))
        for part in parts:
            if part.run.machine.finished and orders.what[0] == "close":
                over.append(part)
                continue
            try:
                order = self.partitions.steer(part, orders.what)
            except ValueError as error:  # the numbers come from a trainer
                over.append(part)
                text = str(error)[:1000]
                if text == TOO_LATE:
                    orders.late = text
                else:
                    orders.fault = orders.fault or text
                    orders.since.append([part.number, 0])
                continue
            if order is None:
                later.append(part)
            else:
                orders.since.append([part.number, order.since])
                ordered.append(part)
        if later:
            self._when_open(feed.name, partial(self._steer, feed, orders, later))
        for part in over:
            orders.stored(part)
        for part in ordered:
            self._stores.then(part, partial(orders.stored, part))

    def _stats(self, session: Session, message: Stats, frames: object) -> None:
        """Answer a trainer with the counts of ready, in-flight and committed batches."""
        feed = session.feed

        def call() -> None:
            if feed.serves:
                runs = [part.run for part in feed.partitions.values()]
                counts = added([feed.sizes(), *(run.sizes() for run in runs)])
                due = [run.epoch_due() for run in runs]
                still = [epoch for epoch, more in due if more]
                least = min(still) if still else max(due)[0]
                counts |= {name: feed.counters.counts[name] for name in ("batches", "rows")}
                counts |= {"epoch": least, "open": not feed.over, **feed.examples()}
                if message.length:
                    world = session.greeting.world_size if session.greeting else 0
                    counts["length"] = self.partitions.length(feed, world, message.length - 1)
                self.outbox.answer_request(Answered(session.number, message.request, counts))

        self._when_open(feed.name, call)

    def _close_input(self, feed: ServedFeed, cancel: bool, answer: Callable[[], object]) -> None:
        """Close a feed's input; answer when its partitions have stored that."""

        def close() -> None:
            if feed.serves and feed.close(cancel):
                self._order(feed, ("close", cancel), lambda since, fault: answer())
            else:
                answer()

        self._when_open(feed.name, close)

    # Desks

    def act(self) -> None:
        """Make the deferred calls, and handle feeds that have ended."""
        self.waits = bool(self._pausing) or not self._reported_open
        for feed in self.feeds.values():
            if self._calls and feed.opened:
                for call in self._calls.pop(feed.name, ()):
                    self.do(call)
            if feed.desk.ended if feed.serves else feed.failure is not None:
                self._act_on_end(feed)
        if self._pausing or not self._reported_open:
            self._report()

    def _act_on_end(self, feed: ServedFeed) -> None:
        """Report the end of a feed once: a failure at once, else after all trainers know it."""
        if feed.failure is None:
            self.outbox.finish(feed)
        if feed.name in self._reported_over:
            return
        if feed.failure is not None:
            for session in feed.present.values():
                if not session.welcome:
                    self.reception.welcome_to_failed(session)
            self.outbox.end(feed, *feed.failure)
        elif self.deferred is not None or not feed.is_heard(self.clock()):
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
                self._answer(request)
            self._pausing.clear()
