"""An owner without processes: its real switchboard, with played partitions and a played socket.

    Hello, Step … ─► Switchboard: Reception, Desk, Dispatcher ──► orders ─┐
    Deliver … ◄────────────────────────────────────────────── ◄── words ──┴─ partitions ─► stored

A partition obeys, works and stores one thing at a time.  A life that dies loses all that was not
stored, and its trainers greet the next one.
"""

from __future__ import annotations

from collections import deque
from math import inf
from pathlib import Path
from types import SimpleNamespace

import msgpack

from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Hello, Unknown, Welcome
from headrace_proto.placement import partitions_of
from headrace_server.core.dispatch_effects import Batch, Claim, Deal, Leave, Release, Want
from headrace_server.core.end_of_feed import RETURN_S
from headrace_server.core.partition_turns import PartitionTurns
from headrace_server.making.slab import BlockPlace
from headrace_server.process.refusals import Refusals
from headrace_server.worker.desk import Desk
from headrace_server.worker.events import Opened
from headrace_server.worker.outbox import Outbox
from headrace_server.worker.sessions import SessionTable
from headrace_server.worker.switchboard import Switchboard
from tests.unit.core import rank_world

FEED, OWNERS, PARTITIONS = "f", 2, 3
_SCHEMA = [["x", "int64", [-1]]]
_TICK_S, _WORK_S = 0.1, 0.004


class Segments(rank_world.Partition):
    """A partition of segments; orders that cross its end do nothing."""

    def obey(self):
        if self.finished and isinstance(self.orders[0], (Want, Deal, Leave, Release)):
            self.orders.popleft()
        else:
            super().obey()

    def opened(self):
        properties = {"shape": "sequences", "order": self.order, "batch_size": 2}
        properties |= {"placement": "server", "states": []}
        return {"properties": properties, "rounds": self.dealt}

    def check(self):
        assert self.next == self.counts, "all is committed"


class Plain:
    """A partition of plain batches, which are made ahead."""

    capacity, made_ahead = None, True

    def __init__(self, number, counts, order, small):
        self.number, self.count = number, len(counts)
        self.done, self.tokens = set(), set()
        self.dealt = None
        self.begin()

    def begin(self):
        self.orders, self.words = deque(), deque()
        self.left = [n for n in range(self.count) if n not in self.done]
        self.finished = False

    @property
    def next_turn(self):
        return self.left[0] if self.left else self.count

    def opened(self):
        done = [n for n in self.done if n > self.next_turn]
        return {"rounds": self.dealt, "next": self.next_turn, "done": done}

    def obey(self):
        order = self.orders.popleft()
        if isinstance(order, Claim):
            place = order.place
            verdict = "no" if place.number < 0 or place.number in self.done else "yes"
            verdict = "done" if place.token in self.tokens else verdict
            self.words.append(("claimed", place.token, verdict, place.number))
            return
        number = order.batch.number
        self.words.append(("stored", number))
        if order.token not in self.tokens:
            self.tokens.add(order.token)
            assert number not in self.done, "once"
            self.done.add(number)

    def work(self):
        if self.left:
            self.words.append(("made", self.left.pop(0), 1, {}))
        elif not self.finished:
            self.finished = True
            self.words.append(("finished",))
        return True

    def check(self):
        pass  # rows that fill no round are dropped


class _Socket:
    """The public socket, for one life of an owner."""

    last_came_by = -1

    def __init__(self, owner):
        self.say = lambda connection, header: owner.say(connection, header, [])
        self._owner = owner
        self.heard, self.refusals = {}, Refusals()
        self.all_back = False

    @property
    def waits(self):
        return bool(self.heard)

    def send_block(self, connection, header, block, sent):
        self._owner.say(connection, header, [b""])
        sent()

    def opened(self, session, came_by, now):
        pass

    def left(self, session, now):
        sessions = self._owner.sessions
        self._owner.sessions = {c: number for c, number in sessions.items() if number != session}

    def receive(self):
        connection = next(iter(self.heard))
        return "", connection, self.heard.pop(connection)

    def name_of(self, key):
        return ""

    def tick(self, now):
        return False


class _Partitions:
    """The partitions of one life: calls become orders, which are obeyed later."""

    def __init__(self, owner):
        self._owner, self._of = owner, owner.partitions
        self.removed = []
        self.stores = self
        self.turns = PartitionTurns([FEED], 4, 1 << 20, 1 << 30)
        self._unstored = {}  # by partition: rounds of plain batches; of segments None

    # Calls of the switchboard

    def used(self, feed, partition):
        count = len(self._of[partition].tokens)
        return [count, 1.0, 1.0, count] if count else None

    def settled(self, name):
        return name[1] not in self._unstored

    def note(self, name, key, value):
        self._unstored[name[1]] = tuple(msgpack.unpackb(value))

    def store_rounds(self, name):
        self._unstored[name[1]] = None

    def hurry(self):
        pass

    def free(self, feed, effect):
        pass

    def pass_over(self, feed, effect):
        self._of[effect.partition].done.add(effect.number)

    def save(self, feed, effect):
        self._of[effect.batch.partition].orders.append(effect)

    def want(self, feed, effect):
        self._of[effect.partition].orders.append(effect)

    count, begin_epoch, flush = hurry, free, free
    leave = deal = claim = release = want

    # Work

    def open(self):
        for number, here in self._of.items():
            opened = Opened(number, _SCHEMA, **here.opened())
            self._owner.switchboard.hear((FEED, Desk.on_opened, opened))
            if isinstance(here, Plain):
                self.turns.open((FEED, number), here)

    def step(self, chance):
        """Do one thing; return False where there is nothing to do."""
        steps = []
        for number, here in self._of.items():
            steps += [lambda h=here: h.orders and (h.obey() or True)]
            steps += [lambda h=here: h.words and (self._word(h) or True)]
            steps += [lambda h=here: not h.orders and self._in_turn(h) and h.work()]
            steps += [lambda n=number: n in self._unstored and (self._store(n) or True)]
        chance.shuffle(steps)
        return any(step() for step in steps)

    def _in_turn(self, here):
        return not isinstance(here, Plain) or self.turns.turn() == (FEED, here.number)

    def _store(self, partition):
        dealt = self._unstored.pop(partition)
        if dealt is None:
            self._of[partition].store()
        else:
            self._of[partition].dealt = dealt

    def _word(self, partition):
        (kind, *rest), number = partition.words.popleft(), partition.number
        if kind == "made":
            made, rows, meta = rest
            batch = Batch(number, made, rows, BlockPlace("s", 0, [], False), meta, nbytes=1)
            event = (Desk.on_made, batch)
        elif kind == "stored":
            event = (Desk.on_stored, number, [(rest[0], "", "")])
        elif kind == "claimed":
            event = (Desk.on_judged, *rest)
        elif kind == "starved":
            event = (Desk.on_starved, number)
        elif kind == "dry":
            event = (Desk.on_dry, *rest)
        else:
            event = (Desk.on_finished, number, {"dropped": {}})
            if isinstance(partition, Plain):
                self.turns.end((FEED, number))
        self._owner.switchboard.hear((FEED, *event))


class Owner:
    """One owner through all its lives, and which trainers it has."""

    def __init__(self, world, number):
        self.world, self.number, self.life = world, number, -1
        kind = Segments if world.order else Plain
        numbers = partitions_of(number, OWNERS, PARTITIONS)
        self.partitions = {p: kind(p, world.counts[p], world.order, True) for p in numbers}
        self.alive = self._works = False
        self.sessions = {}  # by connection
        self._awaited, self._held = set(), {}
        self.begin()

    def begin(self):
        world, self.alive = self.world, True
        self.life += 1
        config = world.config()
        directory = Path(config.directory)
        self._socket = _Socket(self)
        (directory / "s").write_bytes(bytes(1))  # the segment of all batches
        self.table = SessionTable(directory, owner=self.number, owners=OWNERS, life=self.life)
        channels = SimpleNamespace(path=directory / "none", drop=lambda identity: None)
        credits = config.max_credits
        self._outbox = Outbox(
            self._socket, directory, self.table, channels, config.slab_bytes, credits
        )
        self._parts = _Partitions(self)
        pipe = SimpleNamespace(report=lambda event, **values: None)
        nothing = lambda *values: None  # noqa: E731
        returning = SimpleNamespace(joined=nothing, left=nothing, opened=nothing)
        self.switchboard = Switchboard(
            config, self.number, self._parts, pipe, world.clock, self._outbox, returning
        )
        self.switchboard.begin({"paused": False, "failed": {}, "all_opened": None, "before": {}})
        self._parts.open()
        self._give_up_at = world.now + RETURN_S
        self._socket.all_back = not self._awaited
        held, self._held = self._held, {}
        for connection, frames in held.items():
            self.hear(connection, frames)
        self._act()
        world.later(_TICK_S, self._tick, self.life)

    def die(self, told=True):
        """End a life; ``told``: its trainers notice, and greet the next one."""
        self.alive = False
        self._awaited.clear()
        for connection, session in self.sessions.items() if told else ():
            if not self.world.is_gone(connection):
                self._awaited.add(connection)
                self.say(connection, FROM_SERVER.encode(Unknown(session)), [])
        self.sessions = {}
        self.table.close()
        for partition in self.partitions.values():
            partition.begin()

    # Messages

    def say(self, connection, header, frames):
        if self.world.is_gone(connection) and not self.world.local:
            return False
        message = FROM_SERVER.decode(header)
        if isinstance(message, Welcome):
            self.sessions[connection] = message.session
            self._see_back(connection)
        self.world.send(self, connection, False, message, frames)
        return True

    def _see_back(self, *connections):
        if self._awaited:
            self._awaited.difference_update(connections)
            self._socket.all_back = not self._awaited

    def hear(self, connection, frames):
        if self.alive:
            self._socket.heard[connection] = frames
            self.switchboard.reception.hear_socket(1)
            self._act()
        elif isinstance(FROM_TRAINER.decode(frames[0]), Hello):
            self._held[connection] = frames

    # Time

    def _tick(self, life):
        if not self.alive or life != self.life:
            return
        now, reception = self.world.now, self.switchboard.reception
        if now >= self._give_up_at:
            self._see_back(*self._awaited)
        for session in self.table.present() if self.world.local else ():
            if self.world.is_gone(session.identity):  # its lock is free
                reception._leave(session)
        reception.tick(now)
        self._act()
        self.world.later(_TICK_S, self._tick, life)

    def _act(self):
        if self._socket.all_back:
            self._socket.all_back = False
            self.switchboard.all_are_back()
        self.switchboard.act()
        self.switchboard.unstored_rounds.deliver_stored()
        self._outbox.flush()
        if self._outbox.due_in_s < inf:
            self.world.later(self._outbox.due_in_s, self._flush, self.life)
        if not self._works:
            self._works = True
            self.world.later(self.world.random.random() * _WORK_S, self._work)

    def _flush(self, life):
        if self.alive and life == self.life:
            self._outbox.flush()

    def _work(self):
        self._works = False
        if self.alive and self._parts.step(self.world.random):
            self._act()

    def __str__(self):
        desk = self.switchboard.desks[FEED]
        present = {session.number: session.identity for session in self.table.present()}
        text = desk.describe(self.world.now)
        return f"owner {self.number}, run {desk.runs.current}, sessions {present}: {text}"
