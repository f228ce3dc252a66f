"""A simulated world of one partition of a log: producers, owners with a disk, feeds, and the laws.

A wire delivers in order, each message once or twice, until it is cut; then what is under way may
still come beside the next wire of the same process.  A disk loses the groups that were not synced,
but for some of the first of them, and files that were deleted of late may come back.  Owners and
producers die at any event; a producer that was replaced may go on beside the new one.  A feed here
is a small machine of its own, with a journal that is stored later than the log.  ``Log`` is driven
as it is, records are bytes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from headrace_server.files.journal_file import HEAD, START, record_bytes
from headrace_server.logs import records
from headrace_server.logs.ledger import Group, LogOptions
from headrace_server.logs.log import Log
from headrace_server.logs.records import NEVER, Close, Copy, Kind
from headrace_server.logs.words import Answer, Denied, Item
from tests.log_steps import pieces, standing

#: Bytes of a step in each of its columns.
#: A world that lasts longer does not end …
_GIVEN_UP_S = 3000.0
#: … and where nothing was stored, acknowledged or trained for so long.
_STALLED_S = 800.0


class Broken(AssertionError):
    """A law does not hold."""


def law(holds: Any, text: str) -> None:
    if not holds:
        raise Broken(text)


@dataclass
class Config:
    producers: int = 3
    feeds: int = 1
    optional: bool = False  # whether the last feed is not required
    sequences: int = 8  # of each producer
    delay: float = 0.01
    horizon: float = 30.0  # faults end here
    idle_timeout: float = 400.0
    forget_after: float = float("inf")
    max_open: int = 100
    max_backlog: int = NEVER
    window: int = 8000
    file_bytes: int = 3000
    retain: int = 0
    piece: int = 3
    sync: float = 0.01  # seconds that a write takes, at most
    slow: float = 0.0  # seconds between two items of a producer
    lag: float = 0.02  # seconds between two steps of a feed
    left: int = 0
    rest: bool = False  # whether each producer leaves one sequence open and silent
    faults: dict[str, float] = field(default_factory=dict)  # rate per second by name


def columns_of(key: bytes, first: int, after: int) -> list[bytes]:
    """Return the columns of some steps of a key."""
    numbers = np.arange(first, after)
    mark = int.from_bytes(key[-6:], "little")
    return [(numbers * 1000003 + mark).astype("<i8").tobytes(), numbers.astype("<i4").tobytes()]


class Wire:
    """Messages in order, in both directions."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.until = [1e18, 1e18]  # up, down: nothing is delivered after
        self.at = [0.0, 0.0]

    def send(self, way: int, call: Any) -> None:
        world = self.world
        if world.now > self.until[way]:
            return
        self.at[way] = max(
            self.at[way], world.now + world.random.expovariate(1 / world.config.delay)
        )
        for _ in range(2 if world.happens("twice", 1.0) else 1):
            world.at(self.at[way], lambda: world.now <= self.until[way] and call())

    def cut(self) -> None:
        for way in (0, 1):
            late = self.world.random.choice([-1, 0.05, 2.0])
            self.until[way] = min(self.until[way], self.world.now + late)


class Disk:
    """The files of a partition, as ``LogFiles`` gives them, and what is durably true."""

    durable = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.files: dict[int, list[tuple[int, bytes]]] = {}
        self.waiting: list[int] = []  # files of the groups that are not synced
        self.told = 0  # of those that are, how many
        self.deleted: dict[int, Any] = {}  # of late: a crash may bring them back
        self.steps: dict[bytes, int] = {}  # durable steps by key
        self.ids: dict[bytes, int] = {}
        self.closed: dict[bytes, int] = {}
        self.closed_at: dict[bytes, int] = {}  # positions
        self.idle: set[bytes] = set()  # keys that the ledger has ended
        self.names: dict[int, str] = {}
        self.last: Counter[str] = Counter()  # number of the last durable item by name
        self.log_closed = False
        self.nbytes = 0
        self.counts: Counter[int] = Counter()  # records by kind

    # As ``Log`` uses it

    def numbers(self) -> list[int]:
        return sorted(self.files)

    def groups(self, number: int) -> list[tuple[int, memoryview]]:
        return [(place, memoryview(data)) for place, data in self.files[number]]

    def read(self, number: int, place: int, nbytes: int) -> memoryview:
        law(number in self.files, f"file {number} is read, which was deleted")
        for at, data in self.files[number]:
            if at <= place < at + len(data):
                found = memoryview(data)[place - at : place - at + nbytes]
                law(len(found) == nbytes, "bytes beyond a group are read")
                return found
        raise Broken(f"no group has byte {place} of file {number}")

    def resume(self, number: int) -> bool:
        return self.world.random.random() < 0.8

    def write(self, group: Group) -> None:
        parts = [self.read(*part) if isinstance(part, Copy) else part for part in group.parts]
        data = b"".join(map(bytes, parts))
        there = self.files.setdefault(group.file, [])
        law(not self.waiting or self.waiting[-1] <= group.file, "files are written out of order")
        at = START + HEAD if not there else there[-1][0] + record_bytes(len(there[-1][1]))
        law(group.place == at, f"a group lies at {group.place} and not at {at}")
        law(at + len(data) <= self.world.options.file_bytes, "a file is too long")
        there.append((at, data))
        self.waiting.append(group.file)
        self.nbytes += len(data)

    def stored(self) -> int:
        told, self.told = self.told, 0
        return told

    def delete(self, number: int) -> None:
        if number in self.files:
            self.deleted[number] = self.files.pop(number)
            self.world.counts["deleted"] += 1

    def close(self) -> None:
        pass

    # As the world drives it

    def sync(self, groups: int, told: bool = True) -> None:
        for number in self.waiting[:groups]:
            n = sum(1 for later in self.waiting if later == number)
            data = self.files[number][-n][1]
            del self.waiting[0]
            for entry in records.entries(number, 0, memoryview(data)):
                self._note(entry.record, entry.position)
        self.told += told * groups

    def _note(self, r: records.Record, position: int) -> None:
        self.counts[r.kind] += 1
        if r.kind == Kind.JOINED:
            self.names[r.producer] = r.key.decode()
        if r.number:
            name = self.names[r.producer]
            law(
                r.number == self.last[name] + 1,
                f"item {r.number} of {name} follows {self.last[name]}",
            )
            self.last[name] = r.number
        if r.kind == Kind.FORGET:
            self.last[self.names.pop(r.producer)] = 0
        if r.kind == Kind.OPENED:
            law(r.key not in self.ids, f"{r.key!r} is stored twice")
            self.ids[r.key], self.steps[r.key] = position, 0
            self.world.key_of[position] = r.key
        if r.kind <= Kind.STEPS:
            key = self.world.key_of[r.of]
            law(r.first == self.steps[key] and key not in self.closed, f"{key!r} is out of order")
            self.steps[key] += r.steps
            if r.close:
                self.closed[key], self.closed_at[key] = r.close, position
            if r.key == b"idle":
                self.idle.add(key)
        self.log_closed |= r.kind == Kind.CLOSED

    def crash(self) -> None:
        random = self.world.random
        self.sync(random.randint(0, len(self.waiting)), told=False)
        for number in reversed(self.waiting):
            self.files[number].pop()
            if not self.files[number] and random.random() < 0.5:
                del self.files[number]
        self.waiting, self.told = [], 0
        for number in list(self.deleted)[-4:]:
            if random.random() < 0.5:
                self.files[number] = self.deleted[number]
        self.deleted.clear()


@dataclass
class Commit:
    """A record of a feed's journal."""

    seen: int
    moved: dict[int, int]  # sequences that are pending: the next step to train
    gone: list[int]
    trained: list[tuple[int, int, int]]


@dataclass
class Stored:
    seen: int = -1
    pending: dict[int, int] = field(default_factory=dict)

    def apply(self, commit: Commit) -> None:
        self.seen = commit.seen
        self.pending |= commit.moved
        for of in commit.gone:
            self.pending.pop(of, None)


class Feed:
    """A feed: it reads on now and then, and trains some of what it has."""

    def __init__(self, owner: Owner, name: str) -> None:
        self.owner, self.world, self.name = owner, owner.world, name
        self.stored = Stored()
        for commit in self.world.journals.setdefault(name, []):
            self.stored.apply(commit)
        self.available: dict[int, int] = {}
        self.closed: set[int] = set()
        self.at: dict[int, int] = dict(self.stored.pending)
        self.known = set(self.at)
        self.seen = self.stored.seen
        self.gone: list[int] = []
        self.moved: dict[int, int] = {}
        self.trained: list[tuple[int, int, int]] = []
        self.unstored: list[Commit] = []
        self.required = not (
            self.world.config.optional and name == f"feed {self.world.config.feeds - 1}"
        )
        self.passing = -1  # up to where retention takes records, and that is not stored …
        self.passed: Commit | None = None  # … before this is
        self.view = f"{name}/{self.world.counts['resumed']}"
        since = self.world.since.get(name, -1)
        owner.log.ledger.attach(self.view, self.seen, self.floors(self.at), since, self.required)

    def floors(self, at: dict[int, int]) -> dict[int, int]:
        return {of: max(0, step - self.world.config.left) for of, step in at.items()}

    def resume(self) -> None:
        lost = self.owner.log.ledger.views[self.view].lost
        law(not lost, f"{self.name} lacks {lost}")
        for of, at in list(self.at.items()):
            q = standing(self.owner.log.ledger, of)
            law(q is not None, f"sequence {of} is pending at {self.name}, and not in the log")
            law(q.key == self.world.key_of[of], "a sequence has another key")
            seen = [e.upto for e in q.extents if e.position <= self.seen]
            self.available[of] = max([at, *seen])
            if q.closed_at <= self.seen:
                self.close(of, q.close)

    def close(self, of: int, close: int) -> None:
        if close == Close.END and self.available[of] > self.at[of]:
            self.closed.add(of)
            return
        if close != Close.END:
            self.world.cut_off.add((self.name, of))
        self.finish(of)

    def finish(self, of: int) -> None:
        self.gone.append(of)
        for table in (self.at, self.available, self.moved):
            table.pop(of, None)
        self.closed.discard(of)

    def step(self) -> None:
        """Read on, or train, or both; note it in the journal."""
        if not self.owner.alive:
            return
        random, ledger = self.world.random, self.owner.log.ledger
        late = not self.required and ledger.views[self.view].seen < ledger.taken
        if late and self.passing < 0:
            self.pass_by(ledger.taken)
        if (random.random() < 0.7 or not self.ready) and self.passing < 0:
            for _ in range(random.choice([1, 3, 30])):
                if not self.read():
                    break
        for _ in range(random.choice([0, 1, 4])):
            if ready := self.ready:
                self.train(random.choice(ready))
        if (
            self.trained
            or self.moved
            or self.gone
            or self.seen > self.stored.seen + 10
            or self.owner.idle
        ):
            self.note()
        self.world.later(random.random() * self.world.config.lag * 2, self.step)

    def pass_by(self, upto: int) -> None:
        """Go on after a position; the log lets go of the rest once that is stored."""
        for of in [of for of in self.at if of <= upto]:
            self.world.cut_off.add((self.name, of))
            self.finish(of)
        view = self.owner.log.ledger.views[self.view]
        self.seen = view.read = max(view.read, upto)
        self.passing = upto
        self.world.counts["passed"] += 1
        self.note()
        self.passed = self.unstored[-1]

    @property
    def ready(self) -> list[int]:
        return sorted(of for of in self.at if self.available.get(of, 0) > self.at[of])

    def read(self) -> bool:
        owner, view = self.owner, self.owner.log.ledger.views[self.view]
        event = owner.log.next_event(self.view)
        self.seen = view.read
        law(self.seen <= owner.log.ledger.durable, "a feed reads what is not durable")
        if event is None:
            return False
        event, position = event.record, event.position
        of = event.of
        law(event.close != Close.LOST, f"{self.name} loses {of}")
        if event.kind == Kind.OPENED:
            law(of == position, "an opening names another sequence")
            law((self.name, of) not in self.world.opened, f"{self.name} opens {of} twice")
            law(event.key == self.world.key_of[of], "an event has another key")
            self.at[of] = self.moved[of] = self.available[of] = 0
        elif of not in self.at:
            raise Broken(f"{self.name} has an event of {of}, which it does not know")
        self.available[of] += event.steps
        if event.close:
            self.close(of, event.close)
        return True

    def train(self, of: int) -> None:
        first = self.at[of]
        after = min(self.available[of], first + self.world.random.choice([1, 3, 50]))
        left = max(0, first - self.world.config.left)
        key = self.world.key_of[of]
        for column, wanted in enumerate(columns_of(key, left, after)):
            found = pieces(self.owner.log, of, column, left, after)
            law(b"".join(map(bytes, found)) == wanted, f"the steps of {key!r} are not those sent")
        context = bytes(self.owner.log.context(of))
        law(context == self.world.contexts[key], f"the context of {key!r} is {context!r}")
        self.at[of] = self.moved[of] = after
        self.trained.append((of, first, after))
        if of in self.closed and after == self.available[of]:
            self.finish(of)

    def note(self) -> None:
        commit = Commit(self.seen, self.moved, self.gone, self.trained)
        self.moved, self.gone, self.trained = {}, [], []
        self.unstored.append(commit)
        random = self.world.random
        self.world.later(random.random() * 2 * self.world.config.sync, lambda: self.store(commit))

    def store(self, commit: Commit) -> None:
        """The journal has stored a record, and all before it."""
        while self.owner.alive and commit in self.unstored:
            one = self.unstored.pop(0)
            self.world.durable(self.name, one)
            self.stored.apply(one)
            ledger = self.owner.log.ledger
            ledger.release(self.view, one.seen, self.floors(one.moved), one.gone)
            if one is self.passed:  # an earlier one may have seen as much, and keep more
                ledger.pass_by(self.view, self.passing)
                self.passing = -1

    def kill(self) -> None:
        for commit in self.unstored[: self.world.random.randint(0, len(self.unstored))]:
            self.world.durable(self.name, commit)


class Owner:
    """One life of the owner of the partition."""

    def __init__(self, world: World) -> None:
        self.world, self.disk, self.alive = world, world.disk, True
        self.began = self.full_at = world.now
        self.producers: dict[int, tuple[Client, Wire]] = {}
        self.log = Log(self.disk, world.options, world.now)
        self.check_restored()
        self.feeds = [world.feed(self, f"feed {n}") for n in range(world.config.feeds)]
        for name, hold in world.holds.items():
            self.log.ledger.attach(name, *hold, reads=False)
        self.log.begin()
        for feed in self.feeds:
            feed.resume()
            world.later(0.05, feed.step)
        self.syncing = False
        world.later(0.1, self.tick)

    @property
    def idle(self) -> bool:
        return self.world.over and self.log.ledger.finished

    def check_restored(self) -> None:
        """The state is that of all durable records."""
        ledger, disk = self.log.ledger, self.disk
        open_keys = {key: ledger.sequences.steps[row] for key, row in ledger.sequences.open.items()}
        durable = {key: n for key, n in disk.steps.items() if key not in disk.closed}
        law(open_keys == durable, f"open keys are not those of the log: {open_keys}, {durable}")
        last = {p.name: p.last for p in ledger._producers.values() if p.last}
        law(last == +disk.last, f"numbers are {last} and not {disk.last}")
        law(ledger.closed == disk.log_closed, "a restart forgets that the log is closed")

    def tick(self) -> None:
        if self.alive:
            ledger = self.log.ledger
            ledger.starving = all(
                not feed.ready and ledger.views[feed.view].read >= ledger.durable
                for feed in self.feeds
            )
            if ledger.full:
                self.full_at = self.world.now
            if self.world.over and all(p.alive and p.finished for p in self.world.producers):
                if not ledger.closed and "owner" in self.world.config.faults:
                    self.world.later(1.0, lambda: self.world.kill_owner(1.0))
                ledger.close(self.world.now)
            s, now, rests = ledger.sequences, self.world.now, {}
            for row in s.open.values():
                rests[s.id[row]] = now - max(s.touched[row], self.began, self.full_at)
            self.log.tick(now)
            ended = rests.keys() - {s.id[row] for row in s.open.values()}
            for of in () if ledger.closed else ended:
                law(rests[of] >= self.world.config.idle_timeout, f"{of} ended after {rests[of]} s")
            self.after()
            self.world.later(0.1, self.tick)

    def after(self) -> None:
        """Send and write."""
        world = self.world
        self.log.flush()
        ledger = self.log.ledger
        sent, ledger.sent = ledger.sent, []
        for connection, message in sent:
            if connection in self.producers:
                client, wire = self.producers[connection]
                self.check_message(client, message)
                wire.send(1, lambda c=client, w=wire, m=message: c.hear(w, m))
        if self.disk.waiting and not self.syncing:
            self.syncing = True
            groups = len(self.disk.waiting)
            world.later(world.random.random() * 2 * world.config.sync, lambda: self.synced(groups))
        world.check_memory(self)

    def synced(self, groups: int) -> None:
        if self.alive:
            self.syncing = False
            self.disk.sync(groups)
            self.after()

    def check_message(self, client: Client, message: Any) -> None:
        if isinstance(message, Answer):
            name, last = client.producer.name, self.disk.last[client.producer.name]
            law(
                message.stored <= last, f"{name} is told of {message.stored}, and {last} is durable"
            )
            for number, _ in message.refused:
                law(number <= last, f"{name} is told of a refusal that is not durable")
        for key, steps in (getattr(message, "open", None) or {}).items():
            law(self.disk.steps.get(key) == steps, f"{key!r} is said to have {steps} steps")

    def kill(self) -> None:
        self.alive = False
        self.disk.crash()
        for feed in self.feeds:
            feed.kill()
        for _, wire in self.producers.values():
            wire.until = [-1, -1]


class Client:
    """The producer's library: numbers items, sends within its credit, again after a loss."""

    def __init__(self, producer: Producer) -> None:
        self.producer, self.world = producer, producer.world
        self.last = self.heard = self.stored = 0
        self.unacked: list[Item] = []
        self.queue: list[Item] = []  # not numbered yet
        self.wire: Wire | None = None
        self.welcomed = self.connecting = False
        self.granted = self.places = self.sent = 0
        self.reported: set[int] = set()
        self.connect()

    def connect(self) -> None:
        if self.producer.alive and not self.connecting:
            self.connecting, self.welcomed = True, False
            if self.wire is not None:
                self.wire.cut()
            self.wire = None
            self.world.later(self.world.random.random() * 0.3, self.greet)

    def greet(self) -> None:
        owner, world = self.world.owner, self.world
        if not self.producer.alive:
            return
        if not owner.alive:
            world.later(0.2, self.greet)
            return
        self.connecting = False
        world.wires += 1
        wire = self.wire = Wire(world, world.wires)
        heard, again = self.heard, sum(item.opens and not item.close for item in self.unacked)

        def arrive() -> None:
            if owner.alive:
                owner.producers[wire.number] = self, wire
                p = self.producer
                owner.log.ledger.greet(p.name, p.birth, wire.number, heard, world.now, again)
                owner.after()

        wire.send(0, arrive)

    def hear(self, wire: Wire, message: Any) -> None:
        if not self.producer.alive or wire is not self.wire:
            return
        if isinstance(message, Denied):
            if message.reason == "older" and self.producer.replaced:
                self.producer.die()
                return
            law(message.reason == "greet", f"{self.producer.name} is denied: {message.reason}")
            self.connect()
            return
        if message.open is not None:
            if self.welcomed:  # it came twice
                return
            self.welcomed, self.sent = True, 0
            self.producer.welcomed(self, message)
        elif not self.welcomed:
            return
        self.granted, self.places = message.granted, message.places
        for number, why in message.refused:
            if self.heard < number <= self.last and number not in self.reported:
                self.reported.add(number)
                key = next(item.key for item in self.unacked if item.number == number)
                self.producer.refused(key, why)
        self.stored = self.heard = max(self.stored, message.stored)
        for item in [item for item in self.unacked if item.number <= self.stored]:
            self.unacked.remove(item)
            if item.number not in self.reported:
                self.world.acked(item)
        if message.open is not None:
            again, self.unacked = self.unacked, []
            for item in again:
                self.send(item)
        self.places -= sum(item.opens and not item.close for item in self.unacked)
        self.pump()

    def put(self, item: Item) -> None:
        self.queue.append(item)
        self.pump()

    def pump(self) -> None:
        """Number what may go out; an opening without a place waits, and with it its sequence."""
        if not self.welcomed:
            return
        waits: set[bytes] = set()
        left, wants = [], 0
        for item in self.queue:
            needs = item.opens and not item.close
            if (
                item.key in waits
                or (needs and self.places < 1)
                or self.sent + item.cost > self.granted
            ):
                waits.add(item.key)
                left.append(item)
                wants += needs
                continue
            self.places -= needs
            self.last += 1
            self.send(item._replace(number=self.last))
        self.queue = left
        if wants:
            self.say([], 1 + max(0, self.places))

    def send(self, item: Item) -> None:
        self.unacked.append(item)
        self.sent += item.cost
        self.say([item], 0)

    def say(self, items: list[Item], wants: int) -> None:
        owner, wire, heard = self.world.owner, self.wire, self.heard

        def arrive() -> None:
            if owner.alive:
                owner.log.ledger.append(wire.number, items, self.world.now, heard, wants)
                owner.after()

        wire.send(0, arrive)


class Producer:
    """An actor: a few sequences at a time.  A new process goes on where the log stands."""

    def __init__(self, world: World, number: int, birth: int = 0) -> None:
        self.world, self.number, self.birth = world, number, birth
        self.name = f"actor-{number}"
        self.alive, self.finished, self.replaced, self.known = True, False, False, False
        self.plan = world.plans[number]
        self.at: dict[bytes, int] = {}  # next step that this process appends; -1: done
        self.client = Client(self)
        world.later(0.1, self.act)

    def welcomed(self, client: Client, message: Answer) -> None:
        disk = self.world.disk
        for key, steps in message.open.items():
            law(key in self.plan, "a producer is told of another's sequence")
            law(disk.steps.get(key, -1) >= steps, f"{key!r} is said to have {steps} steps")
        if not self.known:  # a new process: it knows nothing but what the log says
            self.known = True
            client.last = client.stored = client.heard = message.stored
            client.reported.update(number for number, _ in message.refused)
            for key in self.plan:
                if key in message.open:
                    self.at[key] = message.open[key]
                elif key in disk.steps:
                    self.at[key] = -1

    def act(self) -> None:
        if not self.alive:
            return
        world, at = self.world, self.at
        keys = [key for key in self.plan if at.get(key) != -1]
        if self.known:
            for key in world.random.sample(keys, min(len(keys), 2)):
                if len(self.client.queue) < 10:
                    self.go_on(key)
        done = all(at.get(key) == -1 for key in keys)
        self.finished = done and not (self.client.queue or self.client.unacked)
        world.later(world.config.slow + world.random.random() * 0.1, self.act)

    def go_on(self, key: bytes) -> None:
        steps, end = self.plan[key]
        random, version = self.world.random, int(self.world.now)
        context = self.world.contexts[key]
        if any(item.opens and item.key == key for item in self.client.queue):
            return  # it waits in open()
        if end == "whole":
            self.at[key] = -1
            data = b"".join(columns_of(key, 0, steps))
            self.client.put(Item(0, key, True, 0, steps, Close.END, version, context, data))
            return
        if key not in self.at:
            if sum(item.opens and not item.close for item in self.client.queue) > 1:
                return  # the thread waits in open()
            self.at[key] = n = min(steps, random.choice([0, 0, 2]))
            data = b"".join(columns_of(key, 0, n))
            self.client.put(Item(0, key, True, 0, n, Close.GOING, version, context, data))
            return
        at = self.at[key]
        n = min(steps - at, random.choice([1, 1, 2, 5]))
        close, over = Close.GOING, at + n == steps
        if over and end != "rest":  # else the log ends it
            close = Close.ABORT if end == "abort" else Close.END
        self.at[key] = -1 if over else at + n
        if n or close:
            data = b"".join(columns_of(key, at, at + n))
            self.client.put(Item(0, key, False, at, n, close, version, b"", data))

    def refused(self, key: bytes, why: str) -> None:
        self.world.counts["refused"] += 1
        expected = key in self.world.disk.idle and (why == "not open" or why[:4] == "step")
        law(expected, f"{self.name}'s item of {key!r} is refused: {why}")

    def die(self) -> None:
        self.alive = False
        if self.client.wire is not None:
            self.client.wire.cut()


class World:
    def __init__(self, seed: int, config: Config, feed: Callable[[Owner, str], Any] = Feed) -> None:
        """``feed`` makes a feed at an owner."""
        self.seed, self.random, self.config, self.feed = seed, Random(seed), config, feed
        self.trainers: dict[str, Any] = {}  # of feeds that have some, by name
        self.states: dict[tuple[str, int], int] = {}  # (feed, sequence) → its state, durably
        self.now, self.order, self.wires, self.over = 0.0, 0, 0, False
        self.events: list[Any] = []
        self.counts: Counter[str] = Counter()
        self.zombies: list[Producer] = []  # processes whose names others have
        self.holds: dict[str, tuple[int, dict[int, int], int]] = {}
        self.since: dict[str, int] = {}  # feeds that were taken back → since of the snapshot
        self.journals: dict[str, list[Commit]] = {}
        self.trained: dict[tuple[str, int], int] = {}  # (feed, sequence) → next step, durably
        self.opened: set[tuple[str, int]] = set()  # (feed, sequence) that are in the journal
        self.cut_off: set[tuple[str, int]] = set()  # aborted, or lost by an optional feed
        self.handed: dict[tuple[str, int], int] = {}  # (feed, sequence) → steps in batches so far
        self.acknowledged: dict[bytes, int] = {}
        self.key_of: dict[int, bytes] = {}
        self.valve = False
        c = config
        self.options = LogOptions(
            window=c.window, most_producers=64, max_open=c.max_open, max_backlog=c.max_backlog,
            retain=c.retain, idle_timeout_s=c.idle_timeout, forget_after_s=c.forget_after,
            file_bytes=START + HEAD + c.file_bytes, piece=c.piece,
        )  # fmt: skip
        random = Random(seed * 3 + 1)
        self.plans: list[dict[bytes, tuple[int, str]]] = []
        self.contexts: dict[bytes, bytes] = {}
        for number in range(c.producers):
            plan = {}
            for n in range(c.sequences):
                key = b"%d/%d" % (number, n)
                end = random.choices(["end", "abort", "whole"], [7, 1, 2])[0]
                plan[key] = random.randint(0, 20), "rest" if c.rest and n == 0 else end
                self.contexts[key] = b"" if random.random() < 0.2 else b"context of " + key
            self.plans.append(plan)
        self.disk = Disk(self)
        self.owner = Owner(self)
        self.producers = [Producer(self, n) for n in range(c.producers)]
        self.later(0.5, self.chaos)

    def later(self, delay: float, call: Any) -> None:
        self.at(self.now + delay, call)

    def at(self, time: float, call: Any) -> None:
        self.order += 1
        heapq.heappush(self.events, (time, self.order, call))

    def happens(self, name: str, scale: float) -> bool:
        rate = self.config.faults.get(name, 0)
        return bool(rate) and self.now < self.config.horizon and self.random.random() < rate * scale

    # Faults

    def chaos(self) -> None:
        if self.now > self.config.horizon:
            self.over = True
            return
        if self.happens("owner", 0.5):
            self.kill_owner(self.random.random() * 2)
        for n, producer in enumerate(self.producers):
            if self.happens("producer", 0.5):
                self.kill_producer(n)
            elif self.happens("cut", 0.5) and producer.alive:
                producer.client.connect()
        if self.happens("snapshot", 0.5):
            self.snapshot()
        elif self.holds and self.happens("resume", 0.5):
            self.take_back()
        self.later(0.5, self.chaos)

    def kill_owner(self, away: float) -> None:
        if self.owner.alive:
            self.counts["deaths"] += 1
            self.owner.kill()
            self.later(away, self.revive)

    def revive(self) -> None:
        self.owner = Owner(self)
        for producer in (*self.producers, *self.zombies):
            producer.client.connect()

    def kill_producer(self, n: int) -> None:
        old = self.producers[n]
        if not old.alive or old.replaced:
            return
        self.counts["deaths"] += 1
        if self.random.random() < 0.3:  # it was cut off, or suspended, and goes on
            old.replaced = True
            self.zombies.append(old)
            self.later(self.random.random() * 4, old.client.connect)
            self.later(12.0, old.die)
        else:
            old.die()
        self.later(self.random.random() * 2, lambda: self.reborn(n))

    def reborn(self, n: int) -> None:
        old = self.producers[n]
        if not old.alive or old.replaced:
            self.producers[n] = Producer(self, n, old.birth + 1)

    def snapshot(self) -> None:
        """Copy the feeds' journals; the log keeps what they need."""
        if not self.owner.alive or self.config.optional:
            return
        self.copies = {name: list(journal) for name, journal in self.journals.items()}
        self.trained_then, self.opened_then = dict(self.trained), set(self.opened)
        self.states_then = dict(self.states)
        for name in list(self.holds):
            self.owner.log.ledger.detach(name)
        self.holds.clear()
        for feed in self.owner.feeds:
            since = self.owner.log.ledger.table_of(feed.view)
            hold = feed.stored.seen, feed.floors(feed.stored.pending), since
            self.holds["hold " + feed.name] = hold
            self.owner.log.ledger.attach("hold " + feed.name, *hold, reads=False)

    def take_back(self) -> None:
        if self.owner.alive:
            self.counts["resumed"] += 1
            self.owner.kill()
            self.journals = {name: list(journal) for name, journal in self.copies.items()}
            self.since = {name[5:]: since for name, (_, _, since) in self.holds.items()}
            self.trained, self.opened = dict(self.trained_then), set(self.opened_then)
            self.states = dict(self.states_then)
            self.revive()

    # Life

    def run(self) -> World:
        steps, moved, moved_at = 0, (), 0.0
        while self.events and not (steps % 50 == 0 and self.at_end()):
            if steps % 50 == 0 and moved != (moves := self.moves()):
                moved, moved_at = moves, self.now
            self.now, _, call = heapq.heappop(self.events)
            call()
            steps += 1
            if steps >= 400_000 or self.now >= min(_GIVEN_UP_S, moved_at + _STALLED_S):
                law(False, f"the world does not end: {self.why()}")
        self.check_end()
        return self

    def at_end(self) -> bool:
        owner = self.owner
        return owner.alive and owner.idle and all(
            feed.stored.seen >= owner.log.ledger.durable
            and not (feed.at or feed.unstored or feed.gone or feed.moved)
            for feed in owner.feeds
        )  # fmt: skip

    def moves(self) -> tuple[int, ...]:
        """Return counts that grow while the world goes on; a feed that is taken back has less."""
        counts = self.trained.values(), self.acknowledged.values()
        return (self.owner.log.ledger.durable, *map(sum, counts), self.counts["resumed"])

    def why(self) -> str:
        ledger = self.owner.log.ledger
        producers = [(p.name, p.finished, p.client.queue, p.at) for p in self.producers]
        feeds = [(feed.name, feed.stored.seen, feed.at) for feed in self.owner.feeds]
        opened = list(ledger.sequences.open)
        text = f"now {self.now:.0f}, open {opened}, backlog {ledger.backlog}, full {ledger.full}, "
        return f"{text}records {ledger.position}, durable {ledger.durable}; {producers}, {feeds}"[
            :900
        ]

    # Laws

    def acked(self, item: Item) -> None:
        after, durable = item.first + item.steps, self.disk.steps.get(item.key, -1)
        law(durable >= after, f"{item.key!r} up to {after} was acknowledged, {durable} is durable")
        if item.close:
            law(item.key in self.disk.closed, f"the end of {item.key!r} is not durable")
        self.acknowledged[item.key] = max(self.acknowledged.get(item.key, 0), after)

    def durable(self, name: str, commit: Commit) -> None:
        """A feed's record is durable: its steps are trained."""
        self.journals[name].append(commit)
        for of, first, after in commit.trained:
            last = self.trained.get((name, of), 0)
            law(first == last, f"sequence {of} of {name}: {first} is trained after {last}")
            self.trained[name, of] = after
        self.opened.update((name, of) for of in (*commit.moved, *commit.gone))

    def check_memory(self, owner: Owner) -> None:
        c, ledger = self.config, owner.log.ledger
        waiting = sum(cost for group in ledger._unstored for *_, cost in group.items.values())
        most = c.window * (len(ledger._connections) + c.producers)
        law(waiting <= most, f"{waiting} bytes wait for the disk")
        self.valve = self.valve or ledger.starving  # what came then may stay for a while
        slack = 3 * most + 4 * c.file_bytes + 128 * 1024
        law(
            self.valve or ledger.backlog <= c.max_backlog + slack,
            f"the backlog is {ledger.backlog}",
        )
        again = sum(x.places for x in ledger._connections.values())
        most = c.max_open + self.counts["deaths"] + 4 * c.producers + again
        law(len(ledger.sequences.open) <= most, f"{len(ledger.sequences.open)} are open")
        s = ledger.sequences
        live = sum(s.nbytes[at] for row in s.row.numbers for at in s.chain(row))
        law(live == s.living == sum(s.live.values()), "the count of live bytes is wrong")

    def check_end(self) -> None:
        c, disk, owner = self.config, self.disk, self.owner
        law(self.acknowledged.keys() <= disk.steps.keys(), "an acknowledged key is gone")
        for key, steps in self.acknowledged.items():
            law(disk.steps[key] >= steps, f"{key!r}: {steps} acknowledged, {disk.steps[key]} there")
        for plan in self.plans:
            for key, (steps, _) in plan.items():
                there = disk.steps.get(key)
                law(there == steps or key in disk.idle, f"{key!r} has {there} of {steps} steps")
        for feed in owner.feeds:
            for key, of in disk.ids.items():
                done = self.trained.get((feed.name, of), 0)
                law(done <= disk.steps[key], f"{feed.name}: {key!r} was trained beyond its end")
                lost = (feed.name, of) in self.cut_off or not feed.required
                whole = done == disk.steps[key]
                law(
                    whole or lost,
                    f"{feed.name}: {key!r} was trained up to {done} of {disk.steps[key]}",
                )
        for name in list(self.holds):
            owner.log.ledger.detach(name)
        for _ in range(5):  # let the table and the files catch up
            owner.log.ledger._since = NEVER
            while True:
                owner.log.tick(self.now)
                disk.sync(len(disk.waiting))
                owner.log.flush()
                for feed in owner.feeds:
                    while feed.read():
                        pass
                    owner.log.ledger.release(feed.view, feed.seen, {}, [])
                if owner.log.ledger._table is None:
                    break
        law(not owner.log.ledger.sequences.row, "a sequence stays in memory")
        nbytes = sum(len(data) for groups in disk.files.values() for _, data in groups)
        law(nbytes <= c.retain + 3 * c.file_bytes + 1000, f"the log has {nbytes} bytes at the end")


def config_of(seed: int) -> Config:
    random = Random(seed)
    scale = random.choice([0, 1, 1, 2])
    rates = {
        "owner": 0.08, "producer": 0.05, "cut": 0.08, "twice": 0.1, "snapshot": 0.05,
        "resume": 0.02,
    }  # fmt: skip
    names = random.sample(sorted(rates), random.randint(0, len(rates)))
    faults = {name: rates[name] * scale for name in names}
    config = Config(
        producers=random.randint(1, 4), feeds=random.choice([1, 1, 2]),
        optional=random.random() < 0.1,
        sequences=random.choice([3, 8, 20]), delay=random.choice([0.001, 0.02, 0.1]),
        horizon=random.choice([10.0, 30.0]), idle_timeout=random.choice([400.0, 400.0, 4.0]),
        max_open=random.choice([100, 100, 2, 5]), max_backlog=random.choice([NEVER, NEVER, 6000]),
        window=random.choice([8000, 700]), file_bytes=random.choice([3000, 5000]),
        retain=random.choice([0, 0, 5000]), piece=random.choice([1, 3, 5]),
        sync=random.choice([0.01, 0.01, 0.5]), slow=random.choice([0, 0, 0.3]),
        lag=random.choice([0.02, 0.02, 0.5]), left=random.choice([0, 0, 2]),
        rest=random.random() < 0.3, faults=faults,
    )  # fmt: skip
    if seed % 8 == 4:  # feeds are slow, so producers lack credit while sequences rest
        config.idle_timeout, config.max_backlog, config.lag, config.window = 1.5, 3000, 1.0, 700
        config.max_open = 100
    if seed % 4 == 1:  # many sequences end as idle, so items are refused while owners die
        config.idle_timeout, config.slow, config.sequences, config.delay = 1.0, 0.3, 20, 0.1
        config.max_backlog, config.max_open = NEVER, 100
        config.faults = {"owner": 0.3, "cut": 0.3, "twice": 0.1}
    if seed % 4 == 2:  # processes are replaced, and go on, while owners die
        config.slow, config.sequences, config.idle_timeout = 0.3, 20, 400.0
        config.faults = {"owner": 0.3, "producer": 0.3, "cut": 0.2}
    if seed % 4 == 3:  # a slow disk, small files, sequences that are carried on, feeds that lag
        config.sequences, config.file_bytes, config.retain, config.sync = 20, 3000, 0, 0.6
        config.lag, config.feeds, config.idle_timeout = random.choice([0.1, 1.0]), 2, 400.0
        config.faults = {"owner": 0.3, "snapshot": 0.1, "resume": 0.05}
    return config


def check(seed: int, feed: Callable[[Owner, str], Any] = Feed) -> World:
    return World(seed, config_of(seed), feed).run()
