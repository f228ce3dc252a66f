"""Who gets which batch: the hand-over of one feed, as a pure machine.

    workers  ─► made() ─► supply ─► Send to a trainer with window ─► save() ─► Save ─► worker
                            ▲                  │                                         │
                            └── put back ◄─────┘ left, lost, expired, returned   Answer ◄┘ kept()

Every event is judged at once; what it leads to is handed out when ``take_effects`` is asked for:
so the events of one round are served together.

    trainers.py                  who is there, and how much each takes
    hands.py, lease.py           who has which batch, which commits are being stored, and whose
                   bytes are free
    plain_supply.py, demand.py   the batches that nobody has, and who gets which; of segments also
                   who is to make more
    …claims.py     what trainers have of an earlier server; recalls.py: what they know of it
    standing.py    what can be asked: where all of it stands
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .claims import DONE, STANDS, Claimed
from .handover import (
    Answer,
    Batch,
    Claim,
    Effect,
    Finish,
    Flush,
    JoinRefused,
    Reclaimed,
    Release,
    Rewound,
    Save,
    Send,
)
from .lease import OVER, SAVING, Lease, Verdict
from .recalls import Acknowledged
from .redealing import DealtRounds
from .standing import Standing

__all__ = ["Dispatcher"]


class Dispatcher(Standing):
    """The hand-over of one feed, or of some of its partitions.

    After every event, ``take_effects`` says what to do.
    """

    @property
    def paused(self) -> bool:
        """Whether nothing more is handed out; commits still count."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._changed = True

    # From workers

    def made(self, batch: Batch) -> None:
        """A worker made the next batch of a partition."""
        wanted = self._supply.made(batch)
        self._hands.open += 1
        self._changed = True
        if not wanted:
            self._hands.void(batch)
        elif self._claims.by_token:
            self._end_claims(self._claims.made(batch))

    def starved(self, partition: int) -> None:
        """A partition can make nothing before trainers commit something."""
        self._supply.starved(partition)
        self._changed = True

    def dry(self, stripe: int) -> None:
        """A stripe of lanes has no work left."""
        self._supply.dry(stripe)
        self._changed = True

    def started(self, partition: int, number: int) -> None:
        """A partition of plain batches goes on where an earlier server was."""
        self._supply.start(partition, number)

    def rounds_dealt(self, partition: int) -> DealtRounds:
        """The rounds of a partition that this life has dealt, to be stored."""
        return self._supply.rounds_dealt(partition)

    def load_rounds(self, partition: int, dealt: DealtRounds) -> None:
        """An earlier life has dealt these rounds to ranks, and they are not done."""
        self._supply.load_rounds(partition, dealt)

    def partition_ended(self, number: int) -> None:
        """No more batches of a partition will come."""
        self._supply.end(number)
        self._end_claims(self._claims.partition_ended(number))
        self._changed = True

    def kept(self, partition: int, number: int, code: str = "", text: str = "") -> None:
        """A worker has stored the commit of a batch, or says why it did not."""
        lease = self._saving.pop((number, partition), None)
        if lease is None:
            return
        self._leases.stored(lease, code, text)
        batch, token, session = lease.batch, lease.token, lease.session
        if code:
            self._hands.close(batch)
        else:
            self._supply.settled(batch)
            self._hands.settle(batch)
        if self._leases.unstored.get(session, 0) >= self._trainers.max_window:
            self._trainers.ask(session)  # it was given no more
        for one in sorted({session, *lease.asked}) if lease.asked else (session,):
            self._answer(one, token)
        self._claims.arrived(partition, token, stored=True)
        self._changed = True

    def claimed(self, token: int, verdict: str, number: int) -> None:
        """A worker's word on a claim: "done" before, "yes" it can be, or "no"."""
        session = self._recalls.judged(token)
        if session is not None and verdict == "no":
            self._forsake(session)
        elif session is not None:
            for saved, payload in self._recalls.believe(session):
                self.save(session, saved, payload)
            self._trainers.ask(session)
        self._end_claims(self._claims.judged(token, verdict, number))
        self._changed = True

    def _forsake(self, session: int) -> None:
        """A trainer counts on what is undone: nothing that it saved is to count."""
        self._recalls.forsake(session)
        for claim in self._claims.by_token.values():
            if claim.session == session:
                claim.saved = False
        self._hands.effects.append(Rewound(session))

    def _end_claims(self, ended: Iterable[Claimed]) -> None:
        """These claims were judged: their leases stand again, or their batches are others'."""
        for claim in ended:
            token, session, batch = claim.place.token, claim.session, claim.batch
            if claim.end is DONE:
                self._leases.remember(token)
            if batch is not None and claim.end is STANDS:
                trainer = self._trainers.present.get(session)
                self._leases.admit(token, batch, session, 0.0 if trainer is None else trainer.seen)
                self._hands.effects.append(Reclaimed(token))
                if trainer is None and not claim.saved:
                    self._take_back_all(session)
            elif batch is not None:
                self._put_back(session, batch)
            if claim.saved:
                self.save(session, token, claim.payload)
            comes = claim.expected and claim.end is STANDS
            leases = self._leases
            if leases.state(token) is SAVING or (comes and leases.batch_of(token, session)):
                continue  # others wait until its commit is stored
            self._claims.arrived(claim.place.partition, token)

    def wait_for_others(self, others_come: bool) -> None:
        """Whether trainers of an earlier server, as far as they live, are still to greet this one.

        As long as they are, nothing is to be handed out.
        """
        self._claims.wait_for_others(others_come)
        self._changed = True

    # From trainers

    def join(
        self, session: int, now: float, rank: int = -1, world_size: int = 0, run: int = 0
    ) -> None:
        """A new session.  JoinRefused when its mode does not fit those that are there."""
        if self.stateful and (rank >= 0 or world_size):
            raise JoinRefused(
                "a feed of segments has no coordinated mode: connect without rank= and "
                "world_size=; with order='lanes' each trainer keeps its own rows"
            )
        self._trainers.check(session, rank, world_size, self._supply.world)
        self._supply.start_run(run, world_size)
        self._trainers.join(session, now, rank)
        self._changed = True

    def window(self, session: int, upto: int) -> None:
        """The session takes deliveries up to this number."""
        trainer = self._trainers.present.get(session)
        if trainer is not None and upto > trainer.window:
            trainer.window = upto
            self._trainers.ask(session)
            self._changed = True

    def commit(self, session: int, tokens: tuple[int, ...]) -> None:
        """The session is done with these plain batches."""
        if tokens and self.stateful:
            text = "a batch of segments is committed by its states: save them"
            faults = tuple((token, "state", text) for token in tokens)
            self._hands.effects.append(Answer(session, (), (), faults))
            return
        for token in tokens:
            self.save(session, token)

    def save(self, session: int, token: int, payload: Any = None) -> None:
        """The session is done with a batch; ``payload`` are its states."""
        claim = self._claims.by_token.get(token)
        if claim is not None and (
            claim.session == session or claim.session not in self._trainers.present
        ):
            claim.session, claim.saved, claim.payload = session, True, payload
            return
        if self._recalls.waits(session, token, payload):
            return
        verdict, lease = self._leases.commit(token, session)
        if lease is not None:
            batch = lease.batch
            if batch.waits_in is not None:  # it had come back, and its commit came late
                batch.wait_no_more()
            if self.stateful:
                self._last_saved[session] = token, batch
            self._saving[batch.order] = lease
            self._hands.effects.append(Save(batch, payload, token))
        elif verdict is Verdict.WAITING:
            return
        elif verdict is Verdict.STALE:
            self.counts["stale"] += self._leases.is_newly_stale(token)
            self._hands.effects.append(Answer(session, (), (token,)))
        else:
            self._answer(session, token)
        self._trainers.ask(session)
        self._changed = True

    def _answer(self, session: int, token: int) -> None:
        """Answer a commit that its partition has stored or refused."""
        fault = self._leases.fault(token)
        answer = Answer(session, (), (), (fault,)) if fault else Answer(session, (token,), ())
        self._hands.effects.append(answer)

    def refuse(self, session: int, token: int, code: str, text: str) -> None:
        """A save that can not be one; the lease stands."""
        self._hands.effects.append(Answer(session, (), (), ((token, code, text),)))

    def flush(self, batch: Batch, payload: Any) -> None:
        """States of lanes after a batch that was saved last: they follow what it was saved with."""
        self._hands.effects.append(Flush(batch, payload))

    def give_back(self, session: int, tokens: tuple[int, ...]) -> None:
        """The session returns batches unused."""
        if tokens:
            for lease in self._leases.of_session(session):
                if lease.token in tokens:
                    self._take_back(lease, "returned")

    def renew(self, session: int, last_seq: int, held: frozenset[int], now: float) -> bool:
        """A heartbeat: alive, with these leases.  False when the session is not known.

        A lease that was delivered (its number is not after ``last_seq``) and is not held got lost
        on the way, so it is taken back.
        """
        if not self.seen(session, now):
            return False
        self._leases.renew(session, now)
        for lease in self._leases.of_session(session):
            if lease.seq <= last_seq and lease.token not in held:
                self._take_back(lease, "lost")
        return True

    def adopt(self, session: int, tokens: tuple[int, ...], now: float) -> None:
        """A session that was given up is back as another one, and still holds these."""
        if session not in self._trainers.present:
            raise ValueError(f"session {session} holds nothing before it has joined")
        for token in tokens:
            batch = self._leases.adopt(token, session, now)
            if batch is not None:
                batch.wait_no_more()

    def resend(self, session: int, last_seq: int) -> None:
        """The session reconnected: what it did not receive is sent again, under the same token."""
        trainer = self._trainers.present.get(session)
        if trainer is not None:
            self._leases.renew(session, trainer.seen)
            self._resends[session] = last_seq
            self._changed = True

    def seen(self, session: int, now: float) -> bool:
        """Any sign of life; False when the session is not known."""
        trainer = self._trainers.present.get(session)
        if trainer is None:
            return False
        trainer.seen = now
        return True

    def leave(self, session: int) -> None:
        """The session is over, by its own word or not: what it holds goes to others."""
        if not self._trainers.leave(session):
            return
        self._take_back_all(session)
        self._recalls.believe(session)  # what has waited is of nobody
        self._last_saved.pop(session, None)
        self._supply.leave(session)
        self._changed = True

    def tick(self, now: float) -> list[int]:
        """Time has passed: ends leases that are over.  Returns sessions that have gone silent."""
        for lease in self._leases.expired(now):
            self.counts["expired"] += 1
            self._take_back(lease, "expired")
        return self._trainers.silent(now, self._leases.ttl_s)

    def _take_back_all(self, session: int) -> None:
        for lease in self._leases.of_session(session):
            self._take_back(lease, "left")

    def _take_back(self, lease: Lease[Batch], why: str) -> None:
        self._put_back(lease.session, self._hands.take_back(lease, why))
        self._trainers.ask(lease.session)
        self._changed = True

    def _put_back(self, session: int, batch: Batch) -> None:
        """A batch came back from a session; it waits to go out again."""
        place = batch.meta.get("claimed")
        if place is not None:  # nobody else can be given its bytes
            self._hands.effects.append(Release(batch.partition, batch.number))
            self._hands.void(batch)
            self._claims.arrived(batch.partition, place.token)
        elif not self._supply.put_back(session, batch):
            self._hands.void(batch)

    def claim(self, session: int, place: Any, saved: bool = False) -> None:
        """A new session has a batch that an earlier server handed out, or (``saved``) has not
        answered: then the save is said again.
        """
        token = place.token
        claim = self._claims.by_token.get(token)
        if claim is not None:
            claim.session = session
        elif token <= self._leases.first and self._leases.state(token) is OVER:
            self._end_claims(self._claims.add(session, place, saved))
            self._changed = True

    def recall(self, session: int, commit: Acknowledged) -> None:
        """A new session was told that this is kept: if the worker does not know it, it is gone."""
        self._recalls.ask(session, commit.token)
        self._hands.effects.append(Claim(commit.partition, commit))

    # The hand-over

    def take_effects(self) -> list[Effect]:
        """Hand out, and give all effects in their order; the owner calls it after every event."""
        if self._changed:
            self._changed = False
            if self._resends:
                self._send_again()
            self._supply.deal(self._paused)
            if not self._hands.open and self.ended:
                self._tell_end()
            elif self._trainers.shared and self._trainers.asking:
                self._supply.tell(self._paused)
        hands = self._hands
        effects = hands.effects
        if effects:
            hands.effects = []
        return effects

    def _send_again(self) -> None:
        """Send what sessions that reconnected have not received.

        A batch that went to others meanwhile leaves no gap in the numbers: a trainer reckons its
        window by what it received.
        """
        for session, last_seq in self._resends.items():
            trainer = self._trainers.present.get(session)
            if trainer is None:
                continue
            trainer.seq = last_seq
            for lease in self._leases.of_session(session):
                if lease.seq > last_seq:
                    trainer.seq = max(trainer.seq, lease.seq)
                    self._hands.effects.append(Send(session, lease.seq, lease.token, lease.batch))
            trainer.told, trainer.idle, trainer.passed, trainer.full = False, False, 0, None
            self._trainers.ask(session)
        self._resends.clear()

    def _tell_end(self) -> None:
        for trainer in self._trainers.present.values():
            if not trainer.told:
                trainer.told = True
                self._hands.effects.append(Finish(trainer.session))
