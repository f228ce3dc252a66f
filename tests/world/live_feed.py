"""A feed in the world of a log that trains segments before their sequences have ended.

The machine of segments is driven as it is, by a small desk: trainers live on when the owner dies,
and claim what they hold.  The state after a commit is its token, so each segment shows from which
state it was trained.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from headrace_server.leasing.words import ANYONE, Batch, Outlook
from headrace_server.logs.records import Close, Kind
from headrace_server.shaping.input import Input
from headrace_server.shaping.log_admission import Event, Growth
from headrace_server.shaping.plan import Read
from headrace_server.shaping.segments import AT_SERVER, NOWHERE, Segments
from headrace_server.shaping.spans import Cut
from headrace_server.shaping.stored_state import (
    AT,
    END,
    INDEX,
    LINE,
    NO_KEY,
    OPEN,
    VERSION,
    Examples,
)
from tests.log_steps import pieces, standing

from .logs import Commit, Owner, Stored, World, columns_of, config_of, law

FOREVER = 1 << 62


@dataclass(frozen=True)
class Shape:
    """How a feed cuts, drawn by its world's seed."""

    kind: str  # "arrival", "lanes" or "packed"
    world: int
    size: int
    trainers: int
    unroll: int
    stride: int
    left: int
    ahead: int
    phased: bool
    chained: bool
    capacity: int | None
    max_staleness: int | None
    prefetch: int
    refuses: bool  # whether a filter of context refuses some sequences

    @classmethod
    def of(cls, seed: int, left: int) -> Shape:
        random = Random(seed * 7 + 5)
        kind = random.choice(["arrival", "arrival", "lanes", "lanes", "packed"])
        world = random.choice([0, 0, 0, 2, 3])
        size, trainers = random.randint(1, 3), random.choice([1, 1, 2, 3])
        unroll = random.choice([1, 3, 5])
        packed = kind == "packed"
        seats = size * (world or trainers)
        return cls(
            kind=kind,
            world=world,
            size=size,
            trainers=world or trainers,
            unroll=unroll,
            stride=unroll if packed else random.randint(1, unroll),
            left=0 if packed else left,
            ahead=0 if packed else random.choice([0, 0, 1, 2]),
            phased=not packed and random.random() < 0.2,
            chained=kind == "arrival" or random.random() < 0.7,
            capacity=random.choice([None, seats + random.randint(0, 3)]),
            max_staleness=None if packed else random.choice([None, None, 5]),
            prefetch=random.choice([1, 1, 2, 4]),
            refuses=random.random() < 0.2,
        )


@dataclass
class Held:
    token: int
    batch: Batch
    rows: list[tuple[int, int, int, int]]  # sequence, first, after, state
    sent: bool = False  # whether it is committed, without an answer


@dataclass
class Trainer:
    slot: Any
    held: list[Held] = field(default_factory=list)


@dataclass
class LiveCommit(Commit):
    """A record: of each pending sequence its index and its state."""

    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    tokens: tuple[int, ...] = ()
    index: int = 0
    turns: list[Any] = field(default_factory=list)
    places: dict[Any, tuple[list[int], list[int]]] = field(default_factory=dict)


@dataclass
class LiveStored(Stored):
    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    tokens: set[int] = field(default_factory=set)
    last: LiveCommit | None = None

    def apply(self, commit: Commit) -> None:
        assert isinstance(commit, LiveCommit)
        super().apply(commit)
        self.known |= commit.known
        self.tokens.update(commit.tokens)
        self.last = commit


class LiveFeed:
    """A feed at one owner: a machine, its desk, and its journal."""

    def __init__(self, owner: Owner, name: str) -> None:
        self.owner, self.world, self.name = owner, owner.world, name
        world = self.world
        self.shape = shape = Shape.of(world.seed, world.config.left)
        self.stored = LiveStored()
        for commit in world.journals.setdefault(name, []):
            self.stored.apply(commit)
        cut = Cut(shape.unroll, shape.stride, shape.kind == "packed", True)
        growth = Growth(shape.ahead, shape.max_staleness, True)
        self.machine = m = Segments(
            0,
            shape.size,
            shape.capacity,
            True,
            lanes=shape.kind != "arrival",
            states=AT_SERVER if shape.chained else NOWHERE,
            cut=cut,
            most=3,
            growth=growth,
        )
        m.input = Input(m, 0)
        assert m.log is not None
        self.log = m.log
        self.log.newest = self.newest
        self._watch()
        self.trained: list[tuple[int, int, int]] = []
        self.states: list[tuple[int, int, int]] = []  # sequence, state before, state after
        self.tokens: list[int] = []
        self.unstored: list[LiveCommit] = []
        self.told = self.stored.seen
        self.heap: list[Batch] = []
        self.view = f"{name}/{world.counts['resumed']}"
        if world.trainers.get(name, (None,))[0] != world.counts["resumed"]:
            slots: list[Any] = [*range(shape.world)] or [ANYONE] * shape.trainers
            if shape.kind != "arrival" and not shape.world:
                slots = [b"%d" % n for n in range(shape.trainers)]
            world.trainers[name] = world.counts["resumed"], [Trainer(slot) for slot in slots]
        self.trainers: list[Trainer] = world.trainers[name][1]
        since = world.since.get(name, -1)
        floors = self.floors(self.stored.pending)
        last = name == f"feed {world.config.feeds - 1}"
        self.required = not (world.config.optional and last)
        self.passing = -1  # up to where retention takes records, and that is not stored
        owner.log.ledger.attach(self.view, self.stored.seen, floors, since, self.required)

    def _watch(self) -> None:
        """Note which steps are left out, or turn out to be the last ones."""
        tables, skip, free = self.machine.entries, self.log._skip, self.log._free

        def skipped(entry: int) -> None:
            of, first = int(tables.line[entry]), int(tables.at[entry])
            skip(entry)
            self.trained.append((of, first, int(tables.at[entry])))
            self.states.append((of, -1, 0))

        def freed(entries: np.ndarray) -> None:
            for entry in entries.tolist():
                of, at, end = (int(t[entry]) for t in (tables.line, tables.at, tables.end))
                if (self.name, of) not in self.world.cut_off and at < end:
                    self.trained.append((of, at, end))
                    reach = at - self.shape.stride + self.shape.unroll
                    law(at and reach >= end, f"{of} ends at {at} of {end}")
            free(entries)

        self.log._skip, self.log._free = skipped, freed  # type: ignore[method-assign]

    def newest(self, of: int, step: int) -> tuple[int, int]:
        q = standing(self.owner.log.ledger, of)
        law(q is not None, f"{of} is not in the log")
        found = of, 0
        for extent in q.extents:
            if extent.upto:
                found = extent.position, extent.version
            if extent.upto >= step:
                return found
        return q.closed_at, found[1]

    def floors(self, at: dict[int, int]) -> dict[int, int]:
        return {of: max(0, step - self.shape.left) for of, step in at.items()}

    def opening(self, of: int) -> int:
        return 1 + of * 31 % self.shape.stride if self.shape.phased else 0

    # Another life

    def resume(self) -> None:
        m, last, world = self.machine, self.stored.last, self.world
        law(not self.owner.log.ledger.views[self.view].lost, f"{self.name} lacks sequences")
        if last is not None:
            self._go_on(last)
        if self.shape.world and not m.world:
            m.deal(1, self.shape.world)
        for trainer in self.trainers:
            m.seat(trainer.slot)
        held = [(h, trainer) for trainer in self.trainers for h in trainer.held]
        for h, trainer in sorted(held, key=lambda one: one[0].token):
            if h.token in self.stored.tokens:
                trainer.held.remove(h)
                continue
            there = self.reclaim(h.batch)
            lost = not self.required and any((self.name, r[0]) in world.cut_off for r in h.rows)
            law(there or lost, f"{self.name}: {h.batch} with {h.rows} is refused")
            if not there:
                trainer.held.remove(h)
            elif h.sent:
                self.commit(h)

    def _go_on(self, last: LiveCommit) -> None:
        m, pending, seen = self.machine, self.stored.pending, self.stored.seen
        lines = sorted(pending, key=lambda of: self.stored.known[of][0])
        numbers = np.zeros((7, len(lines)), np.int64)
        steps, aborted = list[int](), list[int]()
        for i, of in enumerate(lines):
            index, version = self.stored.known[of]
            q = standing(self.owner.log.ledger, of)
            law(q is not None, f"sequence {of} is pending at {self.name}, and not in the log")
            upto = [e.upto for e in q.extents if e.position <= seen]
            steps.append(max([pending[of], *upto]))
            closed = q.closed_at <= seen
            if closed and q.close == Close.ABORT:
                aborted.append(of)
                self.world.cut_off.add((self.name, of))
            end = steps[-1] if closed and q.close == Close.END else OPEN
            for row, value in ((LINE, of), (INDEX, index), (AT, pending[of]), (END, end)):
                numbers[row, i] = value
            numbers[VERSION, i] = version
        growing = np.array([steps, [self.opening(of) for of in lines]], np.int64)
        growing = growing.reshape(2, len(lines))
        begun = Examples(numbers, [NO_KEY] * len(lines))
        self.log.resume_log(begun, growing, aborted, seen, last.index)
        m.input.read = seen + 1
        places = {
            s: (np.array(a, np.int64), np.array(b, np.int64)) for s, (a, b) in last.places.items()
        }
        m.resume_turns(last.turns, places)

    def reclaim(self, batch: Batch) -> bool:
        batch.body = None
        while (possible := self.machine.reclaim(batch)) is None:
            read = self.machine.next_read(64)
            if read is None or not self.take(read, 1):
                return False
        return possible

    # Work

    def step(self) -> None:
        """Hand out batches, take commits, write records."""
        if not self.owner.alive:
            return
        random, world, ledger = self.world.random, self.world, self.owner.log.ledger
        if not self.required and ledger.views[self.view].seen < ledger.taken and self.passing < 0:
            self.pass_by(ledger.taken)
        if self.passing >= 0:
            world.later(random.random() * world.config.lag * 2, self.step)
            return
        if self.shape.max_staleness is not None and random.random() < 0.05:
            self.log.wanted_policy = int(world.now)
        for trainer in random.sample(self.trainers, len(self.trainers)):
            if random.random() < 0.5 and len(trainer.held) < self.shape.prefetch:
                self.ask(trainer)
            ready = [h for h in trainer.held if not h.sent]
            if ready and random.random() < 0.6:
                self.commit(ready[0])
            elif ready and not self.shape.world and random.random() < 0.03:
                self.leave(trainer)
        if self.tokens or self.log.gone or self.log.seen > self.told + 10 or self.owner.idle:
            self.note()
        world.later(random.random() * world.config.lag * 2, self.step)

    def pass_by(self, upto: int) -> None:
        """Go on after a position; nothing is handed out before that is stored."""
        if self.log.seen < upto:
            lost = {of for of in self.log._entry if of <= upto}
            self.world.cut_off.update((self.name, of) for of in lost)
            self.machine.lose(upto)
            view = self.owner.log.ledger.views[self.view]
            view.read = max(view.read, upto)
            self.passing = upto
            self.world.counts["passed"] += 1
        if self.told < upto:
            self.note()

    def ask(self, trainer: Trainer) -> None:
        m, slot = self.machine, trainer.slot
        for batch in self.heap:
            if batch.slot == slot:
                self.heap.remove(batch)
                self.give(trainer, batch)
                return
        while True:
            step = m.step(slot, FOREVER, 64)
            if isinstance(step, Read):
                if not self.take(step, self.world.random.choice([1, 3, 30])):
                    return
            elif isinstance(step, list):
                break
            else:
                law(step is not Outlook.OVER, "a feed has one epoch")
                return
        for plan in step:
            self.check(plan.draft)
            self.heap.append(plan.batch)
        m.unwritten.clear()
        self.ask(trainer)

    def take(self, read: Read, most: int) -> bool:
        """Take events of the log; return whether there are any, or none will come."""
        ledger, found, refused = self.owner.log.ledger, list[Event](), set[int]()
        view, next_event = ledger.views[self.view], self.owner.log.next_event
        upto = view.read + 20
        while len(found) < most and (entry := next_event(self.view, upto)) is not None:
            law(entry.position <= ledger.durable, "a feed reads what is not durable")
            r = entry.record
            if self.shape.refuses and r.kind == Kind.OPENED and r.key[-1] % 3 == 0:
                refused.add(r.of)
                self.world.cut_off.add((self.name, r.of))
            if r.of in refused:
                continue
            if r.close == Close.ABORT:
                self.world.cut_off.add((self.name, r.of))
            opens = r.kind == Kind.OPENED
            found.append(Event(entry.position, r.of, opens, r.steps, r.close, self.opening(r.of)))
        ledger.release(self.view, view.seen, {}, refused)
        over = ledger.finished and view.read == ledger.durable
        self.log.take_events(found, view.read)
        if not (found or over) and view.read >= ledger.durable:
            self.machine.input.failed()
            return False
        self.machine.input.arrived(read, 0, None if over else 0)
        return True

    def check(self, spans: Any) -> None:
        """The steps of a batch are those that were sent, and there are as many as it tells."""
        tables = self.machine.entries
        for of, first, after, last in zip(
            spans.lines.tolist(), spans.first.tolist(), spans.after.tolist(), spans.last.tolist(),
            strict=True,
        ):  # fmt: skip
            key = self.world.key_of[of]
            left = max(0, first - self.shape.left)
            for column, wanted in enumerate(columns_of(key, left, after)):
                found = pieces(self.owner.log, of, column, left, after)
                law(b"".join(map(bytes, found)) == wanted, f"steps of {key!r} are not those sent")
            over = after == self.world.disk.steps[key] or (self.name, of) in self.world.cut_off
            law(not last or over, f"{key!r} is not over")
            disk, handed = self.world.disk, self.world.handed.get((self.name, of), 0)
            aborted = disk.closed.get(key) == Close.ABORT and disk.closed_at[key] <= self.log.seen
            law(not aborted or after <= handed, f"{key!r} was aborted, and goes on")
            self.world.handed[self.name, of] = max(handed, after)
        law((tables.out[spans.entries] > 0).all(), "a row is not out")

    def give(self, trainer: Trainer, batch: Batch) -> None:
        self.world.counts["token"] += 1
        out = self.machine._out[batch.name].draft
        columns = (out.lines, out.first, out.after, out.versions)
        rows = [*zip(*(c.tolist() for c in columns), strict=True)]
        trainer.held.append(Held(self.world.counts["token"], batch, rows))

    def commit(self, h: Held) -> None:
        h.sent = True
        for of, first, after, state in h.rows:
            self.trained.append((of, first, after))
            self.states.append((of, state, h.token))
        out = self.machine.commit(h.batch, h.token)
        law(not isinstance(out, tuple), f"{self.name}: a commit is refused: {out}")
        self.tokens.append(h.token)

    def leave(self, trainer: Trainer) -> None:
        """A trainer dies with the batches that it has not committed."""
        lost = [h for h in trainer.held if not h.sent]
        trainer.held = [h for h in trainer.held if h.sent]
        if self.machine.voids:
            self.machine.leave(trainer.slot)
            self.heap = [batch for batch in self.heap if batch.slot != trainer.slot]
        else:
            self.heap += [h.batch for h in lost]

    # The journal

    def note(self) -> None:
        m, log, tables = self.machine, self.log, self.machine.entries
        moved, known = dict[int, int](), dict[int, tuple[int, int]]()
        for entry in sorted(log.moved):
            of = int(tables.line[entry])
            law(tables.keys[entry] is not None, f"{of} has ended, and is stored as pending")
            moved[of] = int(tables.done[entry])
            known[of] = int(tables.index[entry]), int(tables.version[entry])
        places = {s: (a.tolist(), b.tolist()) for s, (a, b) in m.places().items()}
        commit = LiveCommit(
            log.seen, moved, [*log.gone], self.trained, known, tuple(self.tokens), log.next_index,
            m.turns(), places,
        )  # fmt: skip
        commit.states = self.states  # type: ignore[attr-defined]
        if log.closed and not self.at:  # what follows concerns no sequence
            while self.read():
                pass
            commit.seen = self.seen
        self.told = log.seen
        log.moved.clear()
        log.gone.clear()
        self.trained, self.states, self.tokens = [], [], []
        self.unstored.append(commit)
        random = self.world.random
        self.world.later(random.random() * 2 * self.world.config.sync, lambda: self.store(commit))

    def store(self, commit: LiveCommit) -> None:
        """The journal has stored a record, and all before it."""
        while self.owner.alive and commit in self.unstored:
            one = self.unstored.pop(0)
            self._durable(one)
            self.stored.apply(one)
            floors = self.floors(one.moved)
            self.owner.log.ledger.release(self.view, one.seen, floors, one.gone)
            if 0 <= self.passing <= one.seen:
                self.owner.log.ledger.pass_by(self.view, self.passing)
                self.passing = -1
            for trainer in self.trainers:
                trainer.held = [h for h in trainer.held if h.token not in one.tokens]

    def _durable(self, commit: LiveCommit) -> None:
        self.world.durable(self.name, commit)
        states = self.world.states
        for of, before, after in commit.states:  # type: ignore[attr-defined]
            there = states.get((self.name, of), 0)
            wrong = self.shape.chained and before not in (-1, there)
            law(not wrong, f"{of} was trained from state {before}, not {there}")
            states[self.name, of] = after

    def kill(self) -> None:
        for commit in self.unstored[: self.world.random.randint(0, len(self.unstored))]:
            self._durable(commit)

    # Calls of the world

    @property
    def at(self) -> int:
        return self.machine.entries.live

    @property
    def ready(self) -> bool:
        """Whether it does not wait for producers."""
        return not self.machine._lacking or bool(self.log._events)

    @property
    def seen(self) -> int:
        return self.owner.log.ledger.views[self.view].read

    @property
    def gone(self) -> list[int]:
        return self.log.gone

    @property
    def moved(self) -> set[int]:
        return self.log.moved

    def read(self) -> bool:
        return self.owner.log.next_event(self.view) is not None


def check_live(seed: int) -> World:
    """Run a world whose feeds train segments before their sequences have ended."""
    config = config_of(seed)
    return World(seed, config, LiveFeed).run()
