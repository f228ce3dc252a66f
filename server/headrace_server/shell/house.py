"""Desks, trainers and partitions of one worker: what one side does becomes calls to the others.

    trainers    ─► reception ─┐                          ┌─► outbox ─► trainers
    supervisor  ─► orders    ─┼─► desks (one per feed) ──┤
    partitions  ─► events    ─┘      effects             └─► partitions

Nothing here waits.  Partitions may be at work, in another thread, while trainers are heard: ``do``
calls them once they are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from headrace_proto.clock import AwakeClock
from headrace_proto.messages import Snapshotted

from ..core.handover import (
    Answer,
    Claim,
    Dealt,
    Finish,
    Flush,
    Freed,
    Full,
    Idle,
    Leave,
    Passed,
    Release,
    Rewound,
    Save,
    Send,
    Taken,
    Want,
)
from .child import ParentPipe
from .config import RunConfig
from .dealing import Dealing
from .desk import Desk
from .events import (
    Claimed,
    Copied,
    Dry,
    Failed,
    Finished,
    Flushed,
    Kept,
    Made,
    Opened,
    Removed,
    Retargeted,
    Starved,
    Waiting,
)
from .exchange import TrainersExchange
from .outbox import Outbox
from .partitions import Partitions
from .reception import Reception
from .rejoining import TOUCHED, USED
from .relay import Ready, RelayDoor
from .sessions import SessionTable
from .telling import Teller

__all__ = ["House"]

logger = logging.getLogger("headrace.trainers")


class House:
    """All feeds of a worker."""

    def __init__(
        self,
        config: RunConfig,
        worker: int,
        partitions: Partitions,
        pipe: ParentPipe,
        clock: AwakeClock,
        door: RelayDoor,
        sessions: SessionTable,
        near: TrainersExchange,
        outbox: Outbox,
        do: Callable[..., None],
    ) -> None:
        self._partitions = partitions
        self._pipe = pipe
        self._clock = clock
        self._door = door
        self._outbox = outbox
        self._do = do
        self.dealing = Dealing(partitions.stores, outbox)
        self.desks = {feed.name: Desk(feed, config, worker) for feed in config.feeds}
        self.reception = Reception(config, door, self.desks, sessions, outbox, near, clock, worker)
        self._teller = Teller(self.desks, sessions, self.reception, pipe, clock, self._seek)
        self._taken = dict.fromkeys(self.desks, 0)
        self._told_open = False
        self._told_over: set[str] = set()
        self._noted_over: set[str] = set()  # feeds whose end is in the log
        self._paused = False  # whether nothing more is handed out …
        self._pausing = False  # … and the supervisor is to know when all is back
        self.stopping = False

    def begin(self, begun: Mapping[str, Any]) -> None:
        """Begin as the supervisor says.

        "paused", "failed" (code and text of a failure, by feed), "all_opened" (as in the order
        of that name, if it was given before) and "before" (as the first life told with "open").
        """
        self._pausing = self._paused = bool(begun["paused"])
        for desk in self.desks.values():
            desk.dispatcher.wait_for_others(True)
            desk.dispatcher.paused = True
            desk.counters.before = {of[0]: of[1:] for of in begun["before"].get(desk.name, ())}
            if desk.name in begun["failed"]:
                desk.fail(*begun["failed"][desk.name])
        if begun["all_opened"] is not None:
            self._all_opened(begun["all_opened"])

    def all_are_back(self) -> None:
        """All trainers of the life before have greeted this one, or never will."""
        for desk in self.desks.values():
            desk.dispatcher.wait_for_others(False)
            desk.dispatcher.paused = self._paused

    def hear(self, event: Any) -> None:
        """Take what partitions tell."""
        if isinstance(event, Removed):
            for segment in event.segments:
                self._outbox.retire(segment)
            return
        desk = self.desks[event.feed]
        if desk.failure is not None:
            return
        if isinstance(event, Made):
            desk.on_made(event)
        elif isinstance(event, Opened):
            desk.on_opened(event)
        elif isinstance(event, Finished):
            desk.on_finished(event)
        elif isinstance(event, Failed):
            desk.on_failed(event)
        elif isinstance(event, Retargeted):
            desk.on_retargeted(event)
        elif isinstance(event, Waiting):
            desk.on_waiting(event)
        elif isinstance(event, Kept):
            desk.on_kept(event)
        elif isinstance(event, Starved):
            desk.dispatcher.starved(event.partition)
        elif isinstance(event, Dry):
            desk.dispatcher.dry(event.stripe)
        elif isinstance(event, Claimed):
            desk.dispatcher.claimed(event.token, event.verdict, event.number)
        elif isinstance(event, Copied):
            desk.copies.answer(event)
        elif isinstance(event, Flushed):
            self._outbox.flushed(event.session, event.request)

    # The supervisor

    def obey(self, order: Mapping[str, Any]) -> None:
        """Do what the supervisor says."""
        kind = order["order"]
        if kind == "fail":
            for desk in self.desks.values():
                if not desk.over and order.get("feed", desk.name) == desk.name:
                    desk.fail(order["code"], order["text"])
        elif kind == "pause":
            for desk in self.desks.values():
                desk.dispatcher.paused = True
            self._pausing = self._paused = True
        elif kind == "stats":
            self._teller.tell(order["request"])
        elif kind == "inspect":
            self._teller.seek(order["request"], order["feed"], bytes.fromhex(order["key"]))
        elif kind == "copy":
            desk = self.desks[order["feed"]]
            desk.copies.begin(order["ticket"])
            for partition in desk.partitions:
                about = desk.name, partition, order["ticket"], order["directory"]
                self._do(self._partitions.copy, *about)
        elif kind == "snapshotted":
            told = [order[name] for name in ("session", "request", "token", "code", "text")]
            self._outbox.snapshotted(Snapshotted(*told))
        elif kind == "not_taken_back":
            desk = self.desks[order["feed"]]
            desk.rejoining.refuse(order["snapshot"], order["code"], order["text"])
        elif kind == "all_opened":
            self._all_opened(order)
        elif kind == "close":
            self.desks[order["feed"]].close(
                order["cancel"], lambda: self._pipe.tell("answer", request=order["request"])
            )
        elif kind == "users":
            self._teller.tell_users(order["request"], order["feed"])
        elif kind == "stop":
            self.stopping = True

    def _all_opened(self, order: Mapping[str, Any]) -> None:
        """All owners have opened the feeds: what they know of them."""
        for desk in self.desks.values():
            named = [desk.name, desk.rejoining.generation]
            desk.rejoining.all_opened(named in order[USED], named in order[TOUCHED])

    # Effects

    def act(self) -> None:
        """Do what the desks have decided; one that an action brings news is looked at again."""
        for desk in self.desks.values():
            while self._act_on(desk):
                pass
        for feed, session, request in self.reception.snapshots:
            self._pipe.tell("snapshot", feed=feed, session=session, request=request)
        self.reception.snapshots.clear()
        self._teller.tell_late()
        self._report()

    def _act_on(self, desk: Desk) -> bool:
        """Do what one desk has decided, or else what is asked of it.  Whether it had decided."""
        effects = desk.dispatcher.take_effects()
        if desk.flight is not None:
            desk.flight.note(effects)
        if not effects:
            self._act_on_requests(desk)
            self._act_on_end(desk)
            return False
        for effect in effects:
            if isinstance(effect, Send):
                self.dealing.deliver(desk, effect)
            elif isinstance(effect, Answer):
                desk.counters.on_answer(effect)
                self._outbox.answer(effect)
            elif isinstance(effect, Taken):
                self._taken[desk.name] += 1
                self._do(self._partitions.taken, desk.name, self._taken[desk.name])
            elif isinstance(effect, Freed):
                batch = effect.batch
                if batch.body is not None:  # else its bytes were an earlier life's
                    self._do(self._partitions.free, desk.name, batch.partition, batch.number)
            elif isinstance(effect, Finish):
                self._outbox.finish(effect.session)
            elif isinstance(effect, (Full, Idle, Passed)):
                self._outbox.tell_turn(effect)
            elif isinstance(effect, (Save, Want, Leave, Claim, Release)):
                self._tell_partition(desk, effect)
            elif isinstance(effect, Dealt):
                self.dealing.dealt(desk, effect)
            elif isinstance(effect, Rewound):
                self.reception.rewound(effect.session)
        return True

    def _tell_partition(self, desk: Desk, effect: Save | Want | Leave | Claim | Release) -> None:
        """A partition is to do something."""
        do, partitions, feed = self._do, self._partitions, desk.name
        if isinstance(effect, Flush):
            do(partitions.flush, feed, effect.batch.partition, *effect.payload)
        elif isinstance(effect, Save):
            batch = effect.batch
            about = feed, batch.partition, batch.number
            if desk.dispatcher.stateful:
                columns, states = effect.payload
                do(partitions.save, *about, effect.token, columns, states or b"")
            else:
                do(partitions.done, *about, batch.rows, effect.token)
        elif isinstance(effect, Want):
            do(partitions.want, feed, effect.partition, effect.upto, effect.stripe)
        elif isinstance(effect, Leave):
            do(partitions.leave, feed, effect.partition, effect.stripe)
        elif isinstance(effect, Claim):
            do(partitions.claim, feed, effect.partition, effect.place)
        else:
            do(partitions.release, feed, effect.partition, effect.number)

    def _act_on_requests(self, desk: Desk) -> None:
        """Pass on what trainers and the supervisor want of a feed, and what became of it."""
        if desk.bad_news is not None:
            self._pipe.tell("bad", feed=desk.name, bad=desk.bad_news)
            desk.bad_news = None
        if desk.failure is not None:
            code, text = desk.failure
            for ticket in desk.copies.give_up():
                self._pipe.tell("copied", ticket=ticket, code=code, text=text)
        for ticket, fault in desk.copies.take_done():
            code = "server" if fault else ""
            self._pipe.tell("copied", ticket=ticket, code=code, text=fault)
        for snapshot in desk.rejoining.asks:
            generation = desk.rejoining.generation
            self._pipe.tell("take_back", feed=desk.name, snapshot=snapshot, generation=generation)
        desk.rejoining.asks.clear()
        for news in desk.rejoining.news if desk.owners > 1 else ():
            self._pipe.tell(news, feed=desk.name, generation=desk.rejoining.generation)
        desk.rejoining.news.clear()
        targets, desk.retargets.asked = desk.retargets.asked, []
        for request, probs in targets:
            self._do(self._partitions.retarget, desk.name, request, probs)
        for asked in desk.retargets.take_answered():
            self._outbox.retargeted(asked.session, asked.request, asked.since, asked.fault)

    def _act_on_end(self, desk: Desk) -> None:
        """Tell of a feed that is to end, or is over."""
        if desk.closing is not None and not desk.closing_told:
            desk.closing_told = True
            self._do(self._partitions.close, desk.name, desk.closing)
        answers, desk.closed = desk.closed, []
        for answer in answers:
            self._do(answer)
        if desk.failure is not None and desk.name not in self._told_over:
            self._outbox.end(desk.name, *desk.failure)
            self._do(self._partitions.abandon, desk.name)
        if not desk.over:
            return
        if desk.name not in self._noted_over:
            self._noted_over.add(desk.name)
            if desk.failure is None:
                logger.info("feed %r has ended after %d batches", desk.name, desk.usage().batches)
        if desk.name not in self._told_over and self._has_said_goodbye(desk):
            self._told_over.add(desk.name)
            code, text = desk.failure or ("", "")
            self._pipe.tell(
                "over", feed=desk.name, code=code, text=text, dropped=desk.counters.dropped()
            )

    def _has_said_goodbye(self, desk: Desk) -> bool:
        """Whether trainers know of the end of a feed.  A failure is reported at once."""
        return desk.failure is not None or self.reception.all_heard(desk, self._clock())

    def _seek(self, feed: str, key: bytes, tell: Callable[[list[Any]], None]) -> None:
        self._do(lambda: tell(self._partitions.seek(feed, key)))

    def _report(self) -> None:
        if not self._told_open and all(desk.opened for desk in self.desks.values()):
            self._told_open = True
            self._door.tell(Ready())  # before anybody learns the address
            desks = self.desks.items()
            before = {n: [[p, *of] for p, of in d.counters.before.items()] for n, d in desks}
            self._pipe.tell("open", before=before)
        if self._pausing and not any(d.dispatcher.leased for d in self.desks.values()):
            self._pausing = False
            self._pipe.tell("idle")
