"""Feeds without states under any history: the dispatcher against plain books.

    workers ─► made ─► dispatcher ─► Send ─► trainers ─► commit, return, fall silent, come back
                          │  ▲
                     StoreCommit ▼  │ kept

Books: a token is larger than all before it; of a batch's holders only the last one commits it; it
is settled once and freed once; a second answer to a token is the first one; at the end all is done.
"""

from __future__ import annotations

from collections import deque
from random import Random

from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import Answer, Batch, Finish, Freed, Send, StoreCommit

__all__ = ["PlainWorld"]

_TTL = 10.0
_MOST = 12  # batches of a partition
_WINDOW = 4


class _Trainer:
    def __init__(self) -> None:
        self.got = 0
        self.wire: deque[Send] = deque()
        self.hands: set[int] = set()
        self.said: set[int] = set()  # commits without an answer
        self.ended = False


class PlainWorld:
    """The state of one random history."""

    def __init__(self, seed: str) -> None:
        self._chance = Random(seed)
        self._partitions = self._chance.randint(1, 3)
        self._d = Dispatcher(range(self._partitions), _TTL, _WINDOW, 1)
        self._made = [0] * self._partitions
        self._ended = [False] * self._partitions
        self._trainers: dict[int, _Trainer] = {}
        self._sessions = 0
        self._now = 0.0
        self._last_token = 0
        self._batch_of: dict[int, Batch] = {}
        self._holder: dict[Batch, int] = {}  # last token
        self._committed: dict[Batch, int] = {}
        self._answers: dict[int, str] = {}
        self._freed: set[Batch] = set()
        self._saved: set[Batch] = set()
        self._to_keep: list[deque[tuple[Batch, int]]] = [deque() for _ in range(self._partitions)]
        self._kept: set[int] = set()  # tokens that a worker has on its disk
        self._orphans: list[_Trainer] = []
        self.events = 0

    # The wires

    def _act(self) -> None:
        self.events += 1
        effects = self._d.take_effects()
        for effect in effects:
            if isinstance(effect, Send):
                self._on_send(effect)
            elif isinstance(effect, Answer):
                self._on_answer(effect)
        for effect in effects:
            if isinstance(effect, Freed):
                assert effect.batch not in self._freed, "freed twice"
                assert effect.batch in self._saved, "freed before its commit"
                self._freed.add(effect.batch)
            elif isinstance(effect, StoreCommit):
                self._saved.add(effect.batch)
                self._to_keep[effect.batch.partition].append((effect.batch, effect.token))
            elif isinstance(effect, Finish) and effect.session in self._trainers:
                self._trainers[effect.session].ended = True

    def _on_send(self, send: Send) -> None:
        if send.token not in self._batch_of:
            assert send.token > self._last_token, "a token does not grow"
            self._last_token = send.token
            self._batch_of[send.token] = send.batch
            self._holder[send.batch] = send.token
        assert self._batch_of[send.token] is send.batch, "a token of two batches"
        assert send.batch not in self._committed, "handed out after its commit"
        self._trainers[send.session].wire.append(send)

    def _on_answer(self, answer: Answer) -> None:
        assert not answer.faults
        told = [(t, "committed") for t in answer.committed] + [(t, "stale") for t in answer.stale]
        for token, what in told:
            assert self._answers.setdefault(token, what) == what, "an answer does not stand"
            trainer = self._trainers.get(answer.session)
            if trainer is not None:
                trainer.said.discard(token)
            if what == "committed":
                batch = self._batch_of[token]
                assert self._committed.setdefault(batch, token) == token, "committed twice"
                assert self._holder[batch] == token, "committed by one who was not the last"
                assert token in self._kept, "answered before it was kept"

    # What can happen

    def _make(self) -> None:
        partition = self._chance.randrange(self._partitions)
        if self._ended[partition]:
            return
        if self._made[partition] == _MOST or self._chance.random() < 0.03:
            self._ended[partition] = True
            self._d.partition_ended(partition)
        else:
            self._d.made(Batch(partition, self._made[partition], 1, "bytes"))
            self._made[partition] += 1
        self._act()

    def _join(self) -> None:
        self._sessions += 1
        trainer = _Trainer()
        if self._orphans and self._chance.random() < 0.7:
            trainer = self._orphans.pop()
        held, trainer.got, trainer.ended = tuple(sorted(trainer.hands)), 0, False
        self._trainers[self._sessions] = trainer
        self._d.join(self._sessions, self._now)
        self._act()
        self._d.adopt(self._sessions, held, self._now)
        self._act()
        self._say_again(self._sessions)

    def _ask(self, session: int) -> None:
        trainer = self._trainers[session]
        self._d.seen(session, self._now)
        self._d.window(session, trainer.got + self._chance.randint(1, _WINDOW + 1))
        self._act()

    def _receive(self, session: int) -> None:
        trainer = self._trainers[session]
        if trainer.wire:
            send = trainer.wire.popleft()
            trainer.got = max(trainer.got, send.seq)
            trainer.hands.add(send.token)

    def _commit(self, session: int) -> None:
        trainer = self._trainers[session]
        some = [token for token in sorted(trainer.hands) if self._chance.random() < 0.6]
        trainer.hands.difference_update(some)
        trainer.said.update(some)
        self._say(session, some)

    def _say_again(self, session: int) -> None:
        self._say(session, sorted(self._trainers[session].said))

    def _say(self, session: int, tokens: list[int]) -> None:
        self._d.commit(session, tuple(tokens))
        self._act()

    def _give_back(self, session: int) -> None:
        trainer = self._trainers[session]
        if trainer.hands:
            token = self._chance.choice(sorted(trainer.hands))
            trainer.hands.discard(token)
            self._d.give_back(session, (token,))
            self._act()

    def _renew(self, session: int) -> None:
        trainer = self._trainers[session]
        self._d.renew(session, trainer.got, frozenset(trainer.hands), self._now)
        self._act()

    def _lose(self, session: int) -> None:
        trainer = self._trainers[session]
        if trainer.wire:
            trainer.got = max(trainer.got, trainer.wire.popleft().seq)
            self._renew(session)

    def _resend(self, session: int) -> None:
        """Break the connection: messages on their way are lost, and sent again."""
        trainer = self._trainers[session]
        trainer.wire.clear()
        self._d.resend(session, trainer.got)
        self._act()

    def _leave(self, session: int) -> None:
        trainer = self._trainers.pop(session)
        trainer.wire.clear()
        self._orphans.append(trainer)
        self._d.leave(session)
        self._act()

    def _sleep(self) -> None:
        self._now += self._chance.random() * _TTL
        for session in self._d.tick(self._now):
            self._leave(session)
        self._act()

    def _keep(self) -> None:
        partition = self._chance.randrange(self._partitions)
        if self._to_keep[partition]:
            batch, token = self._to_keep[partition].popleft()
            self._kept.add(token)
            self._d.stored(partition, [(batch.number, "", "")])
            self._act()

    # Runs

    def storm(self, steps: int) -> None:
        """Take this many steps, each drawn by chance."""
        for _ in range(steps):
            if self._chance.random() < 0.5:
                self._make()
            if not self._trainers or (len(self._trainers) < 4 and self._chance.random() < 0.05):
                self._join()
            session = self._chance.choice(sorted(self._trainers))
            common = [self._ask, self._receive, self._commit] * 4
            rare = [self._renew, self._say_again, self._give_back, self._lose, self._resend]
            self._chance.choice([*common, *rare])(session)
            self._keep()
            unlikely = self._chance.random()
            if unlikely < 0.03 and session in self._trainers:
                self._leave(session)
            elif unlikely < 0.06:
                self._sleep()

    def settle(self) -> None:
        """All behave, and it comes to its end."""
        while not all(self._ended):
            self._make()
        while self._orphans or not self._trainers:
            self._join()
        for _ in range(40 * _MOST * self._partitions):
            for session, trainer in list(self._trainers.items()):
                while trainer.wire:
                    self._receive(session)
                trainer.said |= trainer.hands
                trainer.hands.clear()
                self._say_again(session)
                self._renew(session)
                self._ask(session)
            while any(self._to_keep):
                self._keep()
            if self._d.ended:
                break
        assert self._d.ended, f"it is stuck: {self._d.describe(self._now)}"
        assert len(self._committed) == sum(self._made) == len(self._freed)
        assert self._d.counts["batches"] == sum(self._made)
        assert not any(trainer.said for trainer in self._trainers.values())
        assert all(trainer.ended for trainer in self._trainers.values())
