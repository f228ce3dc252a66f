"""A hand-over whose commits are kept by workers: what a trainer is told to be committed is.

    save() ─► judged by the lease ─► Save ─► worker ─► kept() ─► Answer

Of batches that wait to be kept those beyond ``max_window`` count as held: a trainer whose worker
does not keep up gets no more, so what waits is bounded.

A commit that comes again is answered as the first one was, and adds nothing.  A worker that begins
anew is told again what it has not answered: it knows by the token whether it was kept.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .handover import Answer, Batch, Claim, Reclaimed, Rewound, Save
from .lease import Verdict
from .round_dispatch import RoundDispatcher

__all__ = ["Acknowledged", "Claimed", "KeepingDispatcher"]

#: Saves that a worker could not keep are remembered up to this number, for when they come again.
_REMEMBERED = 65_536


@dataclass(slots=True)
class _Keeping:
    """A save that a worker has not answered."""

    token: int
    batch: Batch
    session: int  # who saved it …
    sessions: set[int]  # … and who is told


@dataclass(slots=True)
class Claimed:
    """A batch of an earlier server that a trainer has."""

    session: int
    place: Any
    batch: Batch | None = None  # set aside for it
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A commit that an earlier server has acknowledged to a trainer, as a claim tells of it."""

    token: int
    partition: int
    number: int = -1  # there is nothing to claim: whether the commit is known is asked
    segments: bytes = b""


class KeepingDispatcher(RoundDispatcher):
    """The hand-over of one feed of which a worker keeps what is done."""

    def __init__(
        self, partitions: Iterable[int], lease_ttl_s: float, max_window: int = 64, epoch: int = 0
    ) -> None:
        super().__init__(partitions, lease_ttl_s, max_window, epoch)
        self._unkept: Counter[int] = Counter()  # saves of a session that wait to be kept
        self._keeping: dict[tuple[int, int], _Keeping] = {}  # by number and partition
        self._kept_tokens: dict[int, _Keeping] = {}  # the same by token
        self._claims: dict[int, Claimed] = {}  # by token
        self._recalled: dict[int, tuple[int, Acknowledged]] = {}  # by token, with the session
        self._doubted: dict[int, list[tuple[int, Any]]] = {}  # sessions of these: saves since
        self._early: dict[int, Any] = {}  # payload of saves of claims without an answer
        self._last_claims: dict[tuple[int, int], int] = {}  # of each plain batch the last holder's
        self._first_token = epoch << 32  # those before it are of earlier servers
        self._faults: OrderedDict[int, tuple[int, str, str]] = OrderedDict()  # by token
        self._stale: OrderedDict[int, None] = OrderedDict()  # tokens that were counted as such

    # What trainers have of an earlier server

    def claim(self, session: int, place: Any, saved: bool = False) -> None:
        """A new session has a batch that an earlier server handed out, or (``saved``) has not
        answered: then the save is said again.

        Nobody else is given it until its worker has said what has become of it.
        """
        token = place.token
        claim = self._claims.get(token)
        if claim is not None:
            claim.session = session
            return
        if token > self._first_token or self._leases.knows(token):
            return
        claim = self._claims[token] = Claimed(session, place)
        self._set_aside(token, claim)
        self._say_claim(token, saved)

    def recall(self, session: int, commit: Acknowledged) -> None:
        """A new session was told that this is kept: if the worker does not know it, it is gone.

        Until the worker has answered the session is given nothing, and what it saves waits.
        """
        self._recalled[commit.token] = session, commit
        self._doubted.setdefault(session, [])
        self._effects.append(Claim(commit.partition, commit))

    def _forsake(self, session: int) -> None:
        """A trainer counts on what is undone: nothing that it saved is to count."""
        self._doubted[session] = []  # until it has left
        for token, claim in self._claims.items():
            if claim.session == session:
                self._early.pop(token, None)
        self._effects.append(Rewound(session))

    def _is_asked_of(self, session: int) -> bool:
        """Whether a commit that this session counts on is being looked for."""
        return any(asking == session for asking, _ in self._recalled.values())

    def leave(self, session: int) -> None:
        super().leave(session)
        if not self._is_asked_of(session):
            self._doubted.pop(session, None)

    def _believe(self, session: int) -> None:
        """Accept a trainer whose acknowledged commits were all found; its saves count now."""
        if self._is_asked_of(session):
            return
        for token, payload in self._doubted.pop(session, ()):
            self.save(session, token, payload)
        self._trainers.ask(session)
        self._deal()

    def _say_claim(self, token: int, saved: bool) -> None:
        """Have the partition of a claim judge it."""
        place = self._claims[token].place
        self._effects.append(Claim(place.partition, place))

    def _set_aside(self, token: int, claim: Claimed) -> None:
        """The batch of a claim, if it is here, is nobody else's.

        Of several holders that it had the last one, of the highest token, has it.
        """
        place = claim.place
        order = place.number, place.partition
        rival_token = self._last_claims.get(order, -1)
        if rival_token > token:
            return
        self._last_claims[order] = token
        rival = self._claims.get(rival_token)
        if rival is None:
            claim.batch = self._picked(place.number, place.partition)
        else:
            claim.batch, rival.batch = rival.batch, None
            if rival.verdict:
                self._end_claim(rival_token, rival)

    def _is_others(self, claim: Claimed, session: int) -> bool:
        """Whether a claim is that of another trainer who is there."""
        return claim.session != session and claim.session in self._trainers.present

    def claimed(self, token: int, verdict: str, number: int) -> None:
        """A worker's word on a claim: "done" before, "yes" it can be, or "no"."""
        session, _ = self._recalled.pop(token, (None, None))
        if session is not None and verdict == "no":
            self._forsake(session)
        elif session is not None:
            self._believe(session)
        claim = self._claims.get(token)
        if claim is None:
            return
        claim.verdict = verdict
        if verdict == "done":
            self._leases.remember(token)
        elif verdict == "yes" and claim.batch is None:
            claim.batch = self._claimed_batch(claim.place, number)
            if claim.batch is None and self._will_be_made(token, claim.place):
                return
        self._end_claim(token, claim)

    def _claimed_batch(self, place: Any, number: int) -> Batch | None:
        """The batch of a claim that was not here."""
        return None

    def _will_be_made(self, token: int, place: Any) -> bool:
        """Whether a claimed batch that is not here will come, and be this claim's."""
        if self._last_claims.get((place.number, place.partition)) != token:
            return False
        return bool(self._stream.will_make(place.number, place.partition))

    def _end_claim(self, token: int, claim: Claimed) -> None:
        del self._claims[token]
        order = claim.place.number, claim.place.partition
        if self._last_claims.get(order) == token:
            del self._last_claims[order]
        saved = token in self._early
        payload = self._early.pop(token, None)
        if claim.batch is not None:
            if claim.verdict == "yes":
                trainer = self._trainers.present.get(claim.session)
                seen = 0.0 if trainer is None else trainer.seen
                self._leases.admit(token, claim.batch, claim.session, seen)
                self._effects.append(Reclaimed(token))
                if trainer is None and not saved:
                    self._session_left(claim.session)
            else:
                self._returned(claim.session, claim.batch)
        if saved:
            self.save(claim.session, token, payload)
        self._deal()

    def _session_left(self, session: int) -> None:
        for lease in self._leases.of_session(session):
            self._take_back(lease, "left")

    def made(self, batch: Batch) -> None:
        token = self._last_claims.get(batch.order)
        if token is None:
            super().made(batch)
            return
        self._is_dealt(batch)
        self._stream.made(batch)
        self._open += 1
        claim = self._claims[token]
        claim.batch = self._picked(*batch.order)
        if claim.verdict:
            self._end_claim(token, claim)

    def partition_ended(self, number: int) -> None:
        super().partition_ended(number)
        for token, claim in list(self._claims.items()):
            if claim.place.partition == number and claim.verdict and claim.batch is None:
                self._end_claim(token, claim)

    @property
    def ended(self) -> bool:
        """Everything was made, handed out and kept, and every claim is settled."""
        return not self._claims and super().ended

    def commit(self, session: int, tokens: tuple[int, ...]) -> None:
        """The session is done with these."""
        for token in tokens:
            self.save(session, token, ((), None))

    def kept(self, partition: int, number: int, code: str = "", text: str = "") -> None:
        """A worker has kept the states of a batch, or says why it did not."""
        keeping = self._keeping.pop((number, partition), None)
        if keeping is None:
            return
        del self._kept_tokens[keeping.token]
        unkept = self._unkept.pop(keeping.session)
        if unkept > 1:
            self._unkept[keeping.session] = unkept - 1
        if unkept > self._trainers.max_window:  # it was given no more
            self._trainers.ask(keeping.session)
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
        claim = self._claims.get(token)
        if claim is not None and not self._is_others(claim, session):
            claim.session = session
            self._early[token] = payload
            return
        if session in self._doubted:
            self._doubted[session].append((token, payload))
            return
        keeping = self._kept_tokens.get(token)
        if keeping is not None:  # said again, and not yet answered
            keeping.sessions.add(session)
            return
        verdict, batch = self._leases.commit(token, session)
        if batch is None:
            if verdict is Verdict.STALE:
                self._count_stale(token)
                self._effects.append(Answer(session, (), (token,)))
            else:
                self._answer(session, token)
        else:
            if batch.waits_in is not None:  # it had come back, and its states came late
                batch.waits_in.remove(batch)
                batch.waits_in = None
            keeping = _Keeping(token, batch, session, {session})
            self._unkept[session] += 1
            self._keeping[batch.order] = self._kept_tokens[token] = keeping
            self._effects.append(Save(batch, payload, token))
        self._trainers.ask(session)
        self._deal()

    def _count_stale(self, token: int) -> None:
        """Count a save that came too late, once however often it is said."""
        if token not in self._stale:
            self._stale[token] = None
            if len(self._stale) > _REMEMBERED:
                self._stale.popitem(last=False)
            self.counts["stale"] += 1

    def _held_by(self, session: int) -> int:
        if session in self._doubted:
            return self._trainers.max_window
        held, beyond = self._leases.count(session), self._unkept.get(session, 0)
        most = self._trainers.max_window
        return held if beyond <= most else held + beyond - most

    # Words

    def describe(self, now: float) -> str:
        text = super().describe(now)
        saves = len(self._keeping)
        return f"the states of {saves} batches are being kept; {text}" if saves else text

    def standing(self) -> dict[str, int]:
        """As of any batches; ``saving`` are those whose worker has not answered."""
        standing = super().standing()
        standing["saving"] = len(self._keeping)
        standing["returned"] = max(0, standing["returned"] - standing["saving"])
        return standing

    @property
    def leased(self) -> int:
        """Number of batches in trainers' hands, on their way there, or not answered."""
        return len(self._leases) + len(self._keeping)

    @property
    def in_doubt(self) -> int:
        """Number of batches of which it is not known yet whether a trainer has done them."""
        return self.leased + len(self._claims)
