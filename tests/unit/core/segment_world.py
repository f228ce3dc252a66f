"""A feed of segments without payload: real machines behind a real dispatcher, and lazy channels.

    trainers ──► Dispatcher ──orders──► partition: ArrivalOrder or LaneOrder
        ▲              │        ◄───words────
        └── deliveries ┘

What is on its way between desk and partitions waits in queues until it is its turn, so that any
two words can cross.  The world keeps account of every segment and every block.  A worker stores
what is saved some time after it; its death, or the server's, leaves what is stored, and what
trainers have.
"""

from __future__ import annotations

from collections import deque
from random import Random

import numpy as np

from headrace_proto.messages import Handed
from headrace_server.core.admitted_examples import AT_SERVER, AT_TRAINER, BEGUN
from headrace_server.core.arrival_order import ArrivalOrder
from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import (
    Answer,
    Batch,
    Claim,
    Finish,
    Freed,
    Leave,
    Release,
    Send,
    StoreCommit,
    StoreLanes,
    Want,
)
from headrace_server.core.lane_order import LaneOrder
from tests.unit.changes import begun

TTL = 10.0
CHUNK = 3
CHUNKS_OF_A_LIFE = 1000


def place_of(batch, token):
    """The description by which a restarted worker knows a batch."""
    claimed = batch.meta.get("claimed")
    which = batch.body if claimed is None else claimed.segments
    return Handed(token, batch.partition, batch.number, batch.rows, which)


class Worker:
    """One partition: takes orders one by one, and works when it has none."""

    def __init__(self, number, counts, order, ahead, batch_size, capacity, small):
        self.number = number
        self.options = batch_size, capacity, small, number
        self.order = order
        self.ahead = ahead
        self.counts = counts
        self.life = -1
        self.stored = {}  # example → chunk, row, index and the segment that is next
        self.tokens = set()
        self.begin(0)
        self.next = [0] * len(counts)  # segment of an example that is to be done next …
        self.kept = [0] * len(counts)  # … and from which it would be after a leave

    def begin(self, made):
        """Begin a life from the stored state."""
        self.life += 1
        if self.order == "lanes":
            self.machine = LaneOrder(*self.options, "trainer" if self.ahead else "server")
        else:
            self.machine = ArrivalOrder(*self.options)
        self.pending = deque()  # saves that are not stored, in order
        self.input = deque(range(0, len(self.counts), CHUNK))
        self.read = False  # whether the machine knows that all is read
        self.orders, self.words = deque(), deque()
        self.made = made
        self.out = {}  # by number
        self.after = {}  # by number: all
        self.of_stripe = {}  # examples that it has had
        self.starved = self.finished = False
        self.never = []
        self.refused = 0  # segments that were handed out, and whose states came after a cancel
        self.asleep = False
        going = [(e, at) for e, at in sorted(self.stored.items()) if at[3] < self.counts[e]]
        columns = np.array([at for _, at in going], np.int64).reshape(len(going), 4).T
        chunks, rows, indices, segments = columns
        counts = np.array([self.counts[e] for e, _ in going], np.int64)
        examples = np.array([e for e, _ in going], np.int64)
        names = examples.tolist()
        self.machine.resume(begun(chunks, rows, counts, segments, indices, examples, names))
        self.next = [self.stored.get(e, (0, 0, 0, 0))[3] for e in range(len(self.counts))]
        self.kept = list(self.next)

    def die(self):
        """Lose all unstored changes, and all messages on their way."""
        self.asleep = True
        self.orders.clear()
        self.words.clear()
        self.pending.clear()

    def examples(self, batch):
        chunks, rows = (batch.chunks % CHUNKS_OF_A_LIFE).tolist(), batch.rows.tolist()
        return [chunk * CHUNK + row for chunk, row in zip(chunks, rows, strict=True)]

    def obey(self):
        order = self.orders.popleft()
        if isinstance(order, Want):
            if not self.finished:
                self.machine.want(order.more, order.stripe)
                self.starved = False
        elif isinstance(order, Leave):
            self.leave(order.stripe)
        elif isinstance(order, StoreLanes):
            self.flush(*order.payload)
        elif isinstance(order, Claim):
            self.claim(order.place)
        elif isinstance(order, Release):
            batch = self.out.pop(order.number, None)
            if batch is not None:
                self.machine.release(batch)
        else:
            self.save(order.batch.number, order.token)

    def claim(self, place):
        verdict, number = "no", 0
        if place.token in self.tokens:
            verdict = "done"
        elif not self.finished:
            indices = np.frombuffer(place.segments, np.int64, place.rows)
            numbers = np.frombuffer(place.segments, np.int32, place.rows, 8 * place.rows)
            slots = self.machine.find(indices)
            while (slots < 0).any() and self.machine.hungry and self.input:
                self.offer()
                slots = self.machine.find(indices)
            batch = self.machine.claim(slots, numbers)
            if batch is not None:
                verdict, number = "yes", self.made
                self.out[number] = self.after[number] = batch
                self.made += 1
        self.words.append(("claimed", place.token, verdict, number))

    def store(self, most):
        """Store some of the saves, which can then be answered."""
        for _ in range(min(most, len(self.pending))):
            rows, token, word = self.pending.popleft()
            for example, chunk, row, index, segment in rows:
                before = self.stored.get(example, (chunk, row, index, 0))
                assert before[2:] == (index, segment), "stored once, and in order"
                self.stored[example] = (*before[:3], segment + 1)
            self.tokens.add(token)
            self.words.append(word)

    def save(self, number, token):
        if token in self.tokens:
            self.pending.append(((), token, ("stored", number)))
            return
        batch = self.out.pop(number, None)
        if batch is None:
            assert self.life, "it is out"
            self.words.append(("stored", number, "stale", "it is not out"))
            return
        rows = self.machine.saved(batch)
        cancelled = rows is None
        assert not cancelled or self.machine.cancelled
        places = np.flatnonzero(batch.last).tolist() if cancelled else range(len(batch))
        examples, segments = self.examples(batch), batch.segments.tolist()
        self.refused += len(batch) - len(places)
        for place in places:
            example = examples[place]
            assert segments[place] == self.next[example], "once, and in order"
            self.next[example] += 1
            if not self.ahead:
                self.kept[example] = self.next[example]
        word = "stored", number, "cancelled" if cancelled else ""
        columns = batch.chunks, batch.rows, batch.indices, batch.segments
        places = list(places)
        rows = zip(
            [examples[p] for p in places], *(c[places].tolist() for c in columns), strict=True
        )
        self.pending.append(([] if self.ahead else list(rows), token, word))

    def leave(self, stripe):
        through = {e for e, n in enumerate(self.counts) if self.next[e] == n}
        gone = [n for n, batch in self.out.items() if batch.stripe == stripe]
        self.machine.leave(stripe)
        for number in gone:
            batch = self.out.pop(number)
            self.refused += len(batch) if self.machine.cancelled else 0
        if self.ahead:
            for example in self.of_stripe.pop(stripe, ()):
                if example not in through:
                    self.next[example] = self.kept[example]

    def flush(self, number, rows):
        batch = self.after.get(number)
        if batch is not None:
            examples = self.examples(batch)
            for row in self.machine.keep(batch, np.array(rows, np.int64)).tolist():
                self.kept[examples[row]] = int(batch.segments[row]) + 1

    def offer(self):
        start = self.input.popleft()
        counts = self.counts[start : start + CHUNK]
        keys = [start + i for i in range(len(counts))]
        facts = {"key": keys, "count": np.array(counts), "line": start}
        if self.stored:
            facts["known"] = np.array([BEGUN if key in self.stored else 0 for key in keys])
        chunk = self.life * CHUNKS_OF_A_LIFE + start // CHUNK
        self.machine.offer(chunk, len(counts), facts)

    def work(self):
        """Do one step; return False when there is no work."""
        if self.finished:
            return False
        machine = self.machine
        draft = machine.next_draft()
        for stripe in machine.take_dry() if isinstance(machine, LaneOrder) else ():
            self.words.append(("dry", stripe))
        if draft is not None:
            self.out[self.made] = draft
            self.after[self.made] = draft
            self.of_stripe.setdefault(draft.stripe, set()).update(self.examples(draft))
            which = draft.indices.tobytes() + draft.segments.astype(np.int32).tobytes()
            self.words.append(("made", self.made, len(draft), draft.stripe, which))
            self.made += 1
            self.starved = False
        elif machine.hungry and self.input:
            self.offer()
        elif not self.input and not self.read:
            self.read = True
            machine.finish()
        elif machine.done:
            self.finished = True
            self.words.append(("finished",))
        else:
            if isinstance(machine, ArrivalOrder) and machine.starved and not self.starved:
                self.starved = True
                self.words.append(("starved",))
            return False
        return True

    def left(self):
        """Examples that were never offered."""
        return [self.counts[start : start + CHUNK] for start in self.never]

    def cancel(self):
        self.never = list(self.input)
        self.input.clear()
        if not self.finished:
            self.machine.finish(drop=True)


class Trainer:
    """A trainer and its knowledge."""

    def __init__(self, prefetch):
        self.prefetch = prefetch
        self.hands = {}  # token → batch
        self.saved = {}  # token → batch, not answered
        self.got = self.seq = self.taken = 0
        self.wire = deque()
        self.ended = False


class World:
    """A run with any history."""

    def __init__(self, seed, counts, order="arrival", ahead=False, batch_size=2, capacity=None,
                 small=True, max_window=4):  # fmt: skip
        self.random = Random(seed)
        self.ahead, self.order = ahead, order
        self.max_window, self.lives = max_window, 1
        self.states = AT_TRAINER if ahead else AT_SERVER
        self.d = self.dispatcher(len(counts))
        self.workers = []
        for number, of_partition in enumerate(counts):
            self.workers.append(
                Worker(number, of_partition, order, ahead, batch_size, capacity, small)
            )
        self.trainers = {}
        self.now = 0.0
        self.session = 0
        self.blocks = {}
        self.freed = set()
        self.got = []  # (partition, number), as trainers took them
        self.answers = {}  # token → committed, stale or a code
        self.orphans = []  # trainers of an earlier server that have not greeted this one
        self.admitted = 0  # batches of an earlier server that could go on
        self.rarer = []  # what else trainers do

    def dispatcher(self, partitions):
        """The dispatcher of a life."""
        options = {"order": self.order, "states": self.states}
        return Dispatcher(range(partitions), TTL, self.max_window, self.lives, **options)

    # The wires

    def act(self):
        for effect in self.d.take_effects():
            if isinstance(effect, Send):
                trainer = self.trainers[effect.session]
                assert effect.seq == trainer.seq + 1 or effect.batch.freed is False
                trainer.seq = effect.seq
                assert not effect.batch.freed
                trainer.wire.append(effect)
                if self.random.random() < 0.5:
                    self.d.pin(effect.batch, effect.token)
            elif isinstance(effect, StoreCommit | Want | Leave | Claim | Release):
                partition = (
                    effect.batch.partition if isinstance(effect, StoreCommit) else effect.partition
                )
                self.workers[partition].orders.append(effect)
            elif isinstance(effect, Freed):
                assert effect.batch.order not in self.freed, "a block is freed once"
                assert not effect.batch.pins
                self.freed.add(effect.batch.order)
                self.blocks.setdefault(effect.batch.order, effect.batch)  # claimed
            elif isinstance(effect, Answer):
                self.answer(effect)
            elif isinstance(effect, Finish) and effect.session in self.trainers:
                self.trainers[effect.session].ended = True

    def answer(self, answer):
        told = [(t, "committed") for t in answer.committed] + [(t, "stale") for t in answer.stale]
        for token, what in told + [(t, code) for t, code, _ in answer.faults]:
            before = self.answers.setdefault(token, what)
            assert before == what, "an answer stands"
            if answer.session in self.trainers:
                batch = self.trainers[answer.session].saved.pop(token, None)
                ours = token > self.lives << 32
                if batch is not None and what == "committed" and ours:
                    assert batch.let_go and not self.d.leased_batch(answer.session, token)

    def word(self, worker):
        kind, *rest = worker.words.popleft()
        if kind == "made":
            number, rows, stripe, which = rest
            batch = Batch(worker.number, number, rows, which, {"stripe": stripe})
            self.blocks[batch.order] = batch
            self.d.made(batch)
        elif kind == "stored":
            self.d.stored(worker.number, [(*rest, "", "")[:3]])
        elif kind == "starved":
            self.d.starved(worker.number)
        elif kind == "claimed":
            self.admitted += rest[1] == "yes"
            self.d.claimed(*rest)
        elif kind == "dry":
            self.d.dry(*rest)
        else:
            self.d.partition_ended(worker.number)
        self.act()

    # What trainers do

    def join(self, prefetch=0, trainer=None):
        self.session += 1
        self.trainers[self.session] = trainer or Trainer(prefetch)
        self.d.join(self.session, self.now)
        self.act()
        return self.session

    def ask(self, session):
        trainer = self.trainers[session]
        self.d.seen(session, self.now)
        self.d.window(session, trainer.got + 1 + trainer.prefetch - len(trainer.hands))
        self.act()

    def receive(self, session):
        trainer = self.trainers[session]
        if trainer.wire:
            effect = trainer.wire.popleft()
            self.d.unpin(effect.batch, effect.token)
            trainer.got = max(trainer.got, effect.seq)
            if self.d.leased_batch(session, effect.token) is effect.batch:
                trainer.hands[effect.token] = effect.batch
                self.got.append((effect.batch.partition, effect.batch.number))
            self.act()

    def save(self, session):
        trainer = self.trainers[session]
        if trainer.hands:
            token = min(trainer.hands, key=lambda t: trainer.hands[t].order)
            if self.order == "arrival":
                token = self.random.choice(sorted(trainer.hands))
            trainer.saved[token] = batch = trainer.hands.pop(token)
            self.d.save(session, token)
            last = self.d.last_saved(session, token)
            if self.ahead and last is not None and self.random.random() < 0.5:
                rows = sorted({self.random.randrange(batch.rows) for _ in range(batch.rows)})
                self.d.flush(last, (batch.number, rows))
            self.act()

    def say_again(self, session):
        for token in list(self.trainers[session].saved):
            self.d.save(session, token)
        self.act()

    def renew(self, session):
        trainer = self.trainers[session]
        self.d.renew(session, trainer.got, frozenset(trainer.hands), self.now)
        self.act()

    def lose(self, session):
        """Lose a delivery; the next heartbeat shows it."""
        trainer = self.trainers[session]
        if trainer.wire:
            effect = trainer.wire.popleft()
            self.d.unpin(effect.batch, effect.token)
            trainer.got = effect.seq
            self.renew(session)

    def leave(self, session):
        trainer = self.trainers.pop(session)
        self.d.leave(session)
        for effect in trainer.wire:
            self.d.unpin(effect.batch, effect.token)
        self.act()
        return trainer

    def come_back(self, session):
        """Let a given-up trainer return with its batches and unanswered commits."""
        trainer = self.leave(session)
        again = self.join(trainer.prefetch)
        self.d.adopt(again, tuple(trainer.hands), self.now)
        for token, batch in trainer.hands.items():
            if self.d.leased_batch(again, token) is batch:
                self.trainers[again].hands[token] = batch
        self.trainers[again].saved = trainer.saved
        self.claim(again)
        self.say_again(again)

    # Deaths

    def kill_server(self):
        """Let all owners die; trainers keep their batches, and greet the next lives."""
        self.orphans += self.trainers.values()
        for trainer in self.orphans:
            trainer.wire.clear()
            trainer.got = trainer.seq = 0
        self.trainers = {}
        self.blocks, self.freed = {}, set()
        self.lives += 1
        self.d = self.dispatcher(len(self.workers))
        for worker in self.workers:
            worker.die()
            worker.begin(0)

    def greet(self, trainer):
        """Let a trainer of an earlier server greet, with its batches and unanswered commits."""
        self.orphans.remove(trainer)
        trainer.ended = False
        session = self.join(trainer=trainer)
        self.d.adopt(session, tuple(trainer.hands), self.now)
        self.claim(session)
        self.say_again(session)

    def claim(self, session):
        trainer = self.trainers[session]
        for token, batch in sorted({**trainer.hands, **trainer.saved}.items()):
            place = Handed(token, batch.partition, batch.number, batch.rows, batch.body)
            self.d.claim(session, place, token in trainer.saved)
        self.act()

    def some_death(self):
        chance = self.random.random()
        if chance < 0.02:
            self.kill_server()
        elif chance < 0.1 and self.orphans:
            self.greet(self.random.choice(self.orphans))

    def sleep(self):
        self.now += self.random.random() * TTL
        for session in self.d.tick(self.now):
            self.leave(session)
        self.act()

    # Runs

    def storm_of_workers(self):
        """Partitions work until there is nothing to do, in any order."""
        while busy := [w for w in self.workers if w.orders or w.words or not w.asleep]:
            worker = self.random.choice(busy)
            worker.store(len(worker.pending))
            deed = self.random.randrange(3)
            if deed == 0 and worker.orders:
                worker.obey()
                worker.asleep = False
            elif deed == 1 and worker.words:
                self.word(worker)
            else:
                worker.asleep = not worker.work()

    def storm(self, steps, deaths=False):
        """Anything may happen, in any order."""
        for _ in range(steps):
            if deaths:
                self.some_death()
            worker = self.random.choice(self.workers)
            worker.store(self.random.randrange(3))
            if worker.orders and self.random.random() < 0.7:
                worker.obey()
            worker.work()
            if worker.words and self.random.random() < 0.7:
                self.word(worker)
            if not self.trainers or (len(self.trainers) < 4 and self.random.random() < 0.05):
                self.join(self.random.randint(0, 3))
            session = self.random.choice(sorted(self.trainers))
            common = [self.ask, self.receive, self.save]
            deeds = [*common * 4, self.renew, self.say_again, self.lose, *self.rarer]
            self.random.choice(deeds)(session)
            rare = self.random.random()
            if rare < 0.03 and session in self.trainers:
                self.random.choice([self.leave, self.come_back])(session)
                self.check()
            elif rare < 0.06:
                self.sleep()
            self.check()

    def settle(self):
        """From here on everybody behaves: a few rounds must bring the end, or this is stuck."""
        for trainer in list(self.orphans):
            self.greet(trainer)
        if not self.trainers:
            self.join(1)
        quiet = 0
        while not (self.d.ended and all(w.finished for w in self.workers)):
            before = self.state()
            for worker in self.workers:
                while worker.orders:
                    worker.obey()
                while worker.work():
                    pass
                worker.store(len(worker.pending))
                while worker.words:
                    self.word(worker)
            for session in list(self.trainers):
                self.ask(session)
                while self.trainers[session].wire:
                    self.receive(session)
                self.renew(session)
                self.save(session)
            self.check()
            quiet = quiet + 1 if self.state() == before else 0
            # Claims are judged one by one, and again when another was.
            assert quiet < 3 + self.claims, f"it is stuck: {self.d.describe(self.now)}"

    def state(self):
        counts = [(w.made, len(w.out), w.finished, tuple(w.next)) for w in self.workers]
        return (
            counts,
            sorted(self.freed),
            sorted(self.trainers),
            dict(self.answers),
            self.claims,
        )

    @property
    def claims(self):
        """The number of claims that are to be judged."""
        return self.d.in_doubt - self.d.leased

    def check(self):
        for session in self.trainers:
            assert self.d.standing_of(session)["leases"] <= self.max_window
        for worker in self.workers:
            slots = [slot for batch in worker.out.values() for slot in batch.slots.tolist()]
            assert self.ahead or len(slots) == len(set(slots)), (
                "each segment is in one trainer's hands"
            )
            assert min(worker.machine.sizes().values()) >= 0
        orders = [(w.number, number) for w in self.workers for number in w.out]
        held = [order for order in orders if self.d.holder(*order)]
        assert len(held) == self.d.standing()["leased"], "no batch is held twice"
        for batch in self.blocks.values():
            assert batch.freed == (batch.order in self.freed)
            if not batch.let_go:
                assert not batch.freed

    def finish(self):
        """Everything is done once, and nothing is left anywhere."""
        assert all(trainer.ended for trainer in self.trainers.values())
        assert not any(trainer.saved for trainer in self.trainers.values()), "all are answered"
        for session in list(self.trainers):
            self.leave(session)
        assert self.freed == set(self.blocks)
        assert not self.d.in_doubt and not any(self.d.standing().values())
        for worker in self.workers:
            assert worker.finished and not worker.out and worker.machine.in_flight == 0
