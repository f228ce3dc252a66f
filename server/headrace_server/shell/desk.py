"""The desk of one feed in the router: its dispatcher, its partitions' cursors, its segments.

Turns what workers and trainers say into events of the machine, and the machine's effects into
messages.  Payload is never looked at, a batch is a place in a segment; but when a worker has died
the segments that its batches have are read from there.
"""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from headrace_proto.errors import ProtocolError
from headrace_proto.messages import Delivery, Handed, Hello
from headrace_proto.schema import Field

from ..core.dispatch import Dispatcher
from ..core.farewell import Farewell
from ..core.handover import Batch, Claim, Freed, Leave, Release, Save, Send, Taken, Want
from ..core.keeping import Acknowledged, KeepingDispatcher
from ..core.segment_dispatch import LANES_LOST, SegmentDispatcher
from ..feed.segment_block import identity_in
from ..feed.slab import map_segment
from .config import FeedConfig, RunConfig
from .copies import Copies
from .counters import Counters, too_bad
from .descriptors import own
from .flight import LeaseRecorder
from .news import News, Worth
from .rejoining import Rejoining
from .retargets import Retargets
from .state_blocks import StateBlocks
from .worker_messages import (
    Assign,
    Claimed,
    Close,
    Dry,
    Failed,
    Finished,
    Flush,
    Flushed,
    Kept,
    Made,
    Opened,
    Retargeted,
    Starved,
    Waiting,
)

__all__ = ["Desk", "Place", "Usage", "delivery_of"]

logger = logging.getLogger("headrace.router")

#: Of an error's text: it must fit a message's header, in any script.
_LONGEST_TEXT = 8000


@dataclass(frozen=True, slots=True)
class Place:
    """The body of a batch: where its bytes lie, and who made it."""

    worker: int
    life: int
    segment: str
    offset: int
    nbytes: int
    columns: Any
    crowded: bool


def delivery_of(effect: Send, frame: int | None) -> Delivery:
    """The message for a batch: a reference, or the number of the frame that carries it."""
    batch = effect.batch
    place: Place = batch.body
    inline = frame is not None
    return Delivery(
        effect.seq,
        effect.token,
        batch.partition,
        batch.number,
        batch.rows,
        place.nbytes,
        place.columns,
        dict(batch.meta) if batch.round < 0 else {**batch.meta, "round": batch.round},
        "" if inline else place.segment,
        0 if inline else place.offset,
        frame or 0,
        place.crowded and not inline,
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """How far a feed was used: times are Unix times, 0 where nothing was committed."""

    finished: bool
    batches: int
    since: float
    until: float


def _known(at: float) -> float:
    return at if isfinite(at) else 0.0


class Desk:
    """One feed."""

    def __init__(
        self, config: FeedConfig, run: RunConfig, epoch: int = 0, owner: int | None = None
    ) -> None:
        """``owner``: the worker whose partitions these are; None: all of the feed."""
        self.name = config.name
        every = range(config.partitions)
        self.partitions = every if owner is None else run.partitions_of(config, owner)
        self.owners = run.owners_of(config)
        self.of_feed = config.partitions  # at all owners
        # Tokens of an earlier server on this address must not be taken for ours.
        self.epoch = epoch = epoch or run.epoch or secrets.randbits(30)
        self.durable = run.state_directory is not None  # beyond the server
        self._keeps = run.journals_of(config) is not None  # beyond its workers
        common = self.partitions, run.lease_ttl_s, run.max_credits, epoch
        self.dispatcher: Dispatcher
        if config.stateful:
            # In a replay batches are in the order of their hand-out, whosever lanes they were.
            order = "arrival" if run.replay is not None else config.order
            self.dispatcher = SegmentDispatcher(*common, order)
        else:
            self.dispatcher = (KeepingDispatcher if self._keeps else Dispatcher)(*common)
        self.dispatcher.shared = self.owners > 1
        self.schema: Any = None
        self.properties: Any = {}  # what trainers are told beside the schema
        self.states = StateBlocks([], run.max_state_bytes)
        self.states_stay = False  # whether states stay with the trainers
        self._waits_on: dict[int, int] = {}  # partition → number of the batch that it waits for
        self.failure: tuple[str, str] | None = None
        self.closing: Close | None = None  # what workers of this feed are to be told
        self.closing_told = False
        self.closed: list[Callable[[], object]] = []  # answers to those who closed the input
        self.retargets = Retargets(config.name, self.partitions)
        self.copies = Copies(config.name, self.partitions)
        self.rejoining = Rejoining(config, self.durable, run.starts)
        self.farewell = Farewell(run.lease_ttl_s)
        self.counters = Counters(self.dispatcher)
        self._bad: dict[str, int] = {}  # examples, where other owners have others …
        self.bad_news: dict[str, int] | None = None  # … and what is not told of them
        self._most_bad = config.declaration.policy.max_bad_examples
        self.flight = None if run.record == "off" else LeaseRecorder(run, config.name)
        self._run = run
        self._all_back = False  # whether no trainer of an earlier server is waited for
        self._returned = False  # whether one has come
        self._rounds_judged = False
        self._rounds_before: Any = None  # what an earlier owner has dealt to ranks
        self._done_before: dict[int, tuple[int, frozenset[int]]] = {}  # by partition
        self._worth = Worth(config, run)
        self._opened: set[int] = set()
        self._usages: list[tuple[int, float, float]] = []  # of earlier servers, by partition
        self._used_from, self._used_upto = inf, -inf  # when, by this one (Unix time)
        self._finished: set[int] = set()
        self._cursors: dict[int, bytes] = {}
        self._waits: dict[int, str] = {}  # what a partition lacks for its next batch
        self._blocks_in: dict[str, int] = {}  # segment → batches in it
        self.retired: list[str] = []  # segments of the dead that this feed needs no more

    @property
    def opened(self) -> bool:
        """Whether all partitions are open (or done, or the feed has failed)."""
        return self.failure is not None or len(self._opened) == len(self.partitions)

    @property
    def over(self) -> bool:
        return self.failure is not None or self.dispatcher.ended

    def open_partitions(self, worker: int) -> Iterator[tuple[Assign, bytes]]:
        """Orders for the partitions that a worker has to run, with cursors to go on from."""
        for partition in self.partitions:
            # With a store a partition is needed after its end too: to keep its last commits.
            needed = self._keeps or partition not in self._finished
            if self._run.worker_of(partition) == worker and needed:
                made = 0
                if isinstance(self.dispatcher, KeepingDispatcher) and partition in self._opened:
                    made = self._restarted(partition)
                cursor = self._cursors.get(partition, b"")
                yield Assign(self.name, partition, made), cursor

    def _restarted(self, partition: int) -> int:
        dispatcher = self.dispatcher
        if isinstance(dispatcher, SegmentDispatcher):
            return dispatcher.restarted(partition, self._place_of)
        assert isinstance(dispatcher, KeepingDispatcher)
        return dispatcher.restarted(partition)

    def _place_of(self, batch: Batch, token: int) -> Handed:
        """How a worker that begins anew knows a batch of segments: by what lies in its block."""
        if batch.body is None:  # it was claimed before
            claimed: Handed = batch.meta["claimed"]
            return replace(claimed, token=token, number=batch.number)
        place: Place = batch.body
        with own():
            memory = map_segment(Path(self._run.directory) / place.segment)
        block = memory[place.offset : place.offset + place.nbytes]
        told = identity_in(block, [column[0] for column in self.schema], place.columns)
        return Handed(token, batch.partition, batch.number, batch.rows, told)

    # What workers say

    def on_opened(self, message: Opened) -> None:
        self.schema = self.schema or message.schema
        self.properties = dict(message.properties)
        if self.durable:
            self.properties.update(durable=True, epoch=self._run.epoch)
        elif self._keeps and self._run.has_owner:
            self.properties["recovers"] = True
        self.properties["generation"] = self.rejoining.generation
        self.states_stay = message.properties.get("placement") == "trainer"
        states = message.properties.get("states", ())
        fields = [Field(dtype, tuple(shape)) for _, dtype, shape in states]
        # What trainers hand over of theirs is stored however large it is: it was promised a place.
        most = sys.maxsize if self.states_stay else self._run.max_state_bytes
        self.states = StateBlocks(fields, most)
        # Of what an earlier server saw done any batch may be left out, the first one too.
        goes_on = self._keeps and not self.dispatcher.stateful
        if goes_on and message.partition not in self._opened:
            self.dispatcher.started(message.partition, message.next)
        self._done_before[message.partition] = message.next, frozenset(message.done)
        self._rounds_before = self._rounds_before or message.rounds
        if message.partition not in self._opened:
            self._opened.add(message.partition)
            if message.used:
                batches, since, until, *rows = message.used
                if self.durable:
                    self._usages.append((batches, since, until))
                else:  # by an owner before this one, under the same server
                    self.counters.go_on(batches, sum(rows))
                    self._usages.append((0, since, until))
                    self.rejoining.touched()
            if len(self._opened) == len(self.partitions):
                self._load_rounds()
                if not self._usages:
                    self.rejoining.unused()

    def _load_rounds(self) -> None:
        """Go on with what an owner before this one has dealt to ranks and nobody has done."""
        if self._rounds_before and isinstance(self.dispatcher, KeepingDispatcher):
            world, next_round, members = self._rounds_before
            left = []
            for member in members:
                first, done = self._done_before[member[1]]
                if member[0] >= first and member[0] not in done:
                    left.append(member)
            self.dispatcher.load_rounds(world, next_round, left)
        self._done_before.clear()

    def touched(self) -> None:
        """A trainer commits something."""
        self.rejoining.touched()
        self._used_upto = time.time()
        self._used_from = min(self._used_from, self._used_upto)

    def usage(self) -> Usage:
        """How far this and earlier servers have come with the feed."""
        of_others = [(self.dispatcher.counts["batches"], self._used_from, self._used_upto)]
        batches, since, until = zip(*self._usages, *of_others, strict=True)
        ended = self.failure is None and self.dispatcher.ended
        return Usage(ended, sum(batches), _known(min(since)), _known(max(until)))

    def on_made(self, message: Made, cursor: bytes, worker: int, life: int) -> None:
        self._cursors[message.partition] = cursor
        self._waits.pop(message.partition, None)
        self.counters.on_made(message)
        self._check_bad()
        self._on_kept(message.partition, message.kept)
        crowded = message.crowded
        for made in message.batches:
            segment = made.segment
            place = Place(worker, life, segment, made.offset, made.nbytes, made.columns, crowded)
            self._blocks_in[segment] = self._blocks_in.get(segment, 0) + 1
            self.dispatcher.made(Batch(message.partition, made.number, made.rows, place, made.meta))

    def on_finished(self, message: Finished) -> None:
        self._finished.add(message.partition)
        self._waits.pop(message.partition, None)
        self.counters.on_finished(message)
        self._check_bad()
        self.retargets.partition_ended(message.partition)
        self.dispatcher.partition_ended(message.partition)

    def on_retargeted(self, message: Retargeted) -> None:
        self.counters.on_stats(message.partition, message.stats)
        self.retargets.answer(message)

    def on_waiting(self, message: Waiting) -> None:
        self._waits[message.partition] = message.text
        self._waits_on[message.partition] = message.batch

    def on_segments(self, message: Kept | Starved | Dry) -> None:
        """What a worker tells of segments."""
        dispatcher = self.dispatcher
        if isinstance(message, Kept) and isinstance(dispatcher, KeepingDispatcher):
            self._waits.pop(message.partition, None)
            self._on_kept(message.partition, message.batches)
            return
        if not isinstance(dispatcher, SegmentDispatcher) or isinstance(message, Kept):
            raise ProtocolError(
                f"{type(message).__name__} came for {self.name!r}, without segments"
            )
        if isinstance(message, Starved):
            dispatcher.starved(message.partition)
        else:
            dispatcher.dry(message.stripe)

    def _on_kept(self, partition: int, batches: Any) -> None:
        if isinstance(self.dispatcher, KeepingDispatcher):
            for number, code, text in batches:
                self.dispatcher.kept(partition, number, code, text)

    def on_claimed(self, message: Claimed) -> None:
        if isinstance(self.dispatcher, KeepingDispatcher):
            self.dispatcher.claimed(message.token, message.verdict, message.number)

    def on_hello(self, session: int, hello: Hello) -> None:
        """A new session has batches of an earlier server; those not held were saved.

        It knows of commits that were acknowledged, which must be in the state.
        """
        held = hello.held
        self._returned = self._returned or hello.generation >= 0
        self._judge_rounds()
        if self._keeps and isinstance(self.dispatcher, KeepingDispatcher):
            last = dict(zip(hello.committed[::2], hello.committed[1::2], strict=False))
            for partition, token in last.items():  # one question for each partition, not more
                if partition in self.partitions and token >> 32 != self.epoch:
                    self.dispatcher.recall(session, Acknowledged(token, partition))
            for place in sorted(hello.batches, key=lambda place: place.token):
                if place.partition in self.partitions:
                    self.dispatcher.claim(session, place, place.token not in held)

    def await_others(self) -> None:
        """Hand nothing out before every trainer of an earlier owner has greeted this one."""
        self.dispatcher.paused = True
        if isinstance(self.dispatcher, SegmentDispatcher):
            self.dispatcher.await_others()

    def all_are_back(self) -> None:
        """Every trainer of an earlier server that still lives has greeted this one."""
        if isinstance(self.dispatcher, SegmentDispatcher):
            self.dispatcher.all_are_back()
        self._all_back = True
        self._judge_rounds()

    def _judge_rounds(self) -> None:
        """Ranks that all come for the first time go on with the same round, be it one begun."""
        judged = self._rounds_judged or not self._all_back or not self.dispatcher.present
        if not judged and isinstance(self.dispatcher, KeepingDispatcher):
            self._rounds_judged = True
            if not self._returned:
                self.dispatcher.begin_rounds()

    def on_flush(self, session: int, message: Any, block: bytes) -> tuple[str, str]:
        """A trainer hands over states of its lanes.

        An error's code and text; empty where the worker answers.
        """
        dispatcher = self.dispatcher
        if not isinstance(dispatcher, SegmentDispatcher):
            return "state", "this feed has no states"
        token, rows = message.token, message.rows
        batch = dispatcher.last_saved(session, token)
        if batch is None and dispatcher.lost_lanes(session, token):
            return "stale", LANES_LOST
        if batch is None:
            return "state", f"{token} is not the last batch that trainer {session} has saved"
        if not rows or max(rows) >= batch.rows or len(set(rows)) < len(rows):
            text = f"the rows of a flush are not different ones of {batch.rows}: {rows!s:.80}"
            return "state", text
        fault = self.states.fault_of_block(len(rows), message.columns, block)
        if fault:
            return "state", fault
        order = self.name, batch.partition, batch.number, session, message.request
        flush = Flush(*order, rows, message.columns, message.more)
        dispatcher.flush(session, message.request, batch, (flush, block))
        return "", ""

    def on_flushed(self, message: Flushed) -> None:
        """A worker has kept the states of lanes that a trainer handed over."""
        if isinstance(self.dispatcher, SegmentDispatcher):
            self.dispatcher.flushed(message.session, message.request)

    def died(self, worker: int) -> None:
        """A worker died.  Without journals the states of segments were in its memory."""
        lost = [
            partition
            for partition in self._opened - self._finished
            if self.dispatcher.stateful
            and not self._keeps
            and self._run.worker_of(partition) == worker
        ]
        if lost:
            listed = ", ".join(map(str, sorted(lost)))
            self.fail(
                "server", f"worker {worker} died, and with it the states of partition {listed}"
            )

    def describe(self, now: float) -> str:
        """What a trainer waits for, for the text of its deadline error."""
        waits = []
        for partition, text in sorted(self._waits.items())[:3]:
            holder = self.dispatcher.holder(partition, self._waits_on.get(partition, -1))
            if holder is not None:
                session, since = holder
                text += f", leased to trainer {session} for {now - since:.0f} s"
            waits.append(f"partition {partition}: {text}")
        return "; ".join([*waits, self.dispatcher.describe(now)])

    def on_failed(self, message: Failed) -> None:
        self.fail(message.code, message.text)

    def fail(self, code: str, text: str) -> None:
        """The feed stops; the first reason stands."""
        if self.failure is None:
            self.failure = (code, text[:_LONGEST_TEXT])
            logger.error("feed %r failed: %s", self.name, text)

    def close(self, cancel: bool, answer: Callable[[], object]) -> None:
        """Close the input; a cancel after a plain close still cancels.

        ``answer`` is called when the worker of the feed has been told.
        """
        self.closed.append(answer)
        if self.closing is None or (cancel and not self.closing.cancel):
            self.closing = Close(self.name, cancel)
            self.closing_told = False

    def _check_bad(self) -> None:
        limit = self._most_bad
        if limit is not None:
            bad = self.counters.bad()
            if sum(bad.values()) > limit:
                self.fail("data", too_bad(limit, bad))
            elif self.owners > 1 and bad != self._bad:
                self._bad = self.bad_news = bad

    def state(self) -> str:
        """In a word."""
        if self.failure is not None:
            return "failed"
        if self.over:
            return "ended"
        if not self.opened:
            return "opening"
        return "closing" if self.closing is not None else "open"

    def example_told(self, found: Any, now: float) -> dict[str, Any]:
        """An example as its worker has it, and in whose hands it is."""
        partition, epoch, segment, segments, where, number = found
        told = {"partition": partition, "epoch": epoch, "segment": segment, "segments": segments}
        if where != "out":
            return {**told, "where": where}
        holder = self.dispatcher.holder(partition, number)
        if holder is None:
            return {**told, "where": "in a batch that nobody has", "batch": number}
        session, since = holder
        held = {"batch": number, "trainer": session, "since_s": round(now - since, 3)}
        return {**told, "where": "leased", **held}

    def partitions_told(self) -> list[dict[str, Any]]:
        """Of each partition whether it is open, or all its batches were made, and what it lacks."""
        return [
            {
                "partition": partition,
                "worker": self._run.worker_of(partition),
                "open": partition in self._opened,
                "done": partition in self._finished,
                "waits": self._waits.get(partition, ""),
            }
            for partition in self.partitions
        ]

    # Memory

    def on_freed(self, effect: Freed, news: dict[tuple[int, int], News]) -> None:
        """A block is free: tell the worker that owns it, or count down a dead one's segment."""
        batch, place = effect.batch, effect.batch.body
        if not self.forget_block(batch):
            return
        owner = news.get((place.worker, place.life))
        if owner is not None:
            worth = self._worth.freed(place.nbytes, place.crowded)
            owner.free((self.name, batch.partition, batch.number), worth)
        elif not self._blocks_in[place.segment]:
            del self._blocks_in[place.segment]
            self.retired.append(place.segment)

    def forget_block(self, batch: Batch) -> bool:
        """The bytes of a batch are free; False where they were an earlier server's."""
        if batch.body is None:
            return False
        self._blocks_in[batch.body.segment] -= 1
        return True

    def on_turn(
        self,
        effect: Save | Want | Leave | Claim | Release,
        worker: int,
        news: dict[tuple[int, int], News],
    ) -> None:
        """A partition of segments is to be told something."""
        for (number, _), owner in news.items():
            if number == worker:
                owner.add(self.name, effect)

    def on_taken(self, effect: Taken, news: dict[tuple[int, int], News]) -> None:
        place: Place = effect.batch.body
        owner = news.get((place.worker, place.life))
        if owner is not None:
            owner.count_taken(self.name, self._worth.taken(place.nbytes, place.crowded))

    def uses(self, segment: str) -> bool:
        """Whether a batch of this feed lies in a segment, and is not free."""
        return bool(self._blocks_in.get(segment))
