"""Events from the partitions of a worker to its desks: plain data, handed over by a call.

Opened            a partition is open, as the last process left it
Made              a batch lies in the slab
Counted           the totals of a partition, once it has read and where they are asked for
NextEpoch         a partition makes batches of the next epoch, where none crosses the border …
AtBorder          … or rests before it does
Finished, Failed  a partition has made all its batches, or can not go on
Waiting           a partition makes no batch, and lacks something
Starved, Dry      wanted batches can not be made now, or no more
Kept, Flushed     commits or states of trainers are stored, or refused
Claimed           whether a trainer still has a batch from before a restart
Removed           segments of the slab were removed

An event that depends on the store is sent once the store has written it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

from headrace_proto.record import record

from ..core.handover import Batch


@record
class Opened:
    """A partition is open: the schema of its batches, and how far it is."""

    feed: str
    partition: int
    schema: Any
    properties: dict[str, Any] = field(default_factory=dict)  # for trainers, beside the schema
    next: int = 0  # the first batch that is not done …
    turn: int = -1  # … its turn …
    epoch: int = 0  # … and the epoch, where batches end with theirs
    share: int | None = None  # examples of an epoch, where that is known
    used: Any = None  # number of commits so far, time of the first and the last, rows
    rounds: Any = None  # rounds that an earlier owner dealt to ranks
    done: Iterable[int] = ()  # batches from ``next`` on that are done


@record
class Made:
    """A batch lies in the slab; those of one partition come in order."""

    feed: str
    batch: Batch


@record
class Counted:
    """The totals of one partition so far."""

    feed: str
    partition: int
    counts: dict[str, Any]  # see ``Run.stats``


@record
class NextEpoch:
    """A partition has made all batches before an epoch; the next one has this turn at least."""

    feed: str
    partition: int
    epoch: int
    turn: int


@record
class AtBorder:
    """All examples of a partition's epoch have ended, and it rests until all others' have."""

    feed: str
    partition: int
    epoch: int


@record
class Finished(Counted):
    """All batches of a partition were made."""


@record
class Failed:
    """A feed can not go on: an error's code and text."""

    feed: str
    partition: int
    code: str
    text: str


@record
class Removed:
    """Names of segments that the slab has removed."""

    segments: Sequence[str]


@record
class Waiting:
    """A partition makes no batch: what it lacks."""

    feed: str
    partition: int
    text: str
    batch: int = -1  # the one whose states it waits for


@record
class CommitsStored:
    """The partition has stored commits of batches, or refuses them by an error's code and text."""

    feed: str
    partition: int
    batches: list[list[Any]]  # [number, code, text]


@record
class ClaimJudged:
    """The partition judges a claim: "done" before, "yes" as batch ``number``, or "no"."""

    feed: str
    partition: int
    token: int
    verdict: str
    number: int = 0


@record
class Starved:
    """A partition waits for trainers: for states, or for room in the slab."""

    feed: str
    partition: int


@record
class Dry:
    """A stripe of lanes has no work left."""

    feed: str
    stripe: int


@record
class StateFlush:
    """To a partition: states of some rows of a batch; the last of several is answered."""

    number: int
    session: int
    request: int
    rows: Sequence[int]
    columns: Any
    more: bool = False


@record
class Flushed:
    """The states of a flush are stored."""

    feed: str
    session: int
    request: int
