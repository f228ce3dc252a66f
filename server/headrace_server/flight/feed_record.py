"""The record of a feed: its hand-outs, and the rows that they brought.

    leases-….flight ─► Leases ─┐
                               ├─► History ─► Flown: a hand-out and its batch
    rows-….flight  ─► Made ────┘

Reading disturbs nobody: a server may be writing meanwhile, or have been killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_proto.errors import ServerError
from headrace_proto.placement import WHOLE

from .choice import ByTrainer
from .files import SUFFIX
from .hand_outs import HandOut, HandOuts
from .recorder import flight_directory
from .rows import BatchId, Recorded, RecordedBatch


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
    """Return one entry of the file in which a server notes what a feed is."""
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


class FeedRecord:
    """The record of one feed; ``beside`` are state directories of its other servers."""

    def __init__(self, state: Path, feed: str, beside: Sequence[Path] = ()) -> None:
        self.feed = feed
        if beside:
            _check_shares((state, *beside), feed)
        self._directories = [flight_directory(one, feed) for one in (state, *beside)]
        self.leases = HandOuts(*self._directories)

    def last(self, count: int) -> list[Flown]:
        """Return the last hand-outs."""
        return self._with_rows(list(self.leases)[-count:])

    def of_trainer(self, trainer: ByTrainer) -> list[Flown]:
        """Return the hand-outs to a trainer."""
        return self._with_rows(trainer.of(self.leases))

    def of_batch(self, batch: BatchId) -> list[Flown]:
        """Return every hand-out of a batch; one without a lease where it was not handed out."""
        made = self.recorded({batch}).get(batch)
        flown = self._with_rows([lease for lease in self.leases if lease.batch == batch])
        return flown or ([] if made is None else [Flown(batch, None, made)])

    def of_key(self, key: bytes) -> list[Flown]:
        """Return every hand-out of a batch with a row of this key."""
        recorded = Recorded(*self._directories)
        every = {batch: recorded.get(batch) for batch in recorded}
        found = {batch: made for batch, made in every.items() if made and made.has_key(key)}
        flown = [Flown(le.batch, le, found[le.batch]) for le in self.leases if le.batch in found]
        out = {one.id for one in flown}
        return flown + [Flown(id, None, found[id]) for id in sorted(found.keys() - out)]

    def _with_rows(self, leases: Sequence[HandOut]) -> list[Flown]:
        """Return hand-outs with their batches, as far as they are recorded, in the same order."""
        recorded = self.recorded({lease.batch for lease in leases})
        made = {lease.batch: recorded.get(lease.batch) for lease in leases}
        return [Flown(lease.batch, lease, made[lease.batch]) for lease in leases]

    def recorded(self, wanted: Collection[BatchId]) -> Recorded:
        """Return the record of the lives of these batches."""
        return Recorded(*self._directories, lives={batch.life for batch in wanted})
