"""The messages of a producer and the owner of a partition of a log, and the bytes of an item.

    producer                               owner of the partition
      Produce ─────────────────────────►     to the locator first, which answers ServedShare
      ◄───────────────────────── Appended    what of this name is durable; or Refused, or Pulse
      Append       + keys, columns ────►     items, each with the number after the one before
      ◄───────────────────────── Appended    cumulative, so any of them may be lost
      ◄───────────────────────── Unknown     greet again: items are missing, or the owner is new
      Bye ─────────────────────────────►     all is durable, and nothing will come again

An item opens a sequence (its context), adds steps, ends it, or is a whole example, which has all
columns, those of steps last.  The bytes of
items follow one another in frame 2 of an Append, and their keys in frame 1:

    column, for each of its fields:   entries u32 │ their numbers, little-endian, in C order
            of byte strings:          entries u32 │ length of each u32 … │ bytes

The context of a sequence and a fixed column have one entry, a column of steps one for each step.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Annotated, Final, NamedTuple

import numpy as np

from . import dtypes
from .checks import Count, Counts, Flag, Plain, Signed, Text, check_text, list_of
from .codec import message
from .errors import ProtocolError
from .schema import Field
from .step_messages import FROM_SERVER, FROM_TRAINER

#: Kinds of items.
OPEN, STEPS, END, ABORT, WHOLE = range(5)
#: Maximum bytes of an item, and of a key.
MAX_ITEM_BYTES: Final = 16 * 1024**2
MAX_KEY_BYTES: Final = 1024
#: Credit that an item takes beside its bytes: those of the head of its record.
HEAD_BYTES: Final = 60
#: Maximum number of items of one Append: their numbers fit its header.
MAX_ITEMS: Final = 512
_COUNT = struct.Struct("<I")
#: Bytes of the number of entries of a column.
COUNT_BYTES: Final = _COUNT.size


class Item(NamedTuple):
    """The numbers of an item, which an Append has one after another."""

    kind: int
    key_bytes: int
    first: int  # number of its first step in the sequence
    steps: int  # of a whole example with columns of several lengths 0
    version: int
    nbytes: int

    @property
    def cost(self) -> int:
        """The credit that it takes: its bytes in the log."""
        return HEAD_BYTES + self.key_bytes + self.nbytes


@message(FROM_TRAINER, 13)
class Produce:
    """First message of a producer at each partition of a log."""

    version: Count  # of the protocol
    library: Text
    log: Text
    name: Text  # of the producer, the same in each of its lives
    birth: Count = 0  # when this life began: the later one counts
    partition: Signed = -1  # -1: where are the owners?
    connection: Count = 0  # grows with each greeting of this life
    heard: Count = 0  # number of the last item whose answer it knows
    reopens: Count = 0  # openings of sequences that it sends again


@message(FROM_TRAINER, 14)
class Append:
    """Items from number ``number`` on; without items it says only what it wants and has heard."""

    partition: Count
    number: Count
    items: Counts = ()  # six numbers of each, see Item
    heard: Count = 0
    wants: Count = 0  # sequences that it has to open, and no place for them
    closes: Flag = False  # the log takes no more


@message(FROM_SERVER, 14)
class Appended:
    """So much is durable, and so much may be sent.

    The first answer to a Produce has the schema, and in frame 1 the open sequences of this name,
    see ``pack_open``.
    """

    partition: Count
    connection: Count  # that of the last Produce
    stored: Count  # number of the last item of this name that is durable
    granted: Count  # credit that this connection may spend in all
    places: Count  # sequences that it may open
    refused: Counts = ()  # numbers of items above ``heard`` that were refused …
    reasons: Annotated[tuple[str, ...], list_of(check_text)] = ()  # … and why
    closed: Flag = False  # the log takes no more, and all of this partition is durable
    schema: Plain = None  # the columns of the log, see schema.py: those of steps have any length


class Packed(NamedTuple):
    """Entries of one column, as bytes."""

    entries: int
    lengths: bytes  # of byte strings
    data: bytes


def pack_entries(field: Field, values: np.ndarray) -> Packed:
    """Return a column's entries.  ``values``: numbers, or an object array of bytes."""
    count = len(values) if field.ragged_dims else 1
    if field.dtype != dtypes.BYTES:
        return Packed(count, b"", values.tobytes())
    strings = values.ravel().tolist()
    lengths = np.array([len(one) for one in strings], "<u4").tobytes()
    return Packed(count, lengths, b"".join(strings))


def bytes_of(columns: Sequence[Packed]) -> int:
    """Return the number of an item's bytes, less those of its columns' counts."""
    return sum(len(lengths) + len(data) for _, lengths, data in columns)


def body_of(pieces: Sequence[Sequence[Packed]]) -> bytes:
    """Return the bytes of an item, of whose columns each piece has some entries."""
    parts = list[bytes]()
    for column in zip(*pieces, strict=True):
        parts.append(_COUNT.pack(sum(count for count, _, _ in column)))
        parts += [lengths for _, lengths, _ in column if lengths]
        parts += [data for _, _, data in column]
    return b"".join(parts)


def entries_of(
    fields: Mapping[str, Field], data: memoryview
) -> Iterator[tuple[int, np.ndarray, memoryview]]:
    """Yield of each column its number of entries, the lengths of its byte strings, and its bytes.

    ProtocolError where the bytes do not fit the fields.
    """
    at = 0
    for name, field in fields.items():
        if at + _COUNT.size > len(data):
            raise ProtocolError(f"column {name!r} lacks its number of entries")
        (entries,) = _COUNT.unpack_from(data, at)
        steps = field.ragged_dims
        if not steps and entries != 1:
            raise ProtocolError(f"column {name!r} has {entries} entries, not 1")
        at, elements = at + _COUNT.size, entries * prod(map(int, field.shape[steps:]))  # type: ignore[arg-type]
        lengths = _NONE
        if field.dtype != dtypes.BYTES:
            size = elements * dtypes.numpy_dtype(field.dtype).itemsize
        elif at + 4 * elements > len(data):
            raise ProtocolError(f"column {name!r} lacks the lengths of {elements} byte strings")
        else:
            lengths = np.frombuffer(data, "<u4", elements, at)
            at, size = at + 4 * elements, int(lengths.sum(dtype=np.int64))
        if at + size > len(data):
            raise ProtocolError(
                f"column {name!r} needs {size} bytes, and {len(data) - at} are left"
            )
        yield entries, lengths, data[at : at + size]
        at += size
    if at != len(data):
        raise ProtocolError(f"{len(data) - at} bytes follow the last column")


_NONE = np.empty(0, "<u4")


def pack_open(sequences: Mapping[bytes, int]) -> bytes:
    """Return open sequences as bytes: how many, bytes of each key and its steps, the keys."""
    numbers = np.array([[len(key), steps] for key, steps in sequences.items()], "<u4")
    return _COUNT.pack(len(sequences)) + numbers.tobytes() + b"".join(sequences)


def unpack_open(data: bytes) -> dict[bytes, int]:
    """Return what ``pack_open`` has packed; ProtocolError for other bytes."""
    count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else 0
    at, found = _COUNT.size + 8 * count, dict[bytes, int]()
    if at <= len(data):
        for size, steps in (
            np.frombuffer(data, "<u4", 2 * count, _COUNT.size).reshape(-1, 2).tolist()
        ):
            found[data[at : at + size]] = steps
            at += size
    if at != len(data):
        raise ProtocolError(f"{count} open sequences do not fit {len(data)} bytes")
    return found
