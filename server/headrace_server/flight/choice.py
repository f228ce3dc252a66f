"""An operator's words for hand-outs: a batch, a trainer, its steps.

--batch P:N            LIFE/P:N        a batch, of the last life in which it went out, or of that
--trainer SESSION      LIFE/SESSION    a trainer's session, of the last life that has it
--trainer rank:R       HOST            all sessions of a rank, or of a host (with or without pid)
--steps A-B            A               batches of a trainer, counted from 1
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .hand_outs import HandOut, RecordedTrainer
from .rows import BatchId

_BATCH = re.compile(r"(?:(\d{1,10})/)?(\d{1,10}):(\d{1,19})")
_SESSION = re.compile(r"(?:(\d{1,10})/)?(\d{1,10})")
_STEPS = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")


def batch_named(argument: str, text: str, leases: Iterable[HandOut]) -> BatchId:
    """Return the batch of ``P:N`` or ``LIFE/P:N``.  ValueError names the argument."""
    found = _BATCH.fullmatch(str(text))
    if not found:
        raise ValueError(
            f"{argument}={text!r:.80} is not PARTITION:NUMBER, as 0:17, or LIFE/PARTITION:NUMBER"
        )
    partition, number = int(found[2]), int(found[3])
    if found[1]:
        return BatchId(int(found[1]), partition, number)
    lives = [
        lease.batch.life
        for lease in leases
        if (lease.batch.partition, lease.batch.number) == (partition, number)
    ]
    if not lives:
        raise ValueError(f"{argument}={text}: no record tells of a hand-out of this batch")
    return BatchId(max(lives), partition, number)


def steps_named(argument: str, text: str) -> range:
    """Return the steps of ``A-B`` or ``A``."""
    found = _STEPS.fullmatch(str(text))
    if not found:
        raise ValueError(f"{argument}={text!r:.80} is not A-B, as 100-120, or one step")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last:
        raise ValueError(f"{argument}={text}: steps ascend, and the first one is 1")
    return range(first, last + 1)


@dataclass(frozen=True, slots=True)
class ByTrainer:
    """The hand-outs to one trainer."""

    text: str
    steps: range | None = None

    def of(self, leases: Iterable[HandOut]) -> list[HandOut]:
        """Return those hand-outs in order.  ValueError where there are none, or where steps could
        be those of several trainers."""
        every = list(leases)
        known = {lease.trainer for lease in every}
        wanted = self._sessions(known)
        if not wanted:
            listed = ", ".join(map(str, sorted(known, key=_by_age)[-10:])) or "none"
            raise ValueError(
                f"trainer={self.text!r:.80} is none that is recorded; there are {listed}"
            )
        if self.steps is not None and len(wanted) > 1:
            listed = ", ".join(map(str, sorted(wanted, key=_by_age)))
            raise ValueError(
                f"trainer={self.text}: each trainer has steps of its own, and these are meant: "
                f"{listed}; name one as LIFE/SESSION"
            )
        return [
            lease
            for lease in every
            if lease.trainer in wanted and (self.steps is None or lease.step in self.steps)
        ]

    def _sessions(self, known: set[RecordedTrainer]) -> set[RecordedTrainer]:
        numbered = _SESSION.fullmatch(self.text)
        if numbered:
            session = int(numbered[2])
            lives = [life for t in known for life, number in t.every if number == session]
            life = int(numbered[1]) if numbered[1] else max(lives, default=-1)
            return {t for t in known if (life, session) in t.every}
        if self.text.startswith("rank:"):
            return {t for t in known if self.text == f"rank:{t.rank}"}
        return {t for t in known if t.host == self.text or t.host.rpartition(":")[0] == self.text}


def _by_age(trainer: RecordedTrainer) -> tuple[int, int]:
    return trainer.life, trainer.session
