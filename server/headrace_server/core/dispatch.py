"""The dispatcher decides which trainer gets which batch of one feed: a pure machine.

    partition ─► made() ─► supply ─► Send ─► trainer ─► save() ─► StoreCommit ─► partition
                              ▲                 │                                   │
                              └── put back ◄────┘ left, lost, expired,     Answer ◄─┘ stored()
                                                  returned

It judges every event at once; ``take_effects`` hands out batches, for all events of a round.

    trainers.py             which trainers are present, and how many batches each takes
    lease.py                which batches are leased, being stored, or free
    …_supply.py             batches that no trainer has, and which trainer gets which
    open_epochs.py          which epochs are open, where batches end with theirs
    claims.py               batches that an earlier server handed out, and commits that it
                            acknowledged

Where batches end with their epoch, partitions begin an epoch together, and trainers hear of it:

    partition ─► rests ─► all rest? ─► BeginEpoch ─► partition ─► begun ─┐
    batches of the epoch before ─► settled ──────────────────────────────┴─► EpochBegun ─► trainers

A trainer that waits then knows that no batch of an earlier epoch will come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from headrace_proto.messages import EpochBegun, Idle

from ..shaping.input import TURN_BITS
from .admitted_examples import AT_SERVER, AT_TRAINER, NOWHERE
from .claims import DONE, STANDS, Acknowledged, ClaimedBatch, Recalls, claims_of
from .dispatch_effects import (
    Answer,
    Batch,
    BeginEpoch,
    Claim,
    Effect,
    Finish,
    Release,
    Rewound,
    StoreCommit,
    StoreLanes,
)
from .lease import OVER, SAVING, BatchLifecycle, CommitVerdict, Fault, Lease
from .open_epochs import OpenEpochs
from .partition_turns import Untaken
from .plain_supply import PlainSupply
from .rounds import DealtRounds
from .segment_supply import ArrivalSupply, LaneSupply, SegmentSupply
from .trainers import Trainer, Trainers


class Dispatcher:
    """The dispatcher of one feed, or of some of its partitions.

    The caller calls ``take_effects`` after every event, and carries out the effects.

    ``term`` makes the tokens of one start of an owner differ from those of all others.
    ``order``: "arrival" or "lanes" for a feed of segments; "" for a plain feed.
    ``states``: where states of segments are kept.
    ``shared``: whether other owners have partitions of the feed.
    ``across_batches``: whether a batch may hold rows of two epochs.
    """

    def __init__(
        self,
        partitions: Sequence[int],
        lease_ttl_s: float,
        max_window: int = 64,
        term: int = 0,
        order: str = "",
        shared: bool = False,
        states: str = AT_SERVER,
        across_batches: bool = True,
    ) -> None:
        self.segmented = bool(order)  # whether batches are of segments …
        self.stateful = self.segmented and states != NOWHERE  # … and committed by states
        #: Whether each batch of a trainer continues from states in its memory.
        self._chained = order == "lanes" and states == AT_TRAINER
        self._trainers = Trainers(max_window, self._held_by, shared)
        self._lifecycle = lifecycle = BatchLifecycle(lease_ttl_s, term, self._trainers)
        self._leases = lifecycle.leases
        self._of = tuple(partitions)
        self._epochs = lifecycle.epochs = None if across_batches else OpenEpochs(partitions)
        self._recalls = Recalls()
        self._supply: PlainSupply | SegmentSupply
        if order:
            kind = LaneSupply if order == "lanes" else ArrivalSupply
            self._supply = kind(partitions, lifecycle, states)
        else:
            self._supply = PlainSupply(partitions, lifecycle)
        self._claims = claims_of(self._supply, lifecycle)
        # commits to be stored, by partition and number
        self._saving: dict[tuple[int, int], Lease] = {}
        #: Token and batch of the last save, by session and partition.
        self._last_saved: dict[tuple[int, int], tuple[int, Batch]] = {}
        #: By reconnected session: the last delivery received, and the leases after it.
        self._resends: dict[int, tuple[int, list[Lease]]] = {}
        self._paused = False
        self._changed = False  # since the last hand-out
        self.counts, self.dropped = lifecycle.counts, lifecycle.dropped
        self.pin, self.unpin = lifecycle.pin, lifecycle.unpin

    # From partitions

    def started(self, partition: int, number: int, turn: int = -1, epoch: int = 0) -> None:
        """Let a plain partition begin at the batch that an earlier server had reached.

        Batches of segments are numbered anew; ``number`` tells how many the earlier ones had made.
        """
        self._supply.start(partition, number, turn)
        if self._epochs is not None:
            self._epochs.begin(partition, epoch)
            self._begin(())

    def load_rounds(self, partition: int, dealt: DealtRounds) -> None:
        """Load unfinished rounds that an earlier life has dealt to ranks."""
        self._supply.load_rounds(partition, dealt)

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

    # Epochs

    def epoch_begun(self, partition: int, epoch: int, turn: int) -> None:
        """Note that a partition has made all batches before an epoch; ``turn``: the next one's."""
        self._supply.begin_epoch(partition, turn)
        if self._epochs is not None:
            self._epochs.begin(partition, epoch)
        self._begin(())

    def epoch_rests(self, partition: int, epoch: int) -> None:
        """Note that a partition has finished an epoch and rests at its border."""
        if self._epochs is not None:
            if self._supply.world:  # rounds already come in the order of epochs
                self._lifecycle.effects.append(BeginEpoch(partition))
            else:
                self._begin(self._epochs.rest(partition, epoch))

    def _end_epochs(self, partition: int) -> None:
        """Note that a partition has made its last batch, so others do not wait for its epoch."""
        if self._epochs is not None:
            self._begin(self._epochs.end(partition))

    def _begin(self, partitions: Sequence[int]) -> None:
        """Let partitions begin an epoch; those ahead of others get no requests."""
        self._changed = True
        if self._epochs is not None and self.segmented:
            for partition in partitions:
                self._supply.set_rests(partition, True)
                # Their own notices come one by one, and the next request takes the least turn.
                self._supply.begin_epoch(partition, self._epochs.of(partition) << TURN_BITS)
            self._lifecycle.effects += map(BeginEpoch, partitions)
            for partition in self._of:
                self._supply.set_rests(partition, self._epochs.is_ahead(partition))

    def first_epoch(self, used: bool) -> int | None:
        """Return the epoch in which a trainer that joins begins; None if only a batch shows it.

        ``used``: whether a batch of the feed was ever committed.
        """
        if self._epochs is None:
            return None
        return self._epochs.first_open if used else 0

    @property
    def current_epoch(self) -> int | None:
        """The least epoch of which a batch may come; None where batches cross epochs."""
        return None if self._epochs is None else self._epochs.current

    def _tell_epoch(self) -> None:
        """Tell trainers which epoch has begun, once each."""
        if self._epochs is None:
            return
        current = self._epochs.current
        for trainer in self._trainers.present.values():
            if trainer.epoch < current:
                trainer.epoch, trainer.idle = current, False
                self._lifecycle.effects.append(EpochBegun(trainer.session, current))

    # From trainers

    def join(
        self, session: int, now: float, rank: int = -1, world_size: int = 0, run: int = 0
    ) -> None:
        """Add a session.  JoinRefused where its mode differs from that of the others."""
        self._trainers.check(session, rank, world_size, self._supply.world)
        self._start_run(run, world_size)
        self._trainers.join(session, now, rank)
        self._changed = True

    def _start_run(self, run: int, world: int) -> None:
        """Prepare for a trainer of a run, or for one without a rank."""
        supply = self._supply.start_run(run, world)
        if supply is not self._supply:
            self._supply, self._claims = supply, claims_of(supply, self._lifecycle, self._claims)

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
            self._take_back(self._skipped(session, token))
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

    def _skipped(self, session: int, token: int) -> list[Lease]:
        """Return the session's leases of earlier batches in the same lanes."""
        batch, held = self._leases.batch_of(token, session), self._leases.of_session(session)
        partition = -1 if batch is None else batch.partition
        return [one for one in held if one.token < token and one.batch.partition == partition]

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
            self._take_back([lease for lease in mine if lease.token in tokens])

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
        self._take_back(lost)
        return True

    def adopt(self, session: int, tokens: tuple[int, ...], now: float) -> None:
        """Give batches back to a trainer that was given up and returns as a new session."""
        if session not in self._trainers.present:
            raise ValueError(f"session {session} holds nothing before it has joined")
        for token in tokens:
            batch = self._leases.adopt(token, session, now)
            if batch is not None:
                batch.wait_no_more()

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
        self._take_back(expired)
        return self._trainers.silent(now, self._leases.ttl_s)

    def _take_back_all(self, session: int) -> None:
        for lease in self._leases.of_session(session):
            self._put_back(session, self._lifecycle.take_back(lease))
        self._changed = True

    def _take_back(self, leases: Iterable[Lease]) -> None:
        """Take batches back from sessions that stay.

        Where the session has the states, take all of its batches: one that was sent again would
        continue from the states of a later one.
        """
        for lease in leases:
            session = lease.session
            if not self._chained:
                self._put_back(session, self._lifecycle.take_back(lease))
            elif self._leases.holds(session, lease.token):  # else it went back with another one
                self._take_back_all(session)
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

    @property
    def paused(self) -> bool:
        """Whether no more batches are handed out; commits still count."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._changed = True

    @property
    def drains(self) -> bool:
        """Whether the server stops: a feed is paused, too, until earlier trainers are back."""
        return self._paused and not self._claims.others_come

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
            elif self._trainers.shared and self._trainers.asking:
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

    # Batches, for queries

    @property
    def ended(self) -> bool:
        """Whether every batch was made, handed out and stored, and every claim has ended."""
        return not (self._lifecycle.open or self._claims.by_token or self._supply.open)

    def exhausted(self, session: int, last_seq: int) -> bool:
        """Return whether no batch is left for a session: all are committed, or trainers have them.

        ``last_seq``: the last delivery that the session has received.
        """
        trainer = self._trainers.present.get(session)
        if trainer is None or not self._supply.is_exhausted(trainer):
            return False
        return all(lease.seq <= last_seq for lease in self._leases.of_session(session))

    def holds(self, session: int, token: int) -> bool:
        """Return whether a session holds this lease."""
        return self._leases.holds(session, token)

    def leased_batch(self, session: int, token: int) -> Batch | None:
        """Return the batch of a token that the session can commit or claims."""
        claim = self._claims.by_token.get(token)
        if claim is not None:
            held = claim.held
            return Batch(held.partition, held.number, held.rows)
        return self._leases.batch_of(token, session)

    def announced(self) -> dict[str, Any]:
        """Return the properties by which a trainer chooses an owner, see ``Supply.announced``."""
        return self._supply.announced()

    def rounds_dealt(self, partition: int) -> DealtRounds:
        """Return the rounds of a partition that this life has dealt, to be stored."""
        return self._supply.rounds_dealt(partition)

    def last_saved(self, session: int, token: int) -> Batch | None:
        """Return the batch of a token, unless the session has saved a later one there."""
        for (of, _), (saved, batch) in self._last_saved.items():
            if (of, saved) == (session, token):
                return batch
        return None

    def lost_lanes(self, session: int, token: int) -> bool:
        """Return whether the lease of a batch has ended, so that its lanes can not be flushed.

        Return False where the session has still to save the batch, or the token was never issued.
        """
        return self._leases.issued(token) and not self._leases.holds(session, token)

    def holder(self, partition: int, number: int) -> tuple[int, float] | None:
        """Return the session that holds a batch, and the time of its grant."""
        for lease in self._leases.held():
            if lease.batch.order == (number, partition):
                return lease.session, lease.since
        return None

    @property
    def untaken(self) -> Untaken:
        """The batches that are made ahead and that no trainer has taken."""
        return self._supply.untaken

    @property
    def leased(self) -> int:
        """Number of batches in trainers' hands, on their way there, or with unanswered commits."""
        return len(self._leases) + len(self._saving)

    @property
    def in_doubt(self) -> int:
        """Number of batches that a trainer may have committed without our knowledge."""
        return self.leased + len(self._claims.by_token)

    @property
    def expects_claims(self) -> bool:
        """Whether trainers may claim batches of an earlier life, or claims of segments are open."""
        claims = self._claims
        return claims.others_come or (self.segmented and bool(claims.by_token))

    def standing(self) -> dict[str, int]:
        """Return the number of made, unsettled batches by the place where they wait.

        ``ready`` are new, ``returned`` came back or were dealt to a rank, ``leased`` are held by
        trainers, the commits of ``saving`` are being stored.
        """
        ready, leased, saving = self._supply.waiting(), len(self._leases), len(self._saving)
        returned = max(0, self._lifecycle.open - ready - leased - saving)
        return {"ready": ready, "returned": returned, "leased": leased, "saving": saving}

    def sizes(self) -> dict[str, int]:
        """Return the number of batches ready and in flight; of segments only of ready ones."""
        if self.segmented:
            return {"ready": self._supply.waiting_rows()}
        standing = self.standing()
        return {
            "ready": standing["ready"] + standing["returned"],
            "in_flight": standing["leased"] + standing["saving"],
        }

    # Trainers, for queries

    @property
    def present(self) -> int:
        """Number of sessions."""
        return len(self._trainers.present)

    @property
    def ranked(self) -> Collection[Trainer]:
        """The trainers that have ranks."""
        return self._trainers.by_rank.values()

    def _held_by(self, session: int) -> int:
        """Return the number of batches that count against the credits of a session.

        Commits that wait to be stored count from ``max_window`` on: a trainer whose partition does
        not keep up gets no more batches, so the backlog is bounded.
        """
        most = self._trainers.max_window
        if session in self._recalls.doubted:
            return most
        leases = self._leases
        held = len(leases.by_session.get(session, ()))
        unstored = leases.unstored.get(session, 0)
        return held if unstored <= most else held + unstored - most

    def standing_of(self, session: int) -> dict[str, int]:
        """Return how many batches a trainer holds and takes; empty where it is not present."""
        trainer = self._trainers.present.get(session)
        if trainer is None:
            return {}
        return {
            "rank": trainer.rank,
            "window": max(0, self._trainers.credits(trainer)),
            "leases": len(self._leases.by_session.get(session, ())),
        }

    def named(self, session: int) -> str:
        """Return a trainer's name with its rank, if it has one, for people."""
        trainer = self._trainers.present.get(session)
        rank = "" if trainer is None or trainer.rank < 0 else f" (rank {trainer.rank})"
        return f"trainer {session}{rank}"

    def describe(self, now: float) -> str:
        """Return why a trainer gets no batch, for people."""
        reasons = []
        if self._saving:
            reasons.append(f"commits of batches that are being stored: {len(self._saving)}")
        if self.drains:
            reasons.append("the server is stopping and hands out nothing more")
        elif self._paused:
            reasons.append(
                "batches wait until trainers from before the restart have reconnected, or a few "
                "seconds are over"
            )
        lease = self._leases.oldest()
        if lease is not None:
            reasons.append(
                f"{len(self._leases)} batches are leased, the longest to "
                f"{self.named(lease.session)} for {now - lease.since:.0f} s"
            )
        missing = self._supply.missing()
        if missing is not None:
            reasons.append(f"batch {missing[0]} of partition {missing[1]} is being made")
        absent = self._trainers.absent(self._supply.world)
        if absent:
            reasons.append(absent)
        return "; ".join(reasons) or "nothing is left but the commits of this trainer"
