"""A batch in a trainer's hands: a mapping from column names to arrays of its framework.

Of batches whose rows have unequal lengths:

    x: ragged int64[8, ?]  ◄── columns_of ──  x: int64[?], @offsets:x: int64[9]  of the wire
    batch["x"]             ◄── the framework's form of both, on their memory

Columns whose rows have the same lengths share one array of offsets: torch computes with several
jagged tensors only if they do.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import FeedClosed, ProtocolError, near
from headrace_proto.layout import ColumnPlace, strings_at
from headrace_proto.messages import Given
from headrace_proto.schema import FACTS, OFFSETS, RESERVED, Field

from ..framework import NUMPY, Framework


class BatchInHand:
    """A batch that a trainer has taken, of rows or of segments."""

    def __init__(
        self,
        given: Given,
        slots: Mapping[str, ColumnPlace],
        block: np.ndarray,
        framework: Framework,
        feed: weakref.ref[Any] | None = None,
        layout: Any = None,
    ) -> None:
        """``layout``: of segments."""
        self.token = given.token
        self.partition = given.partition
        self.number = given.number
        self.rows = given.rows
        self.epoch = given.epoch
        self._bucket = given.bucket
        self._slots = slots  # of facts, too: their names begin with @
        self._block = block
        self._framework = framework
        self._feed = feed  # weak: a batch that the user keeps does not keep the connection open
        self._layout = layout
        self._cache: dict[str, Any] = {}

    def _column(self, name: str) -> Any:
        """Return the framework's array of a column or a fact."""
        value = self._cache.get(name)
        if value is None:
            slot = self._slots[name]
            if slot.numpy is None:
                value = self._framework.strings(strings_at(self._block, slot))
            else:
                value = np.ndarray(slot.shape, slot.numpy, self._block, slot.offset)
                if self._framework is not NUMPY:
                    value = self._framework.numbers(value, slot.dtype, True)
            self._cache[name] = value
        return value

    def array(self, name: str) -> np.ndarray:
        """Return a column as a numpy array for any framework: a view, or an array of ``bytes``.

        Names are those of the wire.  Of rows they are the columns, the facts as ``"@length"``,
        ``"@label"``, ``"@rate"``, ``"@origin"`` and ``"@source"``, and ``"@offsets:NAME"``: a
        ragged column is the values of all rows one after the other, and these are their offsets.
        Of segments they are ``"sequences:NAME"``, ``"context:NAME"``, ``"state:NAME"``,
        ``"@length"``, ``"@key"`` (the original keys) …  Where states stay with the trainer,
        ``"state:NAME"`` is what new sequences of this batch begin with.
        """
        try:
            slot = self._slots[name]
        except KeyError:
            raise self._unknown(name) from None
        if slot.numpy is None:
            return strings_at(self._block, slot)
        return np.ndarray(slot.shape, slot.numpy, self._block, slot.offset)

    def _unknown(self, name: object) -> KeyError:
        known = [*self] if isinstance(self, Mapping) else [*self._slots]
        return KeyError(
            f"{name!r} is not a column of this batch; it has {known}{near(name, known)}"
        )

    def __copy__(self) -> Self:
        other: Self = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._cache = dict(self._cache)
        return other

    def commit(self) -> None:
        """Commit this batch, as ``feed.commit(batch)`` does."""
        feed = None if self._feed is None else self._feed()
        if feed is None:
            raise FeedClosed("batch.commit(): the feed of this batch is gone; connect again")
        feed.commit(self)

    def to(self, device: Any, non_blocking: bool = False) -> Self:
        """Return this batch with all columns, facts and states on a device of its framework.

        Strings stay where they are.  Committing the one commits the other, and a state saved to the
        one is saved to the other: they are one batch.
        """
        return self._changed(lambda value: self._framework.moved(value, device, non_blocking))

    def pin_memory(self) -> Self:
        """Return this batch with its tensors in pinned memory, for copies to a device (torch)."""
        return self._changed(self._framework.pinned)

    def _changed(self, change: Callable[[Any], Any]) -> Self:
        """Return a copy whose arrays of numbers are changed."""
        other = copy.copy(self)
        for name, slot in self._slots.items():
            if slot.dtype != BYTES:
                other._cache[name] = change(self._column(name))
        return other

    def _fact(self, name: str) -> Any:
        """Return one of ``FACTS``; AttributeError where the feed has none."""
        if RESERVED + name not in self._slots:
            raise AttributeError(f"batch.{name}: this feed has none; {FACTS[name]}")
        return self._column(RESERVED + name)

    @property
    def label(self) -> Any:
        """Each row's class, where the feed is stratified."""
        return self._fact("label")

    @property
    def rate(self) -> Any:
        """The rate at which each row was resampled, where the feed is weighted."""
        return self._fact("rate")

    @property
    def origin(self) -> Any:
        """The ordinal in the source of the example that each row was made of (int64).

        Only after ``.with_origin()``.
        """
        return self._fact("origin")

    @property
    def source(self) -> Any:
        """The number of the source that each row is from (int32), in the order of ``hs.mix``."""
        return self._fact("source")

    @property
    def version(self) -> Any:
        """The version of the policy that acted in each row's newest own step, of a live feed."""
        return self._fact("version")

    @property
    def age(self) -> Any:
        """Seconds from the arrival of each row's newest own step to the batch, of a live feed."""
        return self._fact("age")

    @property
    def stale(self) -> Any:
        """Whether each row's ``version`` lags by more than ``max_staleness``, of a live feed."""
        return self._fact("stale")

    @property
    def nbytes(self) -> int:
        """Bytes of the whole batch."""
        return int(self._block.nbytes)


class Batch(BatchInHand, Mapping[str, Any]):
    """A mapping of column to array, each converted when it is first asked for.

    ``rows`` is its number of rows; ``partition`` and ``number`` are its place in the stream.
    ``epoch`` is that of its first row, from 0: the last rows may be of the next one, unless the
    feed was declared with ``repeat(n, across_batches=False)``.

    Arrays are views of memory that this batch shares with the server.  You may keep them and write
    to them: the memory is freed when the last of them is gone.

    ``type(batch)(mapping)``, as programs that rebuild a mapping call it, is a plain dict, and so is
    a pickled or deep copied batch.
    """

    def __new__(cls, *what: Any, **more: Any) -> Any:
        """Return a batch of a given; for a mapping, or pairs, return a plain dict."""
        return dict(what[0]) if len(what) == 1 and not more else object.__new__(cls)

    def __getitem__(self, name: str) -> Any:
        if name not in self._slots or name[0] == RESERVED:
            raise self._unknown(name)
        return self._column(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    @property
    def bucket(self) -> int:
        """The bucket that all rows are of.  AttributeError where the feed has no buckets."""
        if self._bucket < 0:
            raise AttributeError("batch.bucket: this feed has no buckets")
        return self._bucket

    @property
    def length(self) -> Any:
        """Each row's length, where the feed is bucketed by length."""
        return self._fact("length")

    @property
    def cu_seqlens(self) -> Any:
        """Where the examples of packed rows begin and end in the flattened batch (int32).

        Example i has the steps ``cu_seqlens[i]`` up to ``cu_seqlens[i + 1]`` of all rows, one after
        the other; the padding at the end of a row counts as one more example.  AttributeError where
        the feed is not of packed rows.
        """
        if not {"segment_ids", "positions"} <= self._slots.keys():
            raise AttributeError("batch.cu_seqlens: this feed has no packed rows (pack)")
        ids = self.array("segment_ids")
        begins = np.ones(ids.shape, bool)
        begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
        borders = np.append(np.flatnonzero(begins), ids.size).astype(np.int32)
        return self._framework.numbers(borders, "int32", True)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._slots if name[0] != RESERVED)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._slots and str(name)[0] != RESERVED

    def __repr__(self) -> str:
        slots = {name: self._slots[name] for name in self}
        columns = ", ".join(f"{n}: {s.dtype}{list(s.shape)}" for n, s in slots.items())
        return f"<Batch {self.partition}/{self.number} of {self.rows} rows: {columns}>"


def columns_of(layout: Mapping[str, Field]) -> dict[str, Field]:
    """Return the columns of a batch as users see them."""
    columns = {}
    for name, field in layout.items():
        if name[0] == RESERVED:
            continue
        ends = layout.get(OFFSETS + name)
        if ends is not None:
            known = ends.shape[0]
            shape = (None if known is None else known - 1, None, *field.shape[1:])
            field = Field(field.dtype, shape, ragged=True)
        columns[name] = field
    return columns


class RaggedBatch(Batch):
    """A batch with ragged columns."""

    def _column(self, name: str) -> Any:
        if OFFSETS + name not in self._slots:
            return super()._column(name)
        value = self._cache.get(name)
        if value is None:
            own, array, dtype = self._framework, self.array(name), self._slots[name].dtype
            values = own.strings(array) if dtype == BYTES else own.numbers(array, dtype, True)
            value = self._cache[name] = own.ragged(values, self._offsets(name))
        return value

    def _offsets(self, name: str) -> Any:
        """Return the framework's array of offsets, shared with columns of equal offsets."""
        own = OFFSETS + name
        array = self.array(own)
        for other, value in list(self._cache.items()):
            if other.startswith(OFFSETS) and np.array_equal(super().array(other), array):
                self._cache[own] = value
                return value
        return self._cache.setdefault(own, self._framework.numbers(array, "int64", True))

    def array(self, name: str) -> np.ndarray:
        array = super().array(name)
        if not name.startswith(OFFSETS):
            return array
        count = self._slots[name.removeprefix(OFFSETS)].shape[0]
        fits = array.shape == (self.rows + 1,) and array[0] == 0 and array[-1] == count
        if not fits or (array[1:] < array[:-1]).any():  # frameworks compute with them unchecked
            raise ProtocolError(f"the offsets of column {name.removeprefix(OFFSETS)!r} do not fit")
        return array
