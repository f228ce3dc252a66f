"""Desks, trainers and partitions of one worker: events of each become calls to the others.

    trainers    ─► reception ─┐                          ┌─► outbox ─► trainers
    supervisor  ─► orders    ─┼─► desks (one per feed) ──┤
    partitions  ─► events    ─┘      effects             └─► partitions

No call here waits.  Partitions may work in another thread while this one serves trainers; calls to
them are *deferred* until they are idle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace_proto.clock import AwakeClock
from headrace_proto.messages import Answered, EpochBegun, Following, Idle, Passed

from ..core.dispatch_effects import (
    Answer,
    BeginEpoch,
    Claim,
    Deal,
    Dealt,
    Finish,
    Freed,
    Leave,
    PassOver,
    Release,
    Rewound,
    Send,
    StoreCommit,
    StoreLanes,
    Want,
)
from ..process.child import Pipe, perform
from ..process.config import RunConfig
from .desk import Desk
from .events import Event
from .feed_status import feeds_status, users_of
from .outbox import Outbox
from .partitions import Partitions
from .reception import Reception
from .requests import FeedRequests
from .returning import Returning
from .unstored_rounds import UnstoredRounds

logger = logging.getLogger("headrace.trainers")


#: A call, and its arguments.
Deferred = tuple[Callable[..., object], tuple[Any, ...]]


@dataclass(eq=False)
class Switchboard:
    """All feeds of a worker."""

    config: RunConfig
    worker: int
    partitions: Partitions
    pipe: Pipe
    clock: AwakeClock
    outbox: Outbox
    returning: Returning
    #: Returns the user function in which the worker has been for long, in words.
    inside: Callable[[], str] = lambda: ""

    def __post_init__(self) -> None:
        partitions, outbox = self.partitions, self.outbox
        self.unstored_rounds = UnstoredRounds(partitions, outbox)
        self.desks = {
            feed.name: Desk(
                feed,
                self.config,
                self.worker,
                outbox.tell,
                partial(partitions.used, feed.name),
            )
            for feed in self.config.feeds
        }
        for name, desk in self.desks.items():
            partitions.turns.follow(name, desk.dispatcher.untaken)
        self._requests = FeedRequests(partitions, self.do, outbox, self.pipe, self.clock)
        self.reception = Reception(
            config=self.config,
            desks=self.desks,
            outbox=outbox,
            clock=self.clock,
            requests=self._requests,
            returning=self.returning,
            owner=self.worker,
            inside=self.inside,
        )
        self._reported_open = False
        self._reported_over: set[str] = set()  # names of feeds
        self._paused = False  # whether no more batches are handed out …
        self._pausing: list[int] = []  # pause requests, answered when no lease is left
        self.stopping = False
        #: Calls to partitions, for when their step has ended; None between steps.
        self.deferred: list[Deferred] | None = None
        requests, desks = self._requests, self.desks
        #: Effects that the partitions carry out, by the name of the feed.
        self._calls: dict[type, Callable[[str, Any], object]] = {
            StoreCommit: partitions.save,
            Freed: partitions.free,
            Want: partitions.want,
            PassOver: partitions.pass_over,
            BeginEpoch: partitions.begin_epoch,
            Leave: partitions.leave,
            Deal: partitions.deal,
            Claim: partitions.claim,
            Release: partitions.release,
            StoreLanes: partitions.flush,
        }
        self._effects: dict[type, Callable[[Desk, Any], object]] = {
            **dict.fromkeys(
                (Send, EpochBegun, Following, Idle, Passed), self.unstored_rounds.deliver
            ),
            Answer: lambda desk, e: outbox.answer(e),
            Dealt: self.unstored_rounds.dealt,
            Finish: lambda desk, e: outbox.finish(e.session),
            Rewound: lambda desk, e: self.reception.rewound(e.session),
        }
        self._orders: dict[str, Callable[..., None]] = {
            "fail": self._fail,
            "pause": self._pause,
            "stats": self._answer_stats,
            "users": self._answer_users,
            "inspect": lambda feed, **asked: requests.inspect(desks[feed], **asked),
            "copy": lambda feed, **asked: requests.copy(desks[feed], **asked),
            "close": self._close,
            "snapshotted": lambda **answer: outbox.snapshotted(Answered(**answer)),
            "not_taken_back": self._refuse_rewind,
            "all_opened": self._all_opened,
            "stop": self._stop,
        }

    def begin(self, begun: Mapping[str, Any]) -> None:
        """Begin in the state that the supervisor gives.

        "paused", "failed" (code and text of a failure, by feed), "all_opened" (as in the order
        of that name, if it was given before) and "before" (as the first life sent it with "open").
        """
        self._paused = bool(begun["paused"])
        for desk in self.desks.values():
            desk.dispatcher.wait_for_others(True)
            desk.dispatcher.paused = True
            desk.counters.before = {of[0]: of[1:] for of in begun["before"].get(desk.name, ())}
            if desk.name in begun["failed"]:
                desk.fail(*begun["failed"][desk.name])
        if begun["all_opened"] is not None:
            self._all_opened(**begun["all_opened"])

    def all_are_back(self) -> None:
        """Hand out batches: all trainers of the earlier life have greeted or left."""
        for desk in self.desks.values():
            desk.dispatcher.wait_for_others(False)
            desk.dispatcher.paused = self._paused

    def hear(self, event: Event) -> None:
        """Take an event of the partitions, unless its feed has failed."""
        feed, call, *values = event
        desk = self.desks[feed]
        if desk.failure is None:
            call(desk, *values)

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
        for desk in self.desks.values():
            if not desk.over and feed in (None, desk.name):
                desk.fail(code, text)

    def _pause(self, request: int | None = None) -> None:
        for desk in self.desks.values():
            desk.dispatcher.paused = True
        self._paused = True
        self._pausing += [] if request is None else [request]

    def _answer_stats(self, request: int) -> None:
        self.do(self.partitions.count)
        report = self.partitions.reporter
        feeds = feeds_status(self.desks, self.outbox.sessions, self.clock(), report.feeds)
        workers = [{"worker": self.worker, **report.worker}]
        self._answer(request, feeds=feeds, workers=workers, access=self.reception.access())

    def _answer_users(self, request: int, feed: str) -> None:
        self._answer(request, users=users_of(self.desks[feed], self.outbox.sessions))

    def _close(self, request: int, feed: str, cancel: bool) -> None:
        self._requests.close(self.desks[feed], cancel, partial(self._answer, request))

    def _refuse_rewind(self, feed: str, snapshot: str, code: str, text: str) -> None:
        self.desks[feed].resuming.refuse(snapshot, code, text)

    def _all_opened(self, used: list[list[Any]], touched: list[list[Any]]) -> None:
        """Note the other owners' reports on the feeds, now that all owners have opened theirs."""
        for desk in self.desks.values():
            named = [desk.name, desk.resuming.generation]
            desk.resuming.all_opened(named in used, named in touched)

    def _stop(self) -> None:
        self.stopping = True

    # Effects

    def act(self) -> None:
        """Carry out the effects of all desks, including effects caused by these actions."""
        calls, handlers, deferred = self._calls, self._effects, self.deferred
        for desk in self.desks.values():
            while effects := desk.dispatcher.take_effects():
                for effect in effects:
                    call = calls.get(type(effect))
                    if call is None:
                        handlers[type(effect)](desk, effect)
                    elif deferred is None:
                        call(desk.name, effect)
                    else:
                        deferred.append((call, (desk.name, effect)))
            if desk.name in self._requests.calls:
                self._requests.act(desk)
            if desk.reports:
                self._report_on(desk)
            if desk.failure is not None or desk.dispatcher.ended:
                self._act_on_end(desk)
        if self._pausing or not self._reported_open:
            self._report()
        while self.partitions.removed:
            self.outbox.retire(self.partitions.removed.pop())

    def _report_on(self, desk: Desk) -> None:
        """Send the supervisor the reports and requests of a feed."""
        for kind, values in desk.reports:
            self.pipe.report(kind, feed=desk.name, **values)
        desk.reports.clear()

    def _act_on_end(self, desk: Desk) -> None:
        """Report the end of a feed, once: a failure at once, else when all trainers know of it."""
        if desk.name in self._reported_over:
            return
        if desk.failure is not None:
            self.outbox.end(desk.name, *desk.failure)
            self.do(self.partitions.abandon, desk.name)
        elif not self.reception.all_heard(desk, self.clock()):
            return
        self._reported_over.add(desk.name)
        code, text = desk.failure or ("", "")
        self.pipe.report(
            "over",
            feed=desk.name,
            code=code,
            text=text,
            batches=desk.usage().batches,
            dropped=desk.counters.dropped(),
        )

    def _report(self) -> None:
        if not self._reported_open and all(desk.opened for desk in self.desks.values()):
            self._reported_open = True
            self.reception.opened()
            desks = self.desks.items()
            before = {n: [[p, *of] for p, of in d.counters.before.items()] for n, d in desks}
            self.pipe.report("open", before=before)
        if self._pausing and not any(
            desk.dispatcher.leased for desk in self.desks.values() if desk.failure is None
        ):
            for request in self._pausing:
                self.pipe.report("answer", request=request)
            self._pausing.clear()
