"""Desks and trainers of one process: messages become events, and effects become actions.

    trainers    ─► reception ─┐                          ┌─► outbox ─► trainers
    supervisor  ─► orders    ─┼─► desks (one per feed) ──┤
    workers     ─► messages  ─┘      effects             └─► workers

Where the workers are is decided by a subclass: the router speaks to processes, an owner is the
worker of its feeds itself.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace_proto.clock import AwakeClock
from headrace_proto.messages import Snapshotted

from ..core.handover import (
    Answer,
    Claim,
    Dealt,
    Finish,
    Freed,
    Idle,
    Leave,
    Passed,
    Release,
    Rewound,
    Save,
    Send,
    Taken,
    Unflushed,
    Want,
)
from ..core.rewinding import BEGINNING
from ..core.segment_dispatch import LANES_LOST
from .child import ParentPipe
from .config import RunConfig
from .desk import Desk
from .exchange import TrainersExchange
from .gate import Door
from .outbox import Outbox
from .reception import Reception
from .sessions import SessionTable
from .telling import Teller
from .worker_messages import (
    Claimed,
    Close,
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
    Sought,
    Starved,
    Waiting,
)

__all__ = ["House"]

logger = logging.getLogger("headrace.router")


class House(ABC):
    """All feeds and their trainers."""

    def __init__(
        self,
        config: RunConfig,
        pipe: ParentPipe,
        clock: AwakeClock,
        door: Door,
        sessions: SessionTable,
        near: TrainersExchange,
        outbox: Outbox,
        owner: int | None = None,
    ) -> None:
        """``owner``: the worker whose partitions these are; None: all of them."""
        self._config = config
        self._owner = owner
        self._pipe = pipe
        self._clock = clock
        self._sessions = sessions
        self._near = near
        self._outbox = outbox
        self._desks = {feed.name: Desk(feed, config, 0, owner) for feed in config.feeds}
        self._reception = Reception(
            config,
            door,
            self._desks,
            self._sessions,
            self._outbox,
            self._near,
            self._clock,
            owner or 0,
        )
        self._teller = Teller(
            config, self._desks, self._sessions, self._reception, pipe, self._clock
        )
        self._told_open = False
        self._told_over: set[str] = set()
        self._noted_over: set[str] = set()  # feeds whose end is in the log
        self._pausing = False
        self._stopping = False

    # Workers, by subclasses

    @abstractmethod
    def _workers_there(self) -> list[int]:
        """The numbers of the workers that can be asked."""

    @abstractmethod
    def _tell_all(self, message: object) -> None:
        """Tell all workers something."""

    @abstractmethod
    def _tell_owner(self, feed: str, partition: int, message: object) -> None:
        """Tell the worker of a partition something."""

    def _do(self, action: Callable[..., object], *arguments: Any) -> None:
        """Do something once all that partitions were told before has reached them."""
        action(*arguments)

    @abstractmethod
    def _on_taken(self, desk: Desk, effect: Taken) -> None:
        """A new batch went to a trainer."""

    @abstractmethod
    def _on_freed(self, desk: Desk, effect: Freed) -> None:
        """Nobody needs the bytes of a batch any more."""

    @abstractmethod
    def _on_turn(self, desk: Desk, effect: Save | Want | Leave | Claim | Release) -> None:
        """A partition of segments is to do something."""

    @abstractmethod
    def _on_dealt(self, desk: Desk, effect: Dealt) -> None:
        """A round was dealt to ranks."""

    def _deliver(self, desk: Desk, effect: Send) -> None:
        """Hand a batch to its trainer."""
        self._outbox.deliver(desk, effect)

    def _retire(self, segment: str) -> None:
        """Remove a segment of a dead worker, unless a feed has a batch in it."""
        if not any(desk.uses(segment) for desk in self._desks.values()):
            self._outbox.retire(segment)

    def _on_message(self, message: Any, payload: list[bytes]) -> None:
        """Handle what a living worker says; ``Made`` is the subclass's."""
        if isinstance(message, Removed):
            for segment in message.segments:
                self._outbox.retire(segment)
            return
        desk = self._desks[message.feed]
        if desk.failure is not None:
            return
        if isinstance(message, Opened):
            desk.on_opened(message)
        elif isinstance(message, Finished):
            desk.on_finished(message)
        elif isinstance(message, Failed):
            desk.on_failed(message)
        elif isinstance(message, Retargeted):
            desk.on_retargeted(message)
        elif isinstance(message, Waiting):
            desk.on_waiting(message)
        elif isinstance(message, (Kept, Starved, Dry)):
            desk.on_segments(message)
        elif isinstance(message, Claimed):
            desk.on_claimed(message)
        elif isinstance(message, Sought):
            self._teller.found(message)
        elif isinstance(message, Copied):
            desk.copies.answer(message)
        elif isinstance(message, Flushed):
            desk.on_flushed(message)
            self._outbox.flushed(message.session, message.request)

    def _on_made(self, message: Made, cursor: bytes, worker: int, life: int) -> None:
        desk = self._desks[message.feed]
        if desk.failure is None:
            desk.on_made(message, cursor, worker, life)

    # The supervisor

    def _obey(self, order: Mapping[str, Any]) -> None:
        kind = order["order"]
        if kind == "fail":
            for desk in self._desks.values():
                if not desk.over and order.get("feed", desk.name) == desk.name:
                    desk.fail(order["code"], order["text"])
        elif kind == "pause":
            for desk in self._desks.values():
                desk.dispatcher.paused = True
            self._pausing = True
        elif kind == "stats":
            self._teller.tell(order["request"])
        elif kind == "inspect":
            self._tell_all(self._teller.seek(order, self._workers_there()))
        elif kind == "copy":
            desk = self._desks[order["feed"]]
            for copy in desk.copies.begin(order["ticket"], order["directory"]):
                self._tell_owner(desk.name, copy.partition, copy)
        elif kind == "snapshotted":
            told = [order[name] for name in ("session", "request", "token", "code", "text")]
            self._outbox.snapshotted(Snapshotted(*told))
        elif kind == "not_taken_back":
            desk = self._desks[order["feed"]]
            desk.rejoining.refuse(order["snapshot"], order["code"], order["text"])
        elif kind == "close":
            self._desks[order["feed"]].close(
                order["cancel"], lambda: self._pipe.tell("answer", request=order["request"])
            )
        elif kind == "users":
            self._teller.tell_users(order["request"], order["feed"])
        elif kind == "stop":
            self._stopping = True

    def _begin_anew(self, feed: str, generation: int) -> None:
        """A feed in memory is as it was before its first batch.

        Other feeds go on as after a worker's death.
        """
        old = self._desks[feed]
        self._replace(old, generation)
        self._reception.send_away(old, self._desks[feed].rejoining.rewound())

    def _replace(self, old: Desk, generation: int) -> None:
        """Another desk in place of one, whose tokens are larger."""
        config = next(one for one in self._config.feeds if one.name == old.name)
        if generation != config.generation:
            config = replace(config, generation=generation, snapshot=BEGINNING)
        desk = self._desks[old.name] = Desk(config, self._config, old.epoch + 1, self._owner)
        desk.dispatcher.paused = old.dispatcher.paused
        self._told_over.discard(old.name)
        self._noted_over.discard(old.name)

    # Effects

    def _act(self) -> None:
        """Do what the desks have decided; one that an action brings news is looked at again."""
        for desk in self._desks.values():
            while self._act_on(desk):
                pass
        for feed, session, request in self._reception.snapshots:
            self._pipe.tell("snapshot", feed=feed, session=session, request=request)
        self._reception.snapshots.clear()
        self._teller.tell_found()
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
                self._deliver(desk, effect)
            elif isinstance(effect, Answer):
                desk.counters.on_answer(effect)
                self._outbox.answer(effect)
            elif isinstance(effect, Taken):
                self._on_taken(desk, effect)
            elif isinstance(effect, Freed):
                self._on_freed(desk, effect)
            elif isinstance(effect, Finish):
                self._outbox.finish(effect.session)
            elif isinstance(effect, (Idle, Passed)):
                self._outbox.tell_turn(effect)
            elif isinstance(effect, (Save, Want, Leave, Claim, Release)):
                self._on_turn(desk, effect)
            elif isinstance(effect, Dealt):
                self._on_dealt(desk, effect)
            elif isinstance(effect, Rewound):
                self._reception.rewound(effect.session)
            elif isinstance(effect, Unflushed):
                self._outbox.flushed(effect.session, effect.request, "stale", LANES_LOST)
        return True

    def _act_on_requests(self, desk: Desk) -> None:
        """Pass on what trainers and the supervisor want of a feed, and what became of it."""
        for segment in desk.retired:
            self._retire(segment)  # of several feeds the last one's batch empties it
        desk.retired.clear()
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
        targets, desk.retargets.asked = desk.retargets.asked, []
        for target in targets:
            self._tell_all(target)
        for asked in desk.retargets.take_answered():
            self._outbox.retargeted(asked.session, asked.request, asked.since, asked.fault)

    def _act_on_end(self, desk: Desk) -> None:
        """Tell of a feed that is to end, or is over."""
        if desk.closing is not None and not desk.closing_told:
            desk.closing_told = True
            self._tell_all(desk.closing)
        answers, desk.closed = desk.closed, []
        for answer in answers:
            self._do(answer)
        if desk.failure is not None and desk.name not in self._told_over:
            self._outbox.end(desk.name, *desk.failure)
            self._tell_all(Close(desk.name, abandon=True))
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
        return desk.failure is not None or self._reception.all_heard(desk, self._clock())

    def _report(self) -> None:
        if not self._told_open and all(desk.opened for desk in self._desks.values()):
            self._told_open = True
            self._pipe.tell("open")
        if self._pausing and not any(d.dispatcher.leased for d in self._desks.values()):
            self._pausing = False
            self._pipe.tell("idle")

    @property
    def directory(self) -> Path:
        """The run directory."""
        return Path(self._config.directory)
