"""The parts of a dispatcher, and queries for the status of a feed's batches and trainers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .acknowledged_commits import Recalls
from .admitted_examples import AT_SERVER, AT_TRAINER, NOWHERE
from .arrival_supply import ArrivalSupply
from .batch_lifecycle import BatchLifecycle
from .dispatch_effects import Batch
from .lane_supply import LaneSupply
from .lease import Lease
from .open_epochs import OpenEpochs
from .partition_turns import Untaken
from .plain_supply import PlainSupply
from .rounds import DealtRounds
from .segment_claims import claims_of
from .supply import Supply
from .trainers import Trainer, Trainers

#: Reason of a wait where the machine knows no other.
NOTHING_LEFT = "nothing is left but the commits of this trainer"


class DispatchState:
    """The parts of the machine, and the queries.

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
        self._supply: Supply
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

    def _start_run(self, run: int, world: int) -> None:
        """Prepare for a trainer of a run, or for one without a rank."""
        supply = self._supply.start_run(run, world)
        if supply is not self._supply:
            self._supply, self._claims = supply, claims_of(supply, self._lifecycle, self._claims)

    def _tell_of_none_after(self, trainer: Trainer) -> None:
        """Leave untold what follows the batches of its last session, for it may return some."""
        mine = self._leases.of_session(trainer.session)
        adopted = (lease.batch.round_name for lease in mine if not lease.seq)
        trainer.following = next(adopted, None)

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

    # Batches

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

    def rounds_dealt(self, partition: int) -> DealtRounds:
        """Return the rounds of a partition that this life has dealt, to be stored."""
        return self._supply.rounds_dealt(partition)

    def last_saved(self, session: int, token: int) -> Batch | None:
        """Return the batch of a token, unless the session has saved a later one there."""
        for (of, _), (saved, batch) in self._last_saved.items():
            if (of, saved) == (session, token):
                return batch
        return None

    def _skipped(self, session: int, token: int) -> list[Lease]:
        """Return the session's leases of earlier batches in the same lanes."""
        batch, held = self._leases.batch_of(token, session), self._leases.of_session(session)
        partition = -1 if batch is None else batch.partition
        return [one for one in held if one.token < token and one.batch.partition == partition]

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

    # Trainers

    @property
    def present(self) -> int:
        """Number of sessions."""
        return len(self._trainers.present)

    @property
    def ranked(self) -> Collection[Trainer]:
        """The trainers that have ranks."""
        return self._trainers.by_rank.values()

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

    # Texts

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
        return "; ".join(reasons) or NOTHING_LEFT
