"""The names by which an operator chooses hand-outs.

--batch P:N            LIFE/P:N       a batch, of the last life in which it went out, or of that
--trainer SESSION      LIFE/SESSION   a trainer's session, of the last life that has it
--trainer rank:R       HOST           all sessions of a rank, or a host (with or without pid)
--steps A-B            A              batches of a trainer, counted from 1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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
    lives = [le.batch.life for le in leases if le.batch[1:] == (partition, number)]
    if not lives:
        raise ValueError(f"{argument}={text}: no record tells of a hand-out of this batch")
    return BatchId(max(lives), partition, number)


def steps_named(argument: str, text: str | None) -> range | None:
    """Return the steps of ``A-B`` or ``A``; None, for all, without a text."""
    if text is None:
        return None
    found = _STEPS.fullmatch(str(text))
    if not found:
        raise ValueError(f"{argument}={text!r:.80} is not A-B, as 100-120, or one step")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last:
        raise ValueError(f"{argument}={text}: steps ascend, and the first one is 1")
    return range(first, last + 1)


def handed_to(trainer: str, steps: range | None, leases: Sequence[HandOut]) -> list[HandOut]:
    """Return the hand-outs to a trainer in order, of these steps or all.

    ValueError where there are none, or where steps could be those of several trainers.
    """
    known = {lease.trainer for lease in leases}
    wanted = _named(trainer, known)
    if not wanted:
        listed = ", ".join(map(str, sorted(known)[-10:])) or "none"
        raise ValueError(f"trainer={trainer!r:.80} is none that is recorded; there are {listed}")
    if steps is not None and len(wanted) > 1:
        listed = ", ".join(map(str, sorted(wanted)))
        raise ValueError(
            f"trainer={trainer}: each trainer has steps of its own, and these are meant: "
            f"{listed}; name one as LIFE/SESSION"
        )
    given = [lease for lease in leases if lease.trainer in wanted]
    return given if steps is None else [lease for lease in given if lease.step in steps]


def _named(trainer: str, known: set[RecordedTrainer]) -> set[RecordedTrainer]:
    numbered = _SESSION.fullmatch(trainer)
    if numbered:
        session = int(numbered[2])
        lives = [life for t in known for life, number in t.sessions if number == session]
        life = int(numbered[1]) if numbered[1] else max(lives, default=-1)
        return {t for t in known if (life, session) in t.sessions}
    if trainer.startswith("rank:"):
        return {t for t in known if t.rank >= 0 and trainer == f"rank:{t.rank}"}
    return {t for t in known if trainer and trainer in (t.host, t.host.rpartition(":")[0])}
