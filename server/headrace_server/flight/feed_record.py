"""The record of a feed: its hand-outs, and the rows that they brought.

    flight-LIFE-….flight ─► RecordFile ─┬─► batches ──┐
    …                                   │             ├─► Flown: a hand-out and its batch
                                        └─► HandOuts ─┘

One pass over all files finds the hand-outs, and where batches lie.  It does not disturb a server
that is writing meanwhile, and works after one was killed.  An operator names hand-outs so:

    --batch P:N            LIFE/P:N       a batch, of the last life in which it went out, or of that
    --trainer SESSION      LIFE/SESSION   a trainer's session, of the last life that has it
    --trainer rank:R       HOST           all sessions of a rank, or a host (with or without pid)
    --steps A-B            A              batches of a trainer, counted from 1
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from headrace_proto.errors import ServerError
from headrace_proto.placement import WHOLE

from .files import SUFFIX
from .hand_outs import HandOut, HandOuts, RecordedTrainer
from .recorder import BATCH, flight_directory
from .rows import BatchId, RecordedBatch, RecordFile


@dataclass(frozen=True, slots=True)
class Flown:
    """A batch and one hand-out of it.  Either may be unknown: the oldest records go."""

    id: BatchId
    lease: HandOut | None
    made: RecordedBatch | None


def feed_of(state: Path, feed: str | None) -> str:
    """Return the name of a recorded feed; None stands for the only one."""
    os.scandir(state).close()  # the OSError of a directory that is none, or is not for this user
    recorded = sorted(
        path.parent.name
        for path in state.glob("feeds/*/flight")
        if not path.parent.name.startswith(".") and next(path.glob(f"*{SUFFIX}"), None)
    )
    if feed is None and len(recorded) == 1:
        return recorded[0]
    if feed in recorded:
        return str(feed)
    listed = ", ".join(recorded) or "of none: it was served with record='off', or never"
    what = "name one of the feeds" if feed is None else f"there is no flight of feed {feed!r}"
    raise ServerError(f"{what}; {state} has recorded {listed}")


def served_as(state: Path, feed: str, *names: str) -> Any:
    """Return one entry of the file in which a server describes a feed."""
    file = state / "feeds" / feed / "feed.json"
    try:
        found = json.loads(file.read_text())
        for name in names:
            found = found[name]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ServerError(f"{file} does not say what the feed was: {error!r:.200}") from None
    return found


def beside_of(value: Any) -> list[Path]:
    """Return the state directories that ``beside=`` names; TypeError where it names none."""
    listed = [value] if isinstance(value, (str, os.PathLike)) else value or ()
    if not isinstance(listed, (list, tuple)) or not all(
        isinstance(one, (str, os.PathLike)) for one in listed
    ):
        raise TypeError(f"beside={value!r:.200} is neither a state directory nor a list of them")
    return [Path(one) for one in listed]


def _check_shares(states: Sequence[Path], feed: str) -> None:
    """Raise ValueError unless these are directories of different servers of a feed."""
    for state in states:
        feed_of(state, feed)
    shares = [tuple(served_as(state, feed).get("share", WHOLE)) for state in states]
    if len({servers for _, servers in shares}) > 1 or len({*shares}) < len(shares):
        listed = ", ".join(
            f"{s} of share {i}/{n}" for s, (i, n) in zip(states, shares, strict=True)
        )
        raise ValueError(
            f"beside names servers that do not share one feed {feed!r}, each a part of it: {listed}"
        )


class _Place(NamedTuple):
    """The frame of a batch, and what the scan has seen of it."""

    file: RecordFile
    at: int
    rows: int
    has_states: bool


class FeedRecord:
    """The record of one feed: the hand-outs, and the batches by their names."""

    def __init__(
        self,
        state: Path,
        feed: str,
        beside: Sequence[Path] = (),
        lives: Collection[int] | None = None,
    ) -> None:
        """``beside``: state directories of its other servers.  ``lives``: not all, but these."""
        self.feed = feed
        self._places: dict[BatchId, _Place] = {}
        self._hand_outs = HandOuts()
        states = (state, *beside)
        if beside:
            _check_shares(states, feed)
        for server, one in enumerate(states):
            for path in sorted(flight_directory(one, feed).glob(f"*{SUFFIX}")):
                # Servers number their lives alike.  Here each life has a number of its own.
                life = int(path.name.split("-")[1]) * len(states) + server
                if lives is None or life in lives:
                    self._scan(RecordFile(path, life), server)

    def _scan(self, file: RecordFile, server: int) -> None:
        found = file.scan()
        for _, header in islice(found, 1):
            self._hand_outs.begin(file.life, server, header)
        for at, (kind, *plain) in found:
            if kind == BATCH:
                partition, number, rows, *_, states = plain
                batch = BatchId(file.life, partition, number)
                self._places[batch] = _Place(file, at, rows, states is not None)
            else:
                self._hand_outs.add(file.life, *plain)

    @cached_property
    def leases(self) -> list[HandOut]:
        """All hand-outs, in their order."""
        return self._hand_outs.joined()

    def place(self, batch: BatchId) -> _Place | None:
        """Return where a batch is recorded; None where it is not, or no more."""
        return self._places.get(batch)

    def get(self, batch: BatchId) -> RecordedBatch | None:
        """Read one of the batches; None where it is not recorded, or no more."""
        place = self._places.get(batch)
        return None if place is None else place.file.batch(place.at)

    def last(self, count: int) -> list[Flown]:
        """Return the last hand-outs."""
        return self._with_rows(self.leases[-count:])

    def of_trainer(self, trainer: str, steps: range | None = None) -> list[Flown]:
        """Return the hand-outs to a trainer."""
        return self._with_rows(handed_to(trainer, steps, self.leases))

    def of_batch(self, batch: BatchId) -> list[Flown]:
        """Return every hand-out of a batch; one without a lease where it was not handed out."""
        made = self.get(batch)
        flown = [Flown(batch, lease, made) for lease in self.leases if lease.batch == batch]
        return flown or ([] if made is None else [Flown(batch, None, made)])

    def of_key(self, key: bytes) -> list[Flown]:
        """Return every hand-out of a batch with a row of this key."""
        read = ((batch, self.get(batch)) for batch in self._places)
        found = {batch: made for batch, made in read if made and made.has_key(key)}
        flown = [Flown(le.batch, le, found[le.batch]) for le in self.leases if le.batch in found]
        out = {one.id for one in flown}
        return flown + [Flown(id, None, found[id]) for id in sorted(found.keys() - out)]

    def _with_rows(self, leases: Iterable[HandOut]) -> list[Flown]:
        """Return hand-outs with their batches, as far as they are recorded, in the same order."""
        return [Flown(lease.batch, lease, self.get(lease.batch)) for lease in leases]


class Replay(NamedTuple):
    """The parameters of a replay: recorded batches of a feed, in order.  They are plain data."""

    directories: list[str]  # state directories of the feed's servers
    feed: str
    partitions: int  # of the feed when it was recorded
    script: list[list[int]]  # life, partition and number of each batch
    states: str

    def record(self) -> FeedRecord:
        """Return the record of the lives of these batches."""
        state, *beside = map(Path, self.directories)
        return FeedRecord(state, self.feed, beside, {life for life, _, _ in self.script})


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


def handed_to(trainer: str, steps: range | None, leases: Iterable[HandOut]) -> list[HandOut]:
    """Return the hand-outs to a trainer in order, of these steps or all.

    ValueError where there are none, or where steps could be those of several trainers.
    """
    every = list(leases)
    known = {lease.trainer for lease in every}
    wanted = _named(trainer, known)
    if not wanted:
        listed = ", ".join(map(str, sorted(known, key=_by_age)[-10:])) or "none"
        raise ValueError(f"trainer={trainer!r:.80} is none that is recorded; there are {listed}")
    if steps is None:
        return [lease for lease in every if lease.trainer in wanted]
    if len(wanted) > 1:
        listed = ", ".join(map(str, sorted(wanted, key=_by_age)))
        raise ValueError(
            f"trainer={trainer}: each trainer has steps of its own, and these are meant: "
            f"{listed}; name one as LIFE/SESSION"
        )
    return [lease for lease in every if lease.trainer in wanted and lease.step in steps]


def _named(trainer: str, known: set[RecordedTrainer]) -> set[RecordedTrainer]:
    numbered = _SESSION.fullmatch(trainer)
    if numbered:
        session = int(numbered[2])
        lives = [life for t in known for life, number in t.every if number == session]
        life = int(numbered[1]) if numbered[1] else max(lives, default=-1)
        return {t for t in known if (life, session) in t.every}
    if trainer.startswith("rank:"):
        return {t for t in known if trainer == f"rank:{t.rank}"}
    return {t for t in known if trainer in (t.host, t.host.rpartition(":")[0])}


def _by_age(trainer: RecordedTrainer) -> tuple[int, int]:
    return trainer.life, trainer.session
