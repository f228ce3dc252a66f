"""A simulated world: owners, journals, trainers and wires, and the laws.

Each wire delivers in order, after random delays; a wire that is cut may still deliver to the owner
for a while, beside the next wire of the same trainer.  Owners and trainers are killed at any
event, trainers are suspended, servers start again with another number of owners.  A partition makes
a batch while other messages come.  ``Desk`` and ``Trainer`` are driven as they are.
"""

from __future__ import annotations

import contextlib
import heapq
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random

from headrace.machine.trainer import Trainer
from headrace_proto.step_messages import Get, Given
from headrace_server.leasing.desk import SESSIONS, Desk, Work
from headrace_server.leasing.words import Batch, Greeting, Outlook

from . import port
from .journal import Journal
from .partitions import Plain, Segments, Slab, rows_of

TTL, GRACE = 10.0, 3.0
NEVER = 1e18
END = (1 << 62,)


@dataclass
class Config:
    kind: str = "plain"  # plain, buckets, arrival, lanes, bare (lanes without states)
    partitions: int = 3
    owners: int = 2
    trainers: int = 3
    world: int = 0  # ranks
    epochs: int = 1
    borders: bool = False
    prefetch: int = 1
    hold: int = 1  # batches that a trainer trains on at a time
    stubborn: bool = False  # whether it waits for so many, unless no more come
    room: int = 1 << 60
    maps: float = 0.0  # how often trainers keep batches mapped after the commit
    max_open: int = 64
    rows: int = 40
    size: int = 4
    capacity: int = 12
    horizon: float = 60.0  # faults end here
    faults: dict = field(default_factory=dict)  # rate per second by name
    steer: str = ""  # "close" or "size"
    delay: float = 0.02
    any_order: bool = False
    offsets: bool = True
    waits: float = 0.0  # how often a source has nothing yet
    makes: float = 0.0  # time that making takes, at most
    guard: bool = False  # whether calls of a partition that makes are noticed
    small: bool = True  # whether segments that fill no batch make a smaller one
    named: bool = True  # whether runs of ranks have names


class Broken(AssertionError):
    """A law is broken."""


def law(holds, text):
    if not holds:
        raise Broken(text)


# Messages from trainers, as a world's wires carry them


@dataclass(slots=True)
class Greets:
    connection: int
    who: dict
    held: list
    commits: list
    gets: list


@dataclass(slots=True)
class Step:
    commits: list
    returned: list
    withdrawn: list
    gets: list


class Heartbeat:
    pass


class Bye:
    pass


class LetGo:
    pass


class Wire:
    def __init__(self, process, owner, life, number):
        self.process, self.owner, self.life, self.number = process, owner, life, number
        self.cut, self.until = False, NEVER
        self.up_at = self.down_at = 0.0


class Guarded:
    """A partition whose desk must not call it while it makes."""

    def __init__(self, partition):
        self.partition, self.makes = partition, False
        self.machine = self

    def __getattr__(self, name):
        law(not self.makes or name in ("ahead", "lanes", "voids"), f"{name} while it makes")
        return getattr(self.partition, name)


class Owner:
    """One life of an owner."""

    def __init__(self, world, number, count, term):
        self.world, self.number = world, number
        of = range(number, world.config.partitions, count)
        journal = world.journal
        self.slab, self.port = Slab(world.config.room), port.Port()
        self.port.make = self.make_at_once
        self.partitions = {p: world.partition(p, journal.of(p), self.slab) for p in of}
        if world.config.guard:
            self.partitions = {p: Guarded(one) for p, one in self.partitions.items()}
        known = journal.everyone()
        journal.known[number] = dict(known)
        self.desk = Desk(
            self.partitions, term, self.port, known=known, runs=journal.runs,
            births=[(*of, birth) for of, birth in journal.births.items()],
            tokens=world.stored_tokens, now=world.now, ttl=TTL, grace=GRACE,
            max_open=world.config.max_open,
        )  # fmt: skip
        self.alive = True
        self.buffers = {p: [] for p in (SESSIONS, *of)}  # entries: lists of records
        self.written = Counter()
        self.flushing = set()
        self.working = False
        self.trainers = set()  # sessions that have been here
        self.returned = 0  # batches that trainers gave back, for others
        self.wires = {}  # by session
        world.later(0.5, self.tick)
        self.after()

    def tick(self):
        if self.alive:
            config, idle = self.world.config, not (self.working or self.desk._busy is not None)
            if idle and not (config.waits or config.steer) and self.slab.has_room():
                law(not self.desk._held_up, "requests wait for memory that is there")
            self.desk.tick(self.world.now)
            self.after()
            self.world.later(0.5, self.tick)

    def hear(self, wire, message):
        if not self.alive or self.world.now > wire.until:
            return
        name, now, desk = wire.process.name, self.world.now, self.desk
        known = self.wires.get(name)
        if isinstance(message, Greets):
            if known is None or known.number < wire.number:
                self.wires[name] = wire
                desk.hello(self.hello(name, message), now)
        elif known is wire:  # else it is late, of an earlier connection
            if not desk.seen(name, now):
                self.port.sent.append((name, port.Unknown()))
            if isinstance(message, Step):
                self.step(name, message)
            elif isinstance(message, Bye):
                desk.leave(name)
        self.after()

    def bury(self, wire):
        """Notice that a trainer is dead, by its connection or its lock."""
        if self.alive and self.wires.get(wire.process.name) is wire:
            self.desk.leave(wire.process.name)
            wire.until = -1
            self.after()

    def step(self, name, step):
        desk = self.desk
        for token, payload in step.commits:
            desk.commit(name, token, payload)
        if step.returned:
            self.returned += len(step.returned)
            desk.give_back(name, step.returned)
        if step.withdrawn:
            desk.withdraw(name, step.withdrawn)
        if step.gets:
            desk.ask(name, [Get(*get) for get in step.gets])

    @staticmethod
    def hello(name, greeting):
        def batch(given):
            turn = given.turn_epoch, given.turn_index
            return Batch(given.partition, given.number, -1, turn, given.rows, given.place)

        return Greeting(
            name,
            **greeting.who,
            held=[(given.token, batch(given)) for given in greeting.held],
            commits=[(given.token, batch(given), load) for given, load in greeting.commits],
            gets=greeting.gets,
        )

    def after(self):
        self.note()
        self.send()
        if not self.working:
            self.working = True
            self.world.later(self.world.random.random() * 0.01, self.work)

    def send(self):
        world = self.world
        for name, message in self.port.sent:
            wire = self.wires.get(name)
            if isinstance(message, port.Give):
                message = world.given(message)
            if isinstance(message, port.Answer):
                stored = world.stored_tokens
                answered = stored.issuperset(message.committed)
                law(answered, "a commit is answered before it is stored")
                law(stored.isdisjoint(message.stale), "a stored commit is called stale")
            if isinstance(message, port.Welcome) and world.steady:
                law(not message.stale, "what a trainer holds is void, though none has left")
            if wire is not None:
                world.count(message)
                world.down(wire, message)
        self.port.sent.clear()

    def note(self):
        """Take what is to be stored, and the memory that is free."""
        world, desk = self.world, self.desk
        for entry in self.port.log:
            kind, p = entry[0], entry[1]
            if kind in ("join", "leave"):
                p, records = SESSIONS, [entry]
            else:
                records = self.partitions[p].take_records()
                for record in records:
                    world.check_accepted(p, record, desk.run)
            self.buffers[p].append(records)
            if p not in self.flushing:
                self.flushing.add(p)
                world.later(world.random.random() * 0.1, lambda p=p: self.flush(p))
        self.port.log.clear()
        for batch in self.port.freed:
            self.slab.gone(batch)
        self.port.freed.clear()
        if self.slab.mapped and world.random.random() < world.config.maps:
            world.later(world.random.random() * 0.3, self.free)
        else:
            self.free()

    def free(self):
        if self.slab.mapped:
            self.slab.free()
            self.desk.freed()

    def work(self):
        self.working = False
        if not self.alive:
            return
        world, config = self.world, self.world.config
        desk = self.desk
        while work := desk.next_work() or (desk.work_ahead() if desk.ahead else None):
            self.send()
            partition = self.partitions[work.partition]
            if config.waits and world.random.random() < config.waits:
                self.desk.made(work, Outlook.WAITS)
                world.later(world.random.random(), lambda p=work.partition: self.wake(p))
            elif config.makes and world.random.random() < 0.3:
                self.desk.begin(work)
                before = world.random.random() < 0.5  # whether it is done at once, and told later
                made = self.make(work) if before else None
                if config.guard:
                    partition.makes = True
                seconds = world.random.random() * config.makes
                world.later(seconds, lambda work=work, made=made: self.made(work, made))
                self.send()
                self.note()
                return
            else:
                self.desk.made(work, self.make(work))
            self.send()
            self.note()
            if world.random.random() < 0.5:  # other events may come between
                self.after()
                return
        self.send()
        self.note()

    def make(self, work):
        partition = self.partitions[work.partition]
        made = partition.make(work.slot, work.epoch, work.beyond, work.most)
        config, batches = self.world.config, len(self.slab.bodies) - len(self.slab.mapped)
        # beyond the memory there may be one of each trainer, and of each partition one or a round
        rounds = len(self.partitions) * max(1, self.desk.world)
        self.trainers |= self.desk.sessions.keys()  # one that leaves leaves its batch here
        most = config.room + rounds + len(self.trainers) + self.returned
        law(batches <= most, f"{batches} batches in a room of {config.room}")
        return made

    def make_at_once(self, partition, slot, epoch, most):
        if self.world.random.random() < 0.5:
            return None
        made = self.make(Work(partition, slot, epoch, most=most))
        return None if isinstance(made, Outlook) else made

    def made(self, work, made):
        if self.alive:
            partition = self.partitions[work.partition]
            if self.world.config.guard:
                partition.makes = False
            if made is None:
                made = self.make(work)
            self.desk.made(work, made)
            self.after()

    def wake(self, partition):
        if self.alive:
            self.desk.wake(partition)
            self.after()

    def flush(self, p):
        self.flushing.discard(p)
        if self.alive:
            self.write(p, len(self.buffers[p]))
            written = self.written[p]
            seconds = self.world.random.random() * 0.02
            self.world.later(seconds, lambda: self.stored(p, written))

    def write(self, p, n):
        for records in self.buffers[p][:n]:
            self.write_records(p, records)
        del self.buffers[p][:n]
        self.written[p] += n

    def write_records(self, p, records):
        for record in records:
            if p != SESSIONS:
                self.world.check_durable(p, record)
            self.world.journal.write(self.number, p, record)

    def stored(self, p, written):
        if self.alive:
            self.desk.stored(p, written)
            self.after()

    def write_all(self):
        for p, buffer in self.buffers.items():
            self.write(p, len(buffer))

    def kill(self):
        """End this life: some of what was not written outlives it."""
        self.alive = False
        random = self.world.random
        for p, buffer in self.buffers.items():
            if buffer:
                self.write(p, random.randint(0, len(buffer)))
            if buffer:  # a part of an entry
                self.write_records(p, buffer[0][: random.randint(0, len(buffer[0]))])
        for wire in self.wires.values():
            wire.until = -1


class Process:
    """A trainer."""

    def __init__(self, world, name, job=None, rank=-1):
        c = world.config
        self.world, self.name, self.job, self.rank = world, name.encode(), job, rank
        lanes = c.kind in ("lanes", "bare") and not c.world
        self.who = {"birth": world.births}
        if job:
            self.who.update(rank=rank, world=job.size, run=job.run if c.named else 0)
        world.births += 1
        owners = len(world.owners)
        self.machine = Trainer(
            c.partitions, [p % owners for p in range(c.partitions)], owners, rank=rank,
            prefetch=world.random.choice([c.prefetch, c.prefetch, 0, 8]) if job else c.prefetch,
            lanes=lanes, chained=c.kind == "lanes",
            strict=c.borders and world.segmented, any_order=c.any_order and not job,
            explicit=c.hold > 1, lazy=not world.segmented or c.kind == "bare",
        )  # fmt: skip
        self.machine.bound(c.max_open)
        self.owners = owners
        self.generation = world.generation
        self.alive, self.asleep_until, self.inbox = True, 0.0, []
        self.wires = {}
        self.connection = 0
        self.training, self.begun = {}, []  # held by token; those that the loop trains on
        self.contents, self.stales, self.last = [], 0, None
        self.lanes = {}  # by lane: partition, example and segment that come next
        self.connecting = set()
        world.later(world.random.random(), self.beat)
        self.look_at_links()

    # Links

    def look_at_links(self):
        world = self.world
        if self.alive and self.generation != world.generation:
            self.generation = world.generation
            for wire in self.wires.values():
                self.cut(wire)
            self.wires.clear()
            self.owners = owners = len(world.owners)
            self.machine.regroup([p % owners for p in range(world.config.partitions)], owners)
            self.connecting.clear()
        for owner in range(self.owners):
            if owner and self.who.get("run") == 0:
                break  # the first one names the run
            wire = self.wires.get(owner)
            if (wire is None or wire.cut) and owner not in self.connecting:
                self.connecting.add(owner)
                world.later(world.random.random() * 0.4, lambda o=owner: self.connect(o))

    def connect(self, owner):
        world = self.world
        if not self.alive or owner not in self.connecting:
            return
        if self.asleep() or self.generation != world.generation or not world.owners[owner].alive:
            world.later(0.2, lambda: (self.look_at_links(), self.connect(owner)))
            return
        self.connecting.discard(owner)
        if (old := self.wires.get(owner)) is not None:
            self.cut(old)
        self.connection += 1
        greeting = Greets(self.connection, self.who, *self.machine.greeting(owner))
        self.wires[owner] = wire = Wire(self, owner, world.owners[owner], self.connection)
        world.up(wire, greeting)
        if world.happens("cut", 4.0):  # soon again, so that two greetings may cross
            world.later(world.random.random() * 0.05, lambda: self.lose(owner))

    def cut(self, wire):
        if not wire.cut:
            wire.cut = True
            later = self.world.random.choice([-1, 0.05, 1.0, 9])
            wire.until = min(wire.until, self.world.now + later)

    def lose(self, owner):
        if self.alive and owner in self.wires and not self.wires[owner].cut:
            self.cut(self.wires[owner])
            self.machine.lost(owner)
            self.look_at_links()

    # Life

    def asleep(self):
        return self.world.now < self.asleep_until

    def beat(self):
        if self.alive:
            if not self.asleep():
                self.send(True)
                self.look_at_links()
            self.world.later(1.0, self.beat)

    def hear(self, wire, message):
        if not self.alive or wire.cut or self.wires.get(wire.owner) is not wire:
            return
        if self.asleep():
            self.inbox.append((wire, message))
            return
        if not self.job and self.world.happens("interrupt", 0.2):  # it ends all ranks
            with self.interrupted():
                self.handle(wire, message)
                self.send()
        elif not self.handle(wire, message):
            return
        self.act()

    @contextlib.contextmanager
    def interrupted(self):
        """Let Ctrl-C come amid a change of the machine; then all owners are greeted."""
        lines = self.world.random.randint(1, 30)

        def trace(frame, event, arg):
            nonlocal lines
            code, machine = frame.f_code, Trainer.__init__.__code__
            if code.co_filename != machine.co_filename or code.co_name == "__del__":
                return None
            lines -= event == "line"
            if not lines:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        except KeyboardInterrupt:
            self.machine.recount()
            for owner in range(self.owners):
                self.lose(owner)
        finally:
            sys.settrace(before)

    def handle(self, wire, message):
        """Take a message; return whether this trainer goes on."""
        owner, machine = wire.owner, self.machine
        if isinstance(message, Given):
            # a batch may come before the Welcome, and again with it
            if message.token not in machine.hands and message.token not in machine.commits:
                machine.give(owner, message, self.world.bodies[message.token])
                if message.token % 3 == 0:  # another thread sends before the loop takes it
                    self.send()
        elif isinstance(message, port.Answer):
            answers = message.committed, message.stale, message.faults
            for _, code, text in machine.answer(*answers):
                self.stale(code, text)
        elif isinstance(message, port.Idle):
            live = (message.request,) if message.live else ()
            machine.idle(owner, (message.request,), live)
        elif isinstance(message, port.Over):
            machine.over(owner, *message)
        elif isinstance(message, port.Welcome):
            if self.job:
                self.who["run"] = message.run
                self.job.join(message.run)
            others = message.others if self.world.config.offsets else 0
            machine.welcome(owner, message.next, message.stale, others)
            # commits on their way will be refused
            self.stales += any(token in machine.commits for token in message.stale)
            self.training = {t: h for t, h in self.training.items() if t in machine.hands}
        elif isinstance(message, LetGo):
            machine.let_go()
        elif isinstance(message, port.Unknown):
            self.lose(owner)
        elif isinstance(message, port.Refused):
            self.die()
            self.world.refused(self, message.text)
            return False
        return True

    def stale(self, code="stale", text=""):
        self.stales += 1
        config = self.world.config
        rough = {"kill", "leave", "return", "job", "stop"} & config.faults.keys() or config.steer
        fair = not self.world.slept and (config.kind in ("plain", "buckets") or not rough)
        law(not (fair and self.alive), f"{self.name} lost a batch though it was never away {text}")

    def wake(self):
        inbox, self.inbox = self.inbox, []
        for wire, message in inbox:
            self.hear(wire, message)
        if self.alive:
            self.act()

    def act(self):
        if not self.alive or self.asleep():
            return
        world, c = self.world, self.world.config
        if self.machine.torn:  # a rank that lost a batch ends, and its launcher starts all again
            self.die()
            world.refused(self, "torn")
            return
        while len(self.training) < c.hold:
            held = self.machine.take()
            if held is None:
                break
            if world.happens("untake", 1.0):
                self.machine.untake(held)
                law(self.machine.take() is held, "another batch than the one that was put back")
            self.took(held)
            if not self.job and world.happens("return", 1.0):
                self.machine.give_back(held.given.token)
                continue
            self.training[held.given.token] = held
        # a loop that holds several batches begins when it has as many, or learns that no more come
        if len(self.training) >= c.hold or not c.stubborn or self.machine.stuck:
            for held in self.training.values():
                if held not in self.begun:
                    self.begun.append(held)
                    world.later(world.random.random() * 0.2, lambda h=held: self.trained(h))
        self.send()
        self.look_at_links()
        if self.machine.ended and not self.training:
            self.finish()

    def took(self, held):
        given = held.given
        segmented = self.world.segmented
        rows = [row[:3] for row in rows_of(given.place)] if segmented else held.source
        self.contents.append((given.partition, given.number, held.turn, rows))
        key = (*held.turn, given.partition)
        if self.job:
            self.job.torn |= bool(self.stales)
            if not self.stales:
                law(
                    self.last is None or key > self.last, f"{self.name} got {key} after {self.last}"
                )
                after = self.job.after.setdefault(self.last, key) if self.last else key
                law(self.job.torn or key == after, f"{self.name} got {key}, another {after}")
            self.last = key
            self.job.reach(self.rank, key)
        if self.world.config.borders:
            law(held.turn[0] <= self.machine.epoch, "a batch of a later epoch")
        if self.machine.lanes:
            self.check_lanes(given)

    def check_lanes(self, given):
        """Check that lanes keep their examples, unless a batch was returned or its lease ended."""
        world, p, rows = self.world, given.partition, rows_of(given.place)
        torn = self.stales or world.slept or "return" in world.config.faults
        for lane, e, segment, _ in rows:
            awaited = self.lanes.pop(lane, (p, e, segment))
            if awaited != (p, e, segment) and not torn:
                world.deserted[awaited[:2]] = f"{(p, e, segment)} is in the lane of {awaited}"
            if segment + 1 < world.counts[p][e % len(world.counts[p])]:
                self.lanes[lane] = p, e, segment + 1

    def trained(self, held):
        token = held.given.token
        if not self.alive or token not in self.training:
            return
        if self.asleep():
            self.world.later(self.asleep_until - self.world.now + 0.01, lambda: self.trained(held))
            return
        if held in self.begun:
            self.begun.remove(held)
        key = (*held.turn, held.given.partition)
        if self.job and not self.job.all_reached(key):
            self.job.waiting.append((self, held))
            return
        del self.training[token]
        states = None
        if self.world.config.kind in ("arrival", "lanes"):
            tag = self.world.fresh()
            rows = rows_of(held.given.place)
            states = [
                (e, segment, before[3] if before else None, tag)
                for (_, e, segment, _), before in zip(rows, held.source, strict=True)
            ]
        if not self.machine.commit(token, states):
            self.stale()
        self.act()

    def send(self, heartbeat=False):
        world, machine = self.world, self.machine
        for owner, wire in self.wires.items():
            if wire.cut or not (machine.due(owner) or heartbeat):
                continue
            commits, *others = machine.outgoing(owner)
            step = Step([(held.given.token, held.payload) for held in commits], *others)
            for word in (*step.commits, *step.returned, *step.gets):
                world.count(word)
            if any((step.commits, step.returned, step.withdrawn, step.gets)):
                world.messages["Step"] += 1
                world.up(wire, step)
            if heartbeat:
                world.up(wire, Heartbeat())

    def die(self):
        self.alive = False
        noticed = self.world.deaths.random() < 0.7  # else its session ends by its silence
        for wire in self.wires.values():
            self.cut(wire)
            if noticed:
                seconds = self.world.deaths.random() * 3.0
                self.world.later(seconds, lambda wire=wire: wire.life.bury(wire))
        self.world.processes.discard(self)

    def leave(self):
        if not self.alive or self.asleep():
            return
        self.send(True)
        for wire in self.wires.values():
            self.world.up(wire, Bye())
        self.alive = False
        self.world.processes.discard(self)

    def finish(self):
        self.leave()
        self.world.finished.append(self)
        if self.job:
            self.job.reach(self.rank, END)


class Job:
    """The ranks of one run, in step: a rank commits when all have come as far.

    A commit counts as well, of a process that is dead: nothing of that round comes again.
    """

    def __init__(self, world, size):
        self.world, self.size = world, size
        self.run = 0  # its owners name it
        if world.config.named:
            self.run = world.run_names.pop()
        self.number, world.jobs = world.jobs, world.jobs + 1
        self.reached = dict.fromkeys(range(size), (-1,))
        self.committed = dict.fromkeys(range(size), (-1,))
        self.waiting = []
        self.after = {}  # what ranks got after each batch
        self.over = self.torn = False  # torn: a rank began again alone, or lost a batch
        self.ranks = {}
        for rank in range(size):
            self.start(rank)

    def start(self, rank):
        name = f"job{self.number}-rank{rank}-{self.world.births}"
        self.reached[rank] = self.committed[rank]
        self.torn |= rank in self.ranks
        self.ranks[rank] = self.world.add(Process(self.world, name, self, rank))

    def join(self, run):
        """Take the number of its run from an owner; a new run begins with its first round."""
        if run != self.run:
            self.run = run
            self.after.clear()
            for of in (self.reached, self.committed):
                of.update({rank: (-1,) for rank, key in of.items() if key != END})

    def reach(self, rank, key):
        self.reached[rank] = max(self.reached[rank], key)
        self.look()

    def commit(self, rank, key):
        self.committed[rank] = max(self.committed[rank], key)
        self.reach(rank, key)

    def all_reached(self, key):
        return all(reached >= key for reached in self.reached.values())

    @property
    def done(self):
        return all(reached == END for reached in self.reached.values())

    def look(self):
        waiting, self.waiting = self.waiting, []
        for process, held in waiting:
            self.world.later(0.0, lambda p=process, h=held: p.trained(h))

    def stop(self):
        self.over = True
        for process in self.ranks.values():
            if process.alive:
                process.die()


class World:
    def __init__(self, seed, config):
        self.seed, self.config, self.random = seed, config, Random(seed)
        self.segmented = config.kind not in ("plain", "buckets")
        self.now, self.events, self.order = 0.0, [], 0
        self.journal = Journal()
        self.stored_tokens = set()
        self.term = self.births = self.tags = self.generation = 0
        self.jobs = 0
        self.run_names = Random(seed).sample(range(1, 1000), 999)
        self.deaths = Random(seed + 1)
        self.slept = False
        #: Whether trainers neither leave nor sleep, nor give batches back.
        self.steady = config.faults.keys() <= {"cut", "owner", "server", "stop"}
        self.messages = Counter()
        self.ledger = {}  # (partition, row or segment) → state, durable
        self.accepted = {}  # the same, as this life has accepted it
        self.contents = {}  # rows of plain batches, by partition and number
        self.bodies = {}  # what a trainer sees, by token
        self.dropped = set()
        self.left = set()  # (partition, example) that is left out at the end, durable
        self.deserted = {}  # (partition, example) that its lane has lost, with a text
        self.rounds = defaultdict(set)  # (run, partition, turn) → ranks that have committed
        self.processes, self.finished = set(), []
        self.closed = self.stopping = False
        self.spawned = 0
        self.job = None
        random = Random(seed * 7 + 1)
        rows, partitions = config.rows, range(config.partitions)
        self.counts = {p: [random.randint(1, 5) for _ in range(rows // 2)] for p in partitions}
        self.rows_of = {p: random.randint(rows // 2, rows) for p in partitions}
        self.owners = []
        for number in range(config.owners):
            self.owners.append(self.owner(number, config.owners))
        self.populate()
        self.later(0.5, self.chaos)

    # Making

    def partition(self, p, stored, slab):
        c = self.config
        if not self.segmented:
            buckets = 3 if c.kind == "buckets" else 1
            return Plain(
                p, stored, slab, rows=self.rows_of[p], size=c.size, epochs=c.epochs,
                borders=c.borders, buckets=buckets,
            )  # fmt: skip
        order = "arrival" if c.kind == "arrival" else "lanes"
        return Segments(
            p, stored, slab, counts=self.counts[p], size=c.size, capacity=c.capacity, order=order,
            states=c.kind != "bare", epochs=c.epochs, borders=c.borders, small=c.small,
        )  # fmt: skip

    def owner(self, number, count):
        self.term += 1
        return Owner(self, number, count, self.term)

    def add(self, process):
        self.processes.add(process)
        return process

    def populate(self):
        if self.config.world:
            if self.job is None or self.job.over:
                self.job = Job(self, self.config.world)
            return
        while len(self.processes) < self.config.trainers:
            self.add(Process(self, f"t{self.spawned}"))
            self.spawned += 1

    def refused(self, process, text):
        if process.job and not process.job.over and self.now > 0:
            self.later(1.0, lambda: (process.job.stop(), self.populate()))
        elif not process.job:
            self.later(1.0, self.populate)

    # Time

    def later(self, delay, call):
        self.at(self.now + delay, call)

    def at(self, time, call):
        self.order += 1
        heapq.heappush(self.events, (time, self.order, call))

    def lag(self):
        return self.random.expovariate(1 / self.config.delay)

    def up(self, wire, message):
        if not wire.cut:
            wire.up_at = max(wire.up_at, self.now + self.lag())
            self.at(wire.up_at, lambda: wire.life.hear(wire, message))

    def down(self, wire, message):
        wire.down_at = max(wire.down_at, self.now + self.lag())
        self.at(wire.down_at, lambda: wire.process.hear(wire, message))

    def happens(self, fault, seconds):
        rate = self.config.faults.get(fault, 0) * seconds
        return rate > 0 and self.now < self.config.horizon and self.random.random() < rate

    def soon(self, call):
        self.later(self.random.random() * 0.5, call)

    def chaos(self):
        """Let things go wrong, for half a second of simulated time."""
        random = self.random
        if self.now < self.config.horizon:
            for number in range(len(self.owners)):
                if self.happens("owner", 0.5):
                    self.soon(lambda n=number: self.kill_owner(n))
            for process in sorted(self.processes, key=lambda p: p.name):
                if self.happens("cut", 0.5):
                    self.soon(lambda p=process: p.lose(random.randrange(p.owners)))
                if self.happens("suspend", 0.5):
                    self.soon(lambda p=process: self.suspend(p))
                if self.happens("kill", 0.5):
                    self.soon(lambda p=process: self.kill(p))
                if self.happens("leave", 0.5) and not process.job:
                    self.soon(lambda p=process: (p.leave(), self.populate()))
            if self.happens("server", 0.5):
                self.soon(self.kill_server)
            if self.happens("stop", 0.5):
                self.soon(self.stop_server)
            if self.happens("job", 0.5) and self.job:
                self.soon(self.restart_job)
            if self.config.steer and random.random() < 0.05:
                self.steer()
        if not self.finished:
            if not self.job:  # a job that is stopped begins anew at its own time
                self.populate()
            self.later(0.5, self.chaos)

    def steer(self):
        size = ("size", self.random.randint(2, 6))
        what = size if self.config.steer == "size" else ("close", None)
        self.closed = self.closed or what[0] == "close"
        for owner in self.owners:
            for p in owner.partitions:
                if owner.alive and not owner.desk.recovering:
                    owner.desk.steer(p, what)
                    owner.after()

    def kill_owner(self, number):
        if number < len(self.owners) and self.owners[number].alive:
            self.owners[number].kill()
            self.forget_unstored(self.owners[number])
            generation, count = self.generation, len(self.owners)
            seconds = 0.1 + self.random.random() * 0.3
            self.later(seconds, lambda: self.revive(number, generation, count))
            for process in sorted(self.processes, key=lambda p: p.name):
                self.later(self.random.random() * 0.3, lambda p=process: p.lose(number))

    def revive(self, number, generation, count):
        if generation == self.generation:
            self.owners[number] = self.owner(number, count)

    def kill_server(self):
        for owner in self.owners:
            if owner.alive:
                owner.kill()
        self.accepted = dict(self.ledger)
        self.generation += 1
        self.stopping = False
        count = self.random.randint(1, 3)
        known = self.journal.everyone()
        self.journal.known = {number: dict(known) for number in range(count)}
        self.owners = [self.owner(number, count) for number in range(count)]

    def stop_server(self):
        """Stop the server as it is planned: nothing more is handed out, and all is stored."""
        if self.stopping:
            return
        self.stopping = True
        generation = self.generation
        for owner in self.owners:
            owner.desk.paused = True
            owner.send()  # what it has handed out goes first
            for wire in owner.wires.values():
                self.down(wire, LetGo())
        self.later(0.5 + self.random.random() * 2, lambda: self.restart(generation))

    def restart(self, generation):
        if generation == self.generation:
            for owner in self.owners:
                if owner.alive:
                    owner.write_all()
            self.kill_server()

    def forget_unstored(self, owner):
        for key in [key for key in self.accepted if key[0] in owner.partitions]:
            del self.accepted[key]
        for key, state in self.ledger.items():
            if key[0] in owner.partitions:
                self.accepted[key] = state

    def suspend(self, process):
        if process.alive and not process.asleep():
            seconds = self.random.choice([0.5, 2.0, 6.0, 15.0, 30.0])
            process.asleep_until = self.now + seconds
            self.slept = True
            self.later(seconds + 0.001, process.wake)

    def kill(self, process):
        if not process.alive:
            return
        process.die()
        job = process.job
        if job and not job.over:
            if self.random.random() < 0.5:
                self.later(self.random.random() * 2, lambda: job.over or job.start(process.rank))
            else:
                self.restart_job()
        else:
            self.populate()

    def restart_job(self):
        if self.job and not self.job.over:
            self.job.stop()
            world = self.config.world
            self.config.world = max(1, self.random.choice([world, self.random.randint(1, 4)]))
            by_hand = 0.0 if self.config.named else 5.0  # what the earlier ones sent has come
            self.later(by_hand + self.random.random() * 3, self.populate)

    # Laws

    def fresh(self):
        self.tags += 1
        return self.tags

    def count(self, word):
        self.messages[type(word).__name__] += 1

    def given(self, give):
        """Check a batch that goes out; return it as its trainer sees it."""
        batch = give.batch
        p, number, body = batch.partition, batch.number, give.body
        law(body is not None, f"batch {batch} has no bytes")
        if not self.segmented:
            known = self.contents.setdefault((p, number, *body[1:]), body[0])
            # a batch that nobody has may be made anew with another size
            anew = self.config.steer and len(body) == 1
            law(known == body[0] or anew, f"batch {batch} has other rows than before")
            self.contents[p, number] = body[0]
        self.check_give(batch, body)
        self.bodies[give.token] = body
        return Given(
            give.request, give.token, p, number, *batch.turn, batch.epoch, batch.rows, 0,
            place=batch.place, live=give.live,
        )  # fmt: skip

    def units(self, p, data):
        """Yield what a commit has done: rows, or segments with states."""
        for of in data:
            if self.segmented:
                e, segment, state = of
                yield (p, e, segment), state
            else:
                yield (p, *of), None

    def check_accepted(self, p, record, run):
        if record[0] == "commit":
            _, _number, slot, turn, _token, data = record[:6]
            for key, state in self.units(p, data):
                law(key not in self.accepted, f"{key} was committed twice")
                self.accepted[key] = state
            job = self.job
            if job and run == job.run and isinstance(slot, int) and slot in job.committed:
                job.commit(slot, (*turn, p))

    def check_durable(self, p, record):
        if not self.segmented:
            committed = record[1] if record[0] == "commit" else None
            done = (of[1] for of in record[-1] if of[0] == "done")
            self.dropped.update((p, number) for number in done if number != committed)
        elif record[0] == "left":
            self.left.update((p, e) for e in record[1])
        if record[0] != "commit":
            return
        _, _number, slot, turn, token, data = record[:6]
        self.stored_tokens.add(token)
        run = self.journal.of(p).run
        self.rounds[run, p, turn].add(slot)
        for key, state in self.units(p, data):
            law(key not in self.ledger, f"{key} was committed twice")
            if self.segmented:
                before = (*key[:2], key[2] - 1)
                law(key[2] == 0 or before in self.ledger, f"{key} was committed before {before}")
                if state is not None:
                    last = self.ledger[before][3] if key[2] else None
                    law(state[2] == last, f"{key} went on from another state")
            self.ledger[key] = state

    def check_give(self, batch, body):
        if not self.segmented:
            rows = body[0]
            law(len({row[0] for row in rows}) == 1 or not self.config.borders, "two epochs")
            return
        p = batch.partition
        for at, (_, e, segment, _) in enumerate(rows_of(batch.place)):
            law((p, e) not in self.left, f"{(p, e)} was left out")
            if self.config.kind != "bare":
                before = self.accepted.get((p, e, segment - 1))
                law(segment == 0 or before is not None, f"{(p, e, segment)} is too early")
                law(body[at] == before, f"{(p, e, segment)} got another state")
            if self.config.borders:
                epoch = e // len(self.counts[p])
                law(epoch == batch.turn[0], "a batch has a segment of another epoch")
                if epoch and self.config.small and not self.closed:
                    self.check_epoch_before(epoch)

    def check_epoch_before(self, epoch):
        for q, counts in self.counts.items():
            n = len(counts)
            for f in range((epoch - 1) * n, epoch * n):
                last = (q, f, counts[f % n] - 1)
                law(last in self.accepted, f"epoch {epoch} began before {last}")

    def run(self, limit=2000.0):
        steps = 0
        while self.events:
            self.now, _, call = heapq.heappop(self.events)
            call()
            steps += 1
            if self.finished and not self.processes and (not self.job or self.job.done):
                break
            law(self.now < self.config.horizon + limit and steps < 3_000_000, "it hangs")
        for owner in self.owners:
            if owner.alive:
                owner.write_all()
        self.check_end()
        return self

    def check_end(self):
        c = self.config
        law(self.finished, "nobody finished")
        for lost, text in self.deserted.items():
            law(lost in self.left or self.closed, text)
        rows = {p: set() for p in range(c.partitions)}
        for key in self.ledger:
            rows[key[0]].add(key[1:])
        for p in range(c.partitions):
            if self.segmented:
                done = Counter(e for e, _ in rows[p])
                for e, n in done.items():
                    whole = n == self.counts[p][e % len(self.counts[p])]
                    law(whole or (p, e) in self.left, f"{p}/{e} has {n} segments")
                left = {e for q, e in self.left if q == p}
                if not self.closed:
                    known = len(done.keys() | left)
                    law(known == len(self.counts[p]) * c.epochs, f"{p}: examples are missing")
                law(not (left and c.small), f"{p}: {left} are left out")
            elif not (self.closed or self.dropped):
                want = {(epoch, row) for epoch in range(c.epochs) for row in range(self.rows_of[p])}
                law(rows[p] == want, f"{p}: {sorted(want - rows[p])[:5]} are missing")
        if self.job and self.finished[-1].job is self.job:
            every = [[of[:3] for of in rank.contents] for rank in self.job.ranks.values()]
            turns = [[(turn, p) for p, _, turn in of] for of in every]
            law(self.job.torn or all(of == turns[0] for of in turns), "ranks are out of step")
            for (run, p, turn), ranks in self.rounds.items():
                if run == self.job.run:
                    law(len(ranks) == self.job.size, f"round {turn} of {p} has ranks {ranks}")
        for owner in self.owners:
            self.check_owner_at_end(owner)

    def check_owner_at_end(self, owner):
        if not owner.alive or owner.desk.recovering:
            return
        for p in owner.buffers:
            owner.desk.stored(p, owner.written[p])
        desk = owner.desk
        for name in list(desk.sessions):
            desk.leave(name)
        owner.note()
        owner.free()
        if desk._busy is None:
            law(not owner.slab.bodies, f"{len(owner.slab.bodies)} batches are never freed")
