"""A hand-over whose commits are kept by workers: what a trainer is told to be committed is.

    save() ─► judged by the lease ─► Save ─► worker ─► kept() ─► Answer

A commit that comes again is answered as the first one was, and adds nothing.  A worker that begins
anew is told again what it has not answered: it knows by the token whether it was kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from .dispatch import Dispatcher
from .handover import Answer, Batch, Claim, Save
from .lease import Verdict

__all__ = ["KeepingDispatcher"]

#: Saves that a worker could not keep are remembered up to this number, for when they come again.
_REMEMBERED = 65_536


@dataclass(slots=True)
class _Keeping:
    """A save that a worker has not answered."""

    token: int
    batch: Batch
    sessions: set[int]  # who is told
    payload: Any  # to be said again to the worker's next life


class KeepingDispatcher(Dispatcher):
    """The hand-over of one feed of which a worker keeps what is done."""

    def __init__(
        self, partitions: int, lease_ttl_s: float, max_window: int = 64, epoch: int = 0
    ) -> None:
        super().__init__(partitions, lease_ttl_s, max_window, epoch)
        self._keeping: dict[tuple[int, int], _Keeping] = {}  # by number and partition
        self._kept_tokens: dict[int, _Keeping] = {}  # the same by token
        self._claims: dict[int, tuple[int, Any]] = {}  # by token: session and place
        self._early: dict[int, tuple[int, Any]] = {}  # saves of claims without an answer
        self._expected: dict[tuple[int, int], int] = {}  # claims of batches that will be made
        self._faults: OrderedDict[int, tuple[int, str, str]] = OrderedDict()  # by token

    # What trainers have of an earlier server

    def claim(self, session: int, place: Any) -> None:
        """A new session has a batch that an earlier server handed out, or has not answered."""
        token = place.token
        if not self._leases.knows(token) and token not in self._kept_tokens:
            self._claims[token] = session, place
            self._effects.append(Claim(place.partition, place))

    def claimed(self, token: int, verdict: str, number: int) -> None:
        """A worker's word on a claim: "done" before, "yes" it can be, or "no"."""
        session, place = self._claims.get(token, (0, None))
        if place is None:
            return
        if verdict == "yes":
            batch = self._batch_of_claim(place, number)
            if batch is None:  # its worker has not made it yet
                self._expected[place.number, place.partition] = token
                return
            self._admit(token, session, batch)
        elif verdict == "done":
            self._leases.remember(token)
        self._end_claim(token)

    def _batch_of_claim(self, place: Any, number: int) -> Batch | None:
        order = place.number, place.partition
        batch: Batch | None = self._stream.pick(*order)
        if batch is None:
            again = self._again.remove_if(lambda other: other.order == order)
            batch = again[0] if again else None
        return batch

    def _admit(self, token: int, session: int, batch: Batch) -> None:
        trainer = self._trainers.get(session)
        if trainer is None:
            self._returned(session, batch)
        else:
            batch.waits_in = None
            self._leases.admit(token, batch, session, trainer.seen)

    def _end_claim(self, token: int) -> None:
        del self._claims[token]
        early = self._early.pop(token, None)
        if early is not None:
            self.save(early[0], token, early[1])
        self._deal()

    def made(self, batch: Batch) -> None:
        token = self._expected.pop(batch.order, None)
        if token is None:
            super().made(batch)
            return
        self._stream.made(batch)
        self._stream.pick(*batch.order)
        self._open += 1
        session, _ = self._claims[token]
        self._admit(token, session, batch)
        self._end_claim(token)

    def commit(self, session: int, tokens: tuple[int, ...]) -> None:
        """The session is done with these."""
        for token in tokens:
            self.save(session, token, ((), None))

    def restarted(self, partition: int) -> int:
        """The worker of a partition begins anew: what it has not answered is said again.

        Returns the number of batches that the partition has made.
        """
        for _, place in self._claims.values():
            if place.partition == partition:
                self._effects.append(Claim(partition, place))
        for (_, of), keeping in sorted(self._keeping.items()):
            if of == partition:
                self._effects.append(Save(keeping.batch, keeping.payload, keeping.token))
        return int(self._stream.made_by(partition))

    def kept(self, partition: int, number: int, code: str = "", text: str = "") -> None:
        """A worker has kept the states of a batch, or says why it did not."""
        keeping = self._keeping.pop((number, partition), None)
        if keeping is None:
            return
        del self._kept_tokens[keeping.token]
        token, batch = keeping.token, keeping.batch
        if code:
            batch.settled = True
            self._open -= 1
            self._free_if_done(batch)
            self._faults[token] = token, code, text
            if len(self._faults) > _REMEMBERED:
                self._faults.popitem(last=False)
        else:
            self._settle(batch)
        for session in sorted(keeping.sessions):
            self._answer(session, token)
        self._deal()

    def _answer(self, session: int, token: int) -> None:
        """A save was judged, and its worker has spoken."""
        fault = self._faults.get(token)
        answer = Answer(session, (), (), (fault,)) if fault else Answer(session, (token,), ())
        self._effects.append(answer)

    def save(self, session: int, token: int, payload: Any = None) -> None:
        """The session is done with a batch; ``payload`` are its states."""
        if token in self._claims:
            self._early[token] = session, payload
            return
        keeping = self._kept_tokens.get(token)
        if keeping is not None:  # said again, and not yet answered
            keeping.sessions.add(session)
            return
        verdict, batch = self._leases.commit(token, session)
        if batch is None:
            if verdict is Verdict.STALE:
                self.counts["stale"] += 1
                self._effects.append(Answer(session, (), (token,)))
            else:
                self._answer(session, token)
        else:
            if batch.waits_in is not None:  # it had come back, and its states came late
                batch.waits_in.remove(batch)
                batch.waits_in = None
            keeping = _Keeping(token, batch, {session}, payload)
            self._keeping[batch.order] = self._kept_tokens[token] = keeping
            self._effects.append(Save(batch, payload, token))
        self._ask(session)
        self._deal()

    # Words

    def describe(self, now: float) -> str:
        text = super().describe(now)
        saves = len(self._keeping)
        return f"the states of {saves} batches are being kept; {text}" if saves else text

    @property
    def leased(self) -> int:
        """Number of batches in trainers' hands, on their way there, or not answered."""
        return len(self._leases) + len(self._keeping)
