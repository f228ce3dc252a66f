"""The dispatcher decides which trainer gets which batch of one feed: a pure machine.

    partition ─► made() ─► supply ─► Send ─► trainer ─► save() ─► StoreCommit ─► partition
                              ▲                 │                                   │
                              └── put back ◄────┘ left, lost, expired,     Answer ◄─┘ stored()
                                                  returned

It judges every event at once; ``take_effects`` hands out batches, for all events of a round.

    trainers.py             which trainers are present, and how many batches each takes
    batch_lifecycle.py      which batches are leased, being stored, or free; lease.py has the leases
    …_supply.py             batches that no trainer has, and which trainer gets which;
                            segment_rounds.py for ranks
    epoch_borders.py        epochs, where batches end with theirs
    claims.py               batches that an earlier server handed out; segment_claims.py
    acknowledged_commits.py commits that an earlier server acknowledged
    dispatch_state.py       the parts of the dispatcher, and queries
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace_proto.messages import Idle

from .acknowledged_commits import Acknowledged
from .claims import DONE, STANDS, ClaimedBatch
from .dispatch_effects import (
    Answer,
    Batch,
    Claim,
    Effect,
    Finish,
    Release,
    Rewound,
    StoreCommit,
    StoreLanes,
)
from .epoch_borders import EpochBorders
from .lease import OVER, SAVING, CommitVerdict, Fault, Lease
from .rounds import DealtRounds


class Dispatcher(EpochBorders):
    """The dispatcher of one feed, or of some of its partitions.

    The caller calls ``take_effects`` after every event, and carries out the effects.
    """

    # From workers

    def made(self, batch: Batch) -> None:
        """Take the next batch of a partition."""
        wanted = self._supply.made(batch)
        self._lifecycle.open += 1
        if self._epochs is not None:
            self._epochs.made(batch.epoch)
        self._changed = True
        if not wanted:
            self._lifecycle.void(batch)
        elif self._claims.by_token:
            self._end_claims(self._claims.made(batch))

    def starved(self, partition: int) -> None:
        """Note that a partition makes no batch before trainers commit."""
        self._supply.starved(partition)
        self._changed = True

    def dry(self, stripe: int) -> None:
        """Note that a stripe of lanes has no work left."""
        self._supply.dry(stripe)
        self._changed = True

    def load_rounds(self, partition: int, dealt: DealtRounds) -> None:
        """Load unfinished rounds that an earlier life has dealt to ranks."""
        self._supply.load_rounds(partition, dealt)

    def partition_ended(self, number: int) -> None:
        """Note that a partition makes no more batches."""
        self._supply.end(number)
        self._end_epochs(number)
        self._end_claims(self._claims.partition_ended(number))
        self._changed = True

    def stored(self, partition: int, commits: Iterable[tuple[int, str, str]]) -> None:
        """Answer commits that their partition has stored, or for which it reports a fault.

        Each is its number, and the code and the text of the fault.  A trainer gets one answer.
        """
        answered: dict[int, list[int]] = {}  # tokens by session
        for number, code, text in commits:
            if (lease := self._saving.pop((number, partition), None)) is None:
                continue
            self._leases.stored(lease, code, text)
            batch, token, session = lease.batch, lease.token, lease.session
            if code:
                self._lifecycle.close(batch)
            else:
                self._supply.settled(batch)
                self._lifecycle.settle(batch)
            if self._leases.unstored.get(session, 0) >= self._trainers.max_window:
                self._trainers.ask(session)  # it got no batches meanwhile
            for one in sorted({session, *lease.asked}) if lease.asked else (session,):
                if code:
                    self._answer(one, token, (token, code, text))
                else:
                    answered.setdefault(one, []).append(token)
            self._claims.arrived(partition, token)
            self._changed = True
        for session, tokens in answered.items():
            self._lifecycle.effects.append(Answer(session, tuple(tokens), ()))

    def claimed(self, token: int, verdict: str, number: int) -> None:
        """Take a partition's verdict on a claim: "done" (committed before), "yes" or "no"."""
        for session in self._recalls.judged(token):
            if verdict == "no":
                self._forsake(session)
                continue
            for saved, payload in self._recalls.believe(session):
                self.save(session, saved, payload)
            self._trainers.ask(session)
        self._end_claims(self._claims.judged(token, verdict, number))
        self._changed = True

    def _forsake(self, session: int) -> None:
        """Send a trainer away whose earlier commit was undone; none of its commits count."""
        self._recalls.forsake(session)
        for claim in self._claims.by_token.values():
            if claim.session == session:
                claim.saved = False
        self._lifecycle.effects.append(Rewound(session))

    def _end_claims(self, ended: Iterable[ClaimedBatch]) -> None:
        """Renew the leases of claims that have ended well, or give their batches to others."""
        for claim in ended:
            token, session, batch = claim.held.token, claim.session, claim.batch
            if claim.end is DONE:
                self._leases.remember(token)
            if batch is not None and claim.end is STANDS:
                trainer = self._trainers.present.get(session)
                self._leases.admit(token, batch, session, 0.0 if trainer is None else trainer.seen)
                if trainer is None and not claim.saved:
                    self._take_back_all(session)
            elif batch is not None:
                self._put_back(session, batch)
            if claim.saved:
                self.save(session, token, claim.payload)
            comes = claim.expected and claim.end is STANDS and self.leased_batch(session, token)
            if comes or self._leases.state(token) is SAVING:
                continue  # other claims wait until its commit is stored
            self._claims.arrived(claim.held.partition, token)

    def wait_for_others(self, others_come: bool) -> None:
        """Set whether trainers of an earlier server may still come; the caller pauses the feed."""
        self._claims.wait_for_others(others_come)
        self._changed = True

    # From trainers

    def join(
        self, session: int, now: float, rank: int = -1, world_size: int = 0, run: int = 0
    ) -> None:
        """Add a session.  JoinRefused where its mode differs from that of the others."""
        self._trainers.check(session, rank, world_size, self._supply.world)
        self._start_run(run, world_size)
        self._trainers.join(session, now, rank)
        self._changed = True

    def window(self, session: int, upto: int) -> None:
        """Let a session receive deliveries up to number ``upto``."""
        trainer = self._trainers.present.get(session)
        if trainer is not None and upto > trainer.window:
            trainer.window = upto
            self._trainers.ask(session)
            self._changed = True

    def commit(self, session: int, tokens: tuple[int, ...]) -> None:
        """Commit batches of a session that have no states."""
        for token in tokens:
            if self.stateful:
                text = "a batch of segments is committed by its states: save them"
                self.refuse(session, token, "state", text)
            else:
                self.save(session, token)

    def save(self, session: int, token: int, payload: Any = None) -> None:
        """Commit a batch of a session with its states; only the worker reads ``payload``."""
        claim = self._claims.by_token.get(token)
        if claim is not None and (
            claim.session == session or claim.session not in self._trainers.present
        ):
            claim.session, claim.saved, claim.payload = session, True, payload
            return
        if self._recalls.doubted and self._recalls.waits(session, token, payload):
            return
        if self._chained:
            self._take_back(self._skipped(session, token), "returned")
        verdict, lease = self._leases.commit(token, session)
        if lease is not None:
            batch = lease.batch
            if batch.waits_in is not None:  # the batch had come back, and its commit came late
                batch.wait_no_more()
            if self.stateful:
                self._last_saved[session, batch.partition] = token, batch
            self._saving[batch.number, batch.partition] = lease
            self._lifecycle.effects.append(StoreCommit(batch, payload, token))
            self._lifecycle.let_go(batch)
        elif verdict is CommitVerdict.WAITING:
            return
        elif verdict is CommitVerdict.STALE:
            self._answer_stale(session, token)
        else:
            self._answer(session, token, self._leases.fault(token))
        self._trainers.ask(session)
        self._changed = True

    def _answer(self, session: int, token: int, fault: Fault | None) -> None:
        """Answer a commit that its partition has stored or refused."""
        faults = (fault,) if fault else ()
        self._lifecycle.effects.append(Answer(session, () if fault else (token,), (), faults))

    def _answer_stale(self, session: int, token: int) -> None:
        """Answer a commit of a batch that is not this session's."""
        self.counts["stale"] += self._leases.is_newly_stale(token)
        self._lifecycle.effects.append(Answer(session, (), (token,)))

    def refuse(self, session: int, token: int, code: str, text: str) -> None:
        """Answer a save that is not valid; the lease stands."""
        self._lifecycle.effects.append(Answer(session, (), (), ((token, code, text),)))

    def flush(self, batch: Batch, payload: Any) -> None:
        """Store states of lanes that follow the session's last save."""
        self._lifecycle.effects.append(StoreLanes(batch, payload))

    def give_back(self, session: int, tokens: tuple[int, ...]) -> None:
        """Take batches that a session returns unused."""
        if tokens:
            mine = self._leases.of_session(session)
            self._take_back([lease for lease in mine if lease.token in tokens], "returned")

    def renew(self, session: int, last_seq: int, held: frozenset[int], now: float) -> bool:
        """Renew the leases of a session by a heartbeat; False where the session is not known.

        A delivered batch (its number is not after ``last_seq``) that the trainer does
        not hold was lost on the way, so it is taken back.
        """
        if not self.seen(session, now):
            return False
        self._leases.renew(session, now)
        mine = self._leases.of_session(session)
        lost = [lease for lease in mine if lease.seq <= last_seq and lease.token not in held]
        self._take_back(lost, "lost")
        return True

    def adopt(self, session: int, tokens: tuple[int, ...], now: float) -> None:
        """Give batches back to a trainer that was given up and returns as a new session."""
        if session not in self._trainers.present:
            raise ValueError(f"session {session} holds nothing before it has joined")
        for token in tokens:
            batch = self._leases.adopt(token, session, now)
            if batch is not None:
                batch.wait_no_more()
        self._tell_of_none_after(self._trainers.present[session])

    def resend(self, session: int, last_seq: int) -> None:
        """Resend what a session that reconnected has not received, under the same tokens."""
        trainer = self._trainers.present.get(session)
        if trainer is not None:
            self._leases.renew(session, trainer.seen)
            leases = self._leases.of_session(session)
            self._resends[session] = last_seq, [one for one in leases if one.seq > last_seq]
            self._changed = True

    def seen(self, session: int, now: float) -> bool:
        """Note a sign of life; False where the session is not known."""
        trainer = self._trainers.present.get(session)
        if trainer is not None:
            trainer.seen = now
        return trainer is not None

    def leave(self, session: int) -> None:
        """End a session: its batches go to others."""
        rank = self._trainers.leave(session)
        if rank is None:
            return
        self._take_back_all(session)
        self._recalls.leave(session)
        self._leave_lanes(session, rank)

    def _leave_lanes(self, session: int, rank: int) -> None:
        """Let the sequences of a trainer continue in other lanes; flushes of them are refused."""
        for name in [name for name in self._last_saved if name[0] == session]:
            del self._last_saved[name]
        self._supply.leave(session, rank)

    def tick(self, now: float) -> list[int]:
        """End expired leases.  Return the sessions that were silent for too long."""
        expired = self._leases.expired(now)
        self.counts["expired"] += len(expired)
        self._take_back(expired, "expired")
        return self._trainers.silent(now, self._leases.ttl_s)

    def _take_back_all(self, session: int, why: str = "left") -> None:
        for lease in self._leases.of_session(session):
            self._put_back(session, self._lifecycle.take_back(lease, why))
        self._changed = True

    def _take_back(self, leases: Iterable[Lease], why: str) -> None:
        """Take batches back from sessions that stay.

        Where the session has the states, take all of its batches: one that was sent again would
        continue from the states of a later one.
        """
        for lease in leases:
            session = lease.session
            if not self._chained:
                self._put_back(session, self._lifecycle.take_back(lease, why))
            elif self._leases.holds(session, lease.token):  # else it went back with another one
                self._take_back_all(session, why)
                self._leave_lanes(session, self._trainers.present[session].rank)
            self._trainers.ask(session)
            self._changed = True

    def _put_back(self, session: int, batch: Batch) -> None:
        """Let a returned batch wait for another trainer."""
        place = batch.meta.get("claimed")
        if place is not None:  # the batch is of an earlier server, and so are its bytes
            self._lifecycle.effects.append(Release(batch.partition, batch.number))
            self._lifecycle.void(batch)
            self._claims.arrived(batch.partition, place.token)
        elif not self._supply.put_back(session, batch):
            self._lifecycle.void(batch)

    def claim(self, session: int, place: Any, saved: bool = False) -> None:
        """Note that a new session holds a batch of an earlier server, or will resend its commit."""
        token = place.token
        claim = self._claims.by_token.get(token)
        if claim is not None:
            claim.session = session
        elif token <= self._leases.first and self._leases.state(token) is OVER:
            self._end_claims(self._claims.add(session, place, saved))
            self._changed = True

    def recall(self, session: int, commit: Acknowledged) -> None:
        """Ask a partition whether the state has a commit that an earlier server acknowledged."""
        self._recalls.ask(session, commit.token)
        self._lifecycle.effects.append(Claim(commit.partition, commit))

    # Effects

    def take_effects(self) -> list[Effect]:
        """Hand out batches, and return all effects in their order."""
        if self._changed:
            self._changed = False
            if self._resends:
                self._send_again()
            if self._epochs is not None:
                self._tell_epoch()
            self._supply.deal(self._paused)
            if self.drains and not self._chained:
                self._tell_drain()
            if not self._lifecycle.open and self.ended:
                self._tell_end()
            elif self._trainers.shared and (self._trainers.asking or self._trainers.by_rank):
                self._supply.tell(self._paused)
        lifecycle = self._lifecycle
        effects = lifecycle.effects
        if effects:
            lifecycle.effects = []
        return effects

    def _send_again(self) -> None:
        """Resend batches that reconnected sessions have not received."""
        for session, (last_seq, leases) in self._resends.items():
            if trainer := self._trainers.present.get(session):
                self._lifecycle.resend(trainer, last_seq, leases)
                trainer.knows_nothing()
                self._tell_of_none_after(trainer)
                self._trainers.ask(session)
        self._resends.clear()

    def _tell_drain(self) -> None:
        """Have trainers return the batches that came ahead: the drain need not wait for these.

        Not where the session has the states: it would return those that it is at, too.
        """
        for trainer in self._trainers.present.values():
            if not trainer.knows_drain:
                trainer.knows_drain = True
                self._lifecycle.effects.append(Idle(trainer.session, trainer.seq, True))

    def _tell_end(self) -> None:
        for trainer in self._trainers.present.values():
            if not trainer.knows_end:
                trainer.knows_end = True
                self._lifecycle.effects.append(Finish(trainer.session))
