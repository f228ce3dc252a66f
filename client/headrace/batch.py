"""A batch in a trainer's hands: a mapping from column names to arrays of its framework."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from headrace_proto.dtypes import BYTES, name_of, numpy_dtype
from headrace_proto.errors import FeedClosed, ProtocolError
from headrace_proto.layout import Slot, array_at, check_slot, strings_at
from headrace_proto.messages import Delivery
from headrace_proto.schema import RESERVED, Field

__all__ = ["Batch", "Framework", "KnownSlots", "NumpyFramework", "replayed", "slot_of", "slots_of"]


class Framework(Protocol):
    """How arrays become what a framework works with."""

    name: str

    def numbers(self, array: np.ndarray, dtype: str, aligned: bool = False) -> Any:
        """A tensor on the memory of a writable array, copied where that is not aligned.

        ``aligned`` says that it is known to be: a column lies so in its block.
        """

    def strings(self, array: np.ndarray) -> Any:
        """The framework's form of an object array of ``bytes``."""

    def owns(self, value: Any) -> bool:
        """Whether a value is a tensor of this framework."""

    def described(self, value: Any) -> tuple[str, tuple[int, ...]]:
        """Wire dtype and shape of an own tensor, wherever it lies."""

    def state_in(self, value: Any, dtype: str) -> np.ndarray:
        """An own tensor as a numpy array, copied only where it lies on another device."""

    def kept(self, value: Any) -> Any:
        """An own tensor as it is now, to be read later, on its device."""

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A tensor of zeros."""

    def merged(
        self, value: Any, source: np.ndarray | None, rows: np.ndarray, initial: np.ndarray
    ) -> Any:
        """Rows ``source`` of an own tensor (None: all of them), with ``rows`` then set to
        ``initial``, as another tensor on its device."""


class NumpyFramework:
    """Arrays as they are."""

    name = "numpy"

    def numbers(self, array: np.ndarray, dtype: str, aligned: bool = False) -> Any:
        return array

    def strings(self, array: np.ndarray) -> Any:
        return array

    def owns(self, value: Any) -> bool:
        return isinstance(value, (np.ndarray, np.generic))

    def described(self, value: Any) -> tuple[str, tuple[int, ...]]:
        return name_of(value.dtype), value.shape

    def state_in(self, value: Any, dtype: str) -> np.ndarray:
        return np.asarray(value)

    def kept(self, value: Any) -> Any:
        return value

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        return np.zeros(shape, numpy_dtype(dtype))

    def merged(
        self, value: Any, source: np.ndarray | None, rows: np.ndarray, initial: np.ndarray
    ) -> Any:
        merged = np.array(value) if source is None else value[source]
        merged[rows] = initial
        return merged


def slots_of(delivery: Delivery, schema: Mapping[str, Field]) -> dict[str, Slot]:
    """Where each column lies; ProtocolError when the message does not fit the schema."""
    columns = delivery.columns
    if not isinstance(columns, list) or len(columns) != len(schema):
        raise ProtocolError(f"a batch does not have the {len(schema)} columns of its feed")
    return {
        name: slot_of(name, field, column, delivery.nbytes)
        for (name, field), column in zip(schema.items(), columns, strict=True)
    }


class KnownSlots:
    """Slots of a feed's batches, which mostly lie as those of the batch before.

    The same list of columns is known again by its identity: nothing that is equal to a right one,
    as 2.0 is to 2, is taken for it.
    """

    def __init__(self) -> None:
        self._last: tuple[Any, int, dict[str, Slot]] | None = None

    def of(self, delivery: Delivery, schema: Mapping[str, Field]) -> dict[str, Slot]:
        """As ``slots_of``, for one schema."""
        last = self._last
        if last is None or last[0] is not delivery.columns or last[1] != delivery.nbytes:
            slots = slots_of(delivery, schema)
            last = self._last = delivery.columns, delivery.nbytes, slots
        return last[2]


def slot_of(name: str, field: Field, column: Any, block_bytes: int) -> Slot:
    """Where one column lies; ProtocolError when its description does not fit."""
    try:
        offset, nbytes, shape = column
        if not all(type(v) is int for v in (offset, nbytes, *shape)):
            raise ValueError(f"{column!r:.80} are not [offset, nbytes, [dimension, …]]")
        slot = Slot(field.dtype, tuple(shape), offset, nbytes)
        check_slot(slot, block_bytes)
        if not field.admits(slot.shape):
            raise ValueError(f"its shape {shape} is not one of {field}")
    except (TypeError, ValueError, ProtocolError) as error:
        raise ProtocolError(f"column {name!r} of a batch is described wrongly: {error}") from None
    return slot


def replayed(meta: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Of which batch a delivery is a replay; None where it is none."""
    known = meta.get("replayed")
    if known is None:
        return None
    life, partition, number = known
    return int(life), int(partition), int(number)


class Batch(Mapping[str, Any]):
    """A mapping of column to array, each converted when it is first asked for.

    ``rows`` is how many it has; ``partition`` and ``number`` are its place in the stream.

    Arrays are views of memory that this batch shares with the server.  They may be written to and
    kept for as long as one likes: the memory is let go when the last of them is gone.
    """

    __slots__ = (
        "_block",
        "_cache",
        "_feed",
        "_framework",
        "_slots",
        "meta",
        "number",
        "partition",
        "rows",
        "token",
    )

    def __init__(
        self,
        delivery: Delivery,
        slots: dict[str, Slot],
        block: np.ndarray,
        framework: Framework,
        feed: weakref.ref[Any] | None = None,
    ) -> None:
        self.token = delivery.token
        self.partition = delivery.partition
        self.number = delivery.number
        self.rows = delivery.rows
        self.meta: Mapping[str, Any] = delivery.meta
        self._slots = slots  # of facts, too: their names begin with @
        self._block = block
        self._framework = framework
        self._feed = feed  # weakly: a batch that is kept does not keep the connection
        self._cache: dict[str, Any] = {}

    def commit(self) -> None:
        """Commit this batch, as ``feed.commit(batch)`` does."""
        feed = None if self._feed is None else self._feed()
        if feed is None:
            raise FeedClosed("batch.commit(): the feed of this batch is gone; connect again")
        feed.commit(self)

    def __getitem__(self, name: str) -> Any:
        value = self._cache.get(name)
        if value is None:
            slot = self._slots.get(name)
            if slot is None or name[0] == RESERVED:
                raise self._unknown(name)
            value = self._cache[name] = self._made(slot)
        return value

    def _made(self, slot: Slot) -> Any:
        """The framework's array of a column."""
        if slot.dtype == BYTES:
            return self._framework.strings(strings_at(self._block, slot))
        return self._framework.numbers(array_at(self._block, slot), slot.dtype, True)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole batch."""
        return int(self._block.nbytes)

    @property
    def replayed(self) -> tuple[int, int, int] | None:
        """Which batch this was when it was recorded (life, partition, number), in a replay."""
        return replayed(self.meta)

    @property
    def bucket(self) -> int:
        """The bucket that all rows are of.  AttributeError where the feed has no buckets."""
        bucket = self.meta.get("bucket")
        if bucket is None:
            raise AttributeError("batch.bucket: this feed has no buckets")
        return int(bucket)

    @property
    def length(self) -> Any:
        """Each row's length, where the feed is bucketed by length."""
        return self._fact("length", "it is not bucketed by length")

    @property
    def label(self) -> Any:
        """Each row's class, where the feed is stratified."""
        return self._fact("label", "it is not stratified")

    @property
    def rate(self) -> Any:
        """The rate at which each row was resampled, where the feed is weighted."""
        return self._fact("rate", "it has no weighted_resample")

    def _fact(self, name: str, why_not: str) -> Any:
        key = RESERVED + name
        value = self._cache.get(key)
        if value is None:
            slot = self._slots.get(key)
            if slot is None:
                raise AttributeError(f"batch.{name}: this feed tells none; {why_not}")
            value = self._cache[key] = self._made(slot)
        return value

    def array(self, name: str) -> np.ndarray:
        """A column as a numpy array, whatever the framework: a view, or an array of ``bytes``.

        What a batch tells of its rows is asked for as ``"@length"``, ``"@label"``, ``"@rate"``.
        """
        slot = self._slots.get(name)
        if slot is None:
            raise self._unknown(name)
        if slot.dtype == BYTES:
            return strings_at(self._block, slot)
        return array_at(self._block, slot)

    def _unknown(self, name: str) -> KeyError:
        return KeyError(f"{name!r} is not a column of this batch; it has {list(self)}")

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
