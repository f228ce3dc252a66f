"""Where the arrays of a batch lie in its block of bytes.

A block is the same over shared memory and TCP: arrays one after the other, each at a multiple of
64 bytes from the block's start, which itself is aligned to 64 bytes.  Frameworks require that of
memory that they import without a copy; TensorFlow aborts the process on other memory.

    numbers   C order, native (little) endian
    bytes     int64 offsets [n + 1], then the strings back to back
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from struct import unpack_from
from sys import maxsize
from typing import TYPE_CHECKING, Any

import numpy as np

from . import limits
from .dtypes import BYTES, DTYPES, NUMPY_OF, numpy_dtype
from .errors import ProtocolError
from .record import record
from .schema import Field, rows_open

if TYPE_CHECKING:
    from .step_messages import Given

ALIGNMENT = 64

#: Size of the pieces of a large copy.  On AMD the C library copies more than the second cache of a
#: core holds (512 kB or more) by a loop that reads the destination, too: 19 MB take a fifth longer.
_PIECE = 256 * 1024
#: Maximum count of equally long strings with remembered offsets: 16 arrays of 512 kB are kept.
MOST_EVEN = 1 << 16
#: Number of lists of columns that are remembered: most batches of a feed have one of a few.
_MOST_KNOWN = 64
#: Bytes of an entry of an object array, which strings become.
_POINTER = 8


@record
class ColumnPlace:
    """One array in a block."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    numpy: np.dtype | None = None  # of numbers, in a batch that came


def arrange(arrays: Sequence[tuple[str, tuple[int, ...], int]]) -> tuple[list[ColumnPlace], int]:
    """Return slots for arrays of ``(dtype, shape, bytes of string data)`` and the block's size."""
    slots = []
    offset = 0
    for dtype, shape, string_bytes in arrays:
        count = prod(shape)
        if dtype == BYTES:
            nbytes = 8 * (count + 1) + string_bytes
        else:
            nbytes = count * numpy_dtype(dtype).itemsize
        slots.append(ColumnPlace(dtype, shape, offset, nbytes))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return slots, offset


def check_place(slot: ColumnPlace, block_bytes: int) -> None:
    """Raise ProtocolError unless the slot lies in its block and its size fits its dtype and shape.

    After this check no offset or size of the peer can make ``array_at`` or ``strings_at`` fail.
    """
    shape, offset, nbytes = slot.shape, slot.offset, slot.nbytes
    if len(shape) > limits.MAX_RANK or not all(type(d) is int and 0 <= d < 2**63 for d in shape):
        raise ProtocolError(f"an array has the impossible shape {shape!r:.80}")
    if type(offset) is not int or type(nbytes) is not int:
        raise ProtocolError(f"an array lies at {offset!r:.40}+{nbytes!r:.40}, not at integers")
    if offset % ALIGNMENT or not 0 <= offset <= offset + nbytes <= block_bytes:
        raise ProtocolError(
            f"an array at {offset}+{nbytes} does not lie in its block of {block_bytes} bytes, "
            f"at a multiple of {ALIGNMENT}"
        )
    if slot.dtype not in DTYPES:
        raise ProtocolError(f"an array has dtype {slot.dtype!r:.80}, which is not allowed")
    count = prod(shape)
    if slot.dtype == BYTES:
        item = _POINTER
        fits = nbytes >= 8 * (count + 1)
    else:
        item = numpy_dtype(slot.dtype).itemsize
        fits = nbytes == count * item
    # An array with a dimension of 0 takes no memory, but numpy still multiplies the others.
    if not fits or (not count and prod(d or 1 for d in shape) * item >= 2**63):
        raise ProtocolError(f"{nbytes} bytes do not hold {slot.dtype} of shape {list(shape)!s:.80}")


class KnownSlots:
    """Where the columns of a feed's batches lie: most batches lie as one of a few before them.

    A list of columns that was checked is recognised by its identity.
    """

    def __init__(
        self,
        schema: Mapping[str, Field],
        per_row: Collection[str] = (),
        most_rows: int = maxsize,
    ) -> None:
        """``per_row``: the columns that have an entry for each row of their batch."""
        #: As batches may have them: a trainer can change the number of rows for all of them.
        self._fields = list(rows_open(schema).items())
        self._per_row, self._most_rows = per_row, most_rows
        self._known: dict[tuple[int, int, int], tuple[Any, dict[str, ColumnPlace]]] = {}
        self._last: dict[str, ColumnPlace] = {}  # those of the batch before

    def of(self, given: Given) -> dict[str, ColumnPlace]:
        """Return where each column lies; ProtocolError where the batch does not fit the schema."""
        columns, rows, nbytes = given.columns, given.rows, given.nbytes
        known = self._known.get(key := (id(columns), rows, nbytes))
        if known is not None:  # it keeps its list, so no other has that id
            return known[1]
        if len(columns) != len(self._fields):
            raise ProtocolError(
                f"a batch does not have the {len(self._fields)} columns of its feed"
            )
        if rows > self._most_rows:
            raise ProtocolError(f"a batch has {rows} rows; its feed has {self._most_rows}")
        slots = {}
        for (name, field), (offset, size, dims) in zip(self._fields, columns, strict=True):
            dtype = None if field.dtype == BYTES else numpy_dtype(field.dtype)
            slot = slots[name] = ColumnPlace(field.dtype, tuple(dims), offset, size, dtype)
            last = self._last.get(name)
            alike = last is not None and last.shape == slot.shape and last.nbytes == size
            if not alike or offset % ALIGNMENT or offset + size > nbytes:
                _check(name, field, slot, nbytes)
            if name in self._per_row and dims[0] != rows:
                raise ProtocolError(f"column {name!r} of a batch of {rows} rows has {dims[0]}")
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = columns, slots
        self._last = slots
        return slots


def _check(name: str, field: Field, slot: ColumnPlace, block_bytes: int) -> None:
    fault = "" if field.admits(slot.shape) else f"its shape {[*slot.shape]} is not one of {field}"
    try:
        check_place(slot, block_bytes)
    except ProtocolError as error:
        fault = str(error)
    if fault:
        raise ProtocolError(f"column {name!r} of a batch is described wrongly: {fault}")


def array_at(block: np.ndarray, slot: ColumnPlace) -> np.ndarray:
    """Return the numeric array of a slot as a view of its block (uint8)."""
    dtype = NUMPY_OF.get(slot.dtype) or numpy_dtype(slot.dtype)
    return np.ndarray(slot.shape, dtype, block, slot.offset)


def strings_at(block: np.ndarray, slot: ColumnPlace) -> np.ndarray:
    """Return the byte strings of a slot as an object array.  ProtocolError for false offsets."""
    count = prod(slot.shape)
    start = slot.offset + 8 * (count + 1)
    room = slot.nbytes - 8 * (count + 1)
    (end,) = unpack_from("=q", block.data, start - 8)
    width = end // max(1, count)
    even = width > 0 and end <= room and count <= MOST_EVEN  # all of one length, as ids mostly are
    if even and block[slot.offset : start].tobytes() == even_offsets(count, width):
        strings = np.ndarray((count,), f"V{width}", block, start)
        return strings.astype(object).reshape(slot.shape)
    offsets = np.ndarray((count + 1,), np.int64, block, slot.offset)
    # Compared, not subtracted: differences wrap around.
    falls = bool((offsets[1:] < offsets[:-1]).any())
    if int(offsets[0]) != 0 or end > room or falls:
        raise ProtocolError("the offsets of an array of strings do not fit its data")
    data = block[start : start + end].tobytes()
    out = np.empty(count, object)
    out[:] = [data[a:b] for a, b in pairwise(offsets.tolist())]
    return out.reshape(slot.shape)


@lru_cache(16)
def even_offsets(count: int, width: int) -> bytes:
    """Return the offsets of strings that are all of one length."""
    return (np.arange(count + 1) * width).tobytes()


def aligned_bytes(nbytes: int) -> np.ndarray:
    """Return fresh memory (uint8) whose address is a multiple of the alignment."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes]


def copy_bytes(out: np.ndarray, source: np.ndarray) -> None:
    """Copy contiguous bytes (uint8) between arrays of one size, piece by piece."""
    to, data = out.data, source.data
    for at in range(0, out.nbytes, _PIECE):
        to[at : at + _PIECE] = data[at : at + _PIECE]
