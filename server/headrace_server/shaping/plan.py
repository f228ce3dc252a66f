"""The values of the pure machines: chunks to read and rows to batch, never payload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..leasing.words import Batch

#: The plain data that a shape or an input stores, from which a later process goes on.
State = Mapping[str, Any]
#: The state of each stage before a chunk; None where none of them has any.
Stages = list[Any] | None
#: Start of a read: a small value that the source defines (an integer, bytes, a short list).
Position = Any


#: Types of a setting in plain data.
_SETTING = (int, float, list, type(None))


@dataclass(frozen=True, slots=True)
class Read:
    """Read at most ``limit`` examples from a position; the rows are chunk number ``chunk``."""

    chunk: int
    epoch: int
    position: Position
    limit: int


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows of one chunk, in order: a slice if they are consecutive, else their numbers."""

    chunk: int
    rows: slice | np.ndarray


#: Property of a feed whose batches may have another number of rows than was declared.
RESIZED: State = {"resized": True}


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """The rows of a batch, in order, as a shaper decides them."""

    parts: tuple[Part, ...]
    bucket: int = -1  # where the shape has buckets
    layout: Any = None  # where the rows lie in the batch, for the shape's own assembly
    #: Number of rows that the batch ends, where it holds pieces of rows; None: all of its rows.
    ends: int | None = None
    cost: float = 0  # of all rows, where batches are balanced

    def of_chunks(self) -> Iterable[int]:
        """Return the numbers of the chunks from which the rows come."""
        return [part.chunk for part in self.parts]


@dataclass(eq=False)
class Plan:
    """A batch that was decided, and what lies in it.  It has a body once it is written."""

    batch: Batch
    draft: Any  # a Draft, or Spans
    begun: Any = field(default=None, init=False)  # what waits for a block to be written


def packed_integers(values: np.ndarray) -> bytes:
    """Return non-negative integers as plain data: their width in bytes, then each in that width."""
    most = int(values.max()) if len(values) else 0
    width = 2 if most < 1 << 16 else 4 if most < 1 << 32 else 8
    return b"%d" % width + values.astype(f"<u{width}").tobytes()


def unpacked_integers(plain: bytes) -> np.ndarray:
    """Unpack integers."""
    width = plain[:1].decode() if isinstance(plain, bytes) else ""
    if width not in ("2", "4", "8"):
        raise ValueError(f"{plain!r:.60} are no packed integers")
    return np.frombuffer(plain, f"<u{width}", offset=1).astype(np.int64)


def stored_fields(
    state: State, what: str, kinds: Mapping[str, type | tuple[type, ...]], **settings: object
) -> dict[str, Any]:
    """Return the fields of stored plain data that ``kinds`` names.

    ValueError names a field that is missing or invalid, or an entry of ``settings`` that had
    another value when the snapshot was taken.
    """
    fields = {}
    of_settings = {name: str if type(one) is str else _SETTING for name, one in settings.items()}
    for name, kind in {**of_settings, **kinds}.items():
        if not isinstance(state, Mapping) or name not in state:
            raise ValueError(f"the state of {what} lacks its field {name!r}")
        value = state[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"the field {name!r} of the state of {what} can not be {value!r:.80}")
        if name not in settings:
            fields[name] = value
        elif value != settings[name]:
            raise ValueError(
                f"the snapshot was taken with {name}={value}, the pipeline has "
                f"{name}={settings[name]}"
            )
    return fields


def balanced(costs: np.ndarray, batches: int) -> np.ndarray:
    """Return the rows of each batch, [batches, size], ascending: batches cost nearly the same.

        costs 9 8 7 6 5 2 1 1, 4 batches     9 8 7 6  ─► each into a batch
                                             5 2 1 1  ─► the dearest into the cheapest batch …

    The batch with the oldest row is the first, so none is dearer by its place.
    """
    found = np.empty((batches, len(costs) // batches), np.int64)
    sums = np.zeros(batches)
    for at, rows in enumerate(np.argsort(-costs, kind="stable").reshape(-1, batches)):
        cheapest = np.argsort(sums, kind="stable")
        found[cheapest, at] = rows
        sums[cheapest] += costs[rows]
    found.sort(axis=1)
    return found[np.argsort(found[:, 0])]


class Target(Protocol):
    """A stage or shape with proportions that an order can change."""

    def check_target(self, target: list[float], /) -> None:
        """Raise ValueError where these can not be used."""

    def set_target(self, target: list[Any], number: int, /) -> object:
        """Use others from a batch on."""

    def stats(self) -> Mapping[str, object]:
        """Return what came, and the proportions."""


class Shaper(ABC):
    """Decides which rows make a batch.  It sees columns of facts about rows, never payload."""

    kind: str

    @property
    def hungry(self) -> bool:
        """Whether more rows are wanted while there is no draft."""
        return True

    @property
    def done(self) -> bool:
        """Whether no draft can follow, given that the input has ended and no draft is left."""
        return True

    @abstractmethod
    def offer(self, chunk: int, rows: int, facts: Mapping[str, np.ndarray]) -> None:
        """Take a chunk's rows, in order, with the facts (length, label …) that this shape needs."""

    @abstractmethod
    def finish(self, drop: bool = False) -> None:
        """End the input; the shape drafts or drops the remaining rows, as declared.

        With ``drop`` all waiting rows are dropped and counted as cancelled, even if the input
        had ended before.
        """

    @abstractmethod
    def begin_epoch(self, epoch: int) -> None:
        """Take rows of this epoch, after ``finish`` and the last draft of the one before."""

    @abstractmethod
    def next_draft(self) -> Draft | list[Plan] | None:
        """Return the next batch if one is possible now, else None."""

    @abstractmethod
    def chunks(self) -> set[int]:
        """Return the chunks whose payload future batches need."""

    @abstractmethod
    def dropped(self) -> Mapping[str, int]:
        """Return the number of rows, or of segments, dropped so far, by reason."""

    def snapshot(self) -> State:
        """Return plain data; empty where the store has each example."""
        return {}

    def restore(self, state: State) -> None:
        """Restore a snapshot; ValueError names the field that does not fit."""
        return


class RowShaper(Shaper):
    """A shaper of rows that are in one batch each, or in pieces of several."""

    #: Sizes of batches from here on, which a trainer may change: one, or one for each bucket.
    batch_sizes: tuple[int | None, ...] = ()

    def __init__(self) -> None:
        self._dropped: dict[str, int] = {}
        self._finished = False
        #: By bucket: elements of all batches with padding, and the real ones.
        self.padding: dict[int, list[int]] = {}

    def _check_open(self, chunk: int) -> None:
        if self._finished:
            raise ValueError(f"chunk {chunk} is offered after the input has ended")

    def begin_epoch(self, epoch: int) -> None:
        self._finished = False

    def dropped(self) -> Mapping[str, int]:
        return self._dropped

    def _note_dropped(self, reason: str, rows: int) -> None:
        if rows:
            self._dropped[reason] = self._dropped.get(reason, 0) + rows

    @abstractmethod
    def next_draft(self) -> Draft | None:
        """Return the next batch if one is possible now, else None."""

    @property
    def resized(self) -> bool:
        """Whether batches may have other sizes than were declared."""
        return False

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> None:
        """Use other sizes for the batches that are not formed."""
        self.batch_sizes = tuple(batch_sizes)

    def targets(self) -> Sequence[Target]:
        """Return itself, if its proportions of classes can be changed."""
        return ()

    def ready(self) -> int:
        """Return the number of batches that are formed, so that no order changes them."""
        return 0

    def waits_for(self) -> str:
        """Describe the rows that the next batch lacks; may be empty."""
        return ""

    def waiting(self) -> int:
        """Return the number of rows held, including those of untaken batches."""
        return 0
