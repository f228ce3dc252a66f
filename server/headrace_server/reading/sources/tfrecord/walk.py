"""The walk over one tf.train.Example or SequenceExample, which finds where wanted values lie.

    Example          1: Features
    SequenceExample  1: Features (context)   2: FeatureLists
    Features         1: map entry { 1: name  2: Feature }   repeated
    FeatureLists     1: map entry { 1: name  2: FeatureList }   repeated
    FeatureList      1: Feature   repeated, one per step
    Feature          one of  1: BytesList   2: FloatList   3: Int64List
    …List            1: value   repeated; numbers packed or one by one

It decodes no value.  As in any protobuf reader, later fields win over earlier ones of the same
name, lists in several pieces are joined, and unknown fields are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

BYTES: Final = 1
FLOATS: Final = 2
INTS: Final = 3
KIND_NAMES: Final = {0: "no value", BYTES: "bytes_list", FLOATS: "float_list", INTS: "int64_list"}

#: Bytes of the longest number of 64 bits, 7 in each.
MOST_BYTES: Final = 10
#: The tag of a number that is not packed, by kind, and the sizes of fields by wire type.
_SINGLE: Final = {BYTES: -1, FLOATS: 0x0D, INTS: 0x08}
_SIZES: Final = {1: 8, 5: 4}

#: The tags of features and of feature lists.
MAPS: Final = (0x0A, 0x12)

#: Where values lie in a record: the first byte, and the number of bytes.
Span = tuple[int, int]


class Malformed(Exception):
    """The bytes are no message of the expected type."""


class FoundValues:
    """The values of one feature of one record: their kind, and where they lie.

    ``steps`` is the number of steps where they come from feature_lists, else None, and ``widths``
    the numbers of values that steps were seen to have.
    """

    __slots__ = ("kind", "spans", "steps", "widths")

    def __init__(self) -> None:
        self.kind = 0
        self.spans: list[Span] = []
        self.steps: int | None = None
        self.widths: set[int] = set()


def walk(
    record: memoryview,
    wanted: Mapping[bytes, int],
    listed: Mapping[bytes, int],
) -> list[FoundValues | None]:
    """Return the found features by slot.

    ``wanted``: the slot of each name to look for among the features, ``listed`` among the
    feature_lists (whose values take precedence).
    """
    found: list[FoundValues | None] = [None] * len(wanted)
    lists: dict[int, FoundValues] = {}
    try:
        for tag, start, stop in fields_in(record, 0, len(record)):
            if tag == 0x0A:
                names, read = wanted, _feature
            elif tag == 0x12 and listed:
                names, read = listed, _feature_list
            else:
                continue
            for name, pieces in map_entries(record, start, stop):
                slot = names.get(name)
                if slot is not None:
                    value = FoundValues()
                    if tag == 0x0A:
                        found[slot] = value
                    else:
                        lists[slot], value.steps = value, 0
                    for a, b in pieces:
                        read(record, a, b, value)
    except IndexError:
        raise Malformed("a field goes past the end") from None
    for slot, value in lists.items():
        found[slot] = value
    return found


def _varint(record: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = record[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= 7 * MOST_BYTES:
            raise Malformed(
                f"a number of more than {MOST_BYTES} bytes at byte {position - MOST_BYTES}"
            )


def written(number: int) -> bytes:
    """Return a number as a varint."""
    return (
        number.to_bytes(1)
        if number < 0x80
        else bytes([number & 0x7F | 0x80]) + written(number >> 7)
    )


def fields_in(record: memoryview, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields between two bytes: tag, and start and end of the content."""
    while position < stop:
        at, tag = position, record[position]
        start = at + 1
        if not 8 <= tag < 0x80:
            tag, start = _varint(record, at)
            if tag >> 3 == 0 or (tag < 0x80 and start > at + 1):
                raise Malformed(f"no field begins at byte {at}")
        wire = tag & 7
        if wire == 2:
            size = record[start]
            start += 1
            if size >= 0x80:
                size, start = _varint(record, start - 1)
            position = start + size
            if position > stop:
                raise Malformed(f"a field of {size} bytes at byte {start} goes past byte {stop}")
        elif wire == 0:
            _, position = _varint(record, start)
        elif wire in _SIZES:
            position = start + _SIZES[wire]
        else:
            raise Malformed(f"wire type {wire} at byte {at}")
        if position > stop:
            raise Malformed(f"the field at byte {at} goes past byte {stop}")
        yield tag, start, position


def map_entries(
    record: memoryview, position: int, stop: int
) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
    """Yield the entries of a map: name and spans of the value (one, except from odd writers)."""
    for tag, start, end in fields_in(record, position, stop):
        if tag == 0x0A:
            name, pieces = b"", []
            for part, a, b in fields_in(record, start, end):
                if part == 0x0A:
                    name = record[a:b].tobytes()
                elif part == 0x12:
                    pieces.append((a, b))
            yield name, pieces


def names_in(record: memoryview) -> list[str]:
    """Return the names of all features and feature lists of a sound record."""
    maps = ((start, stop) for tag, start, stop in fields_in(record, 0, len(record)) if tag in MAPS)
    entries = (entry for start, stop in maps for entry in map_entries(record, start, stop))
    return [name.decode(errors="replace") for name, _ in entries]


def _feature(record: memoryview, position: int, stop: int, found: FoundValues) -> None:
    for tag, start, end in fields_in(record, position, stop):
        if tag == 0x0A or tag == 0x12 or tag == 0x1A:
            kind = tag >> 3
            if kind != found.kind:  # a oneof: the last kind set counts
                found.kind = kind
                found.spans = []
            _list(record, start, end, kind, found.spans)


def _list(record: memoryview, position: int, stop: int, kind: int, spans: list[Span]) -> None:
    """Add the values of a BytesList, FloatList or Int64List."""
    for tag, start, end in fields_in(record, position, stop):
        size = end - start
        if tag == 0x0A:
            if kind == FLOATS and size % 4:
                raise Malformed(f"packed floats of {size} bytes at byte {start}, no multiple of 4")
            if kind == INTS and size and record[end - 1] >= 0x80:
                raise Malformed(f"packed numbers end in the middle of one at byte {end}")
            if size or kind == BYTES:
                spans.append((start, size))
        elif tag == _SINGLE[kind]:
            spans.append((start, size))


def _feature_list(record: memoryview, position: int, stop: int, found: FoundValues) -> None:
    found.steps = found.steps or 0
    for tag, start, end in fields_in(record, position, stop):
        if tag != 0x0A:
            continue
        step = FoundValues()
        _feature(record, start, end, step)
        if step.kind != found.kind:
            if found.steps:
                raise Malformed(
                    f"step {found.steps} holds {KIND_NAMES[step.kind]} after steps of "
                    f"{KIND_NAMES[found.kind]}"
                )
            found.kind = step.kind
        found.widths.add(_width(record, step))
        found.spans += step.spans
        found.steps += 1


def _width(record: memoryview, step: FoundValues) -> int:
    """Return the number of values of one step."""
    if step.kind == FLOATS:
        return sum(size // 4 for _, size in step.spans)
    if step.kind == INTS:
        return sum(
            sum(byte < 0x80 for byte in record[start : start + size]) for start, size in step.spans
        )
    return len(step.spans)


def varints(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values (int64) of varints back to back, and the index of the last byte of each.

    The last byte must end a number.  Those of more than ``MOST_BYTES`` have an arbitrary value.
    """
    ends = np.flatnonzero(raw < 0x80)
    if ends.size == raw.size:
        return raw.astype(np.int64), ends
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    sizes = ends - starts + 1
    values = (raw[starts] & 0x7F).astype(np.uint64)
    for k in range(1, min(int(sizes.max()), MOST_BYTES)):
        rows = np.flatnonzero(sizes > k)
        values[rows] |= (raw[starts[rows] + k] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    return values.view(np.int64), ends
