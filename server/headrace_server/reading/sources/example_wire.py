"""Walks one tf.train.Example or SequenceExample and finds the places of the wanted values.

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

from collections.abc import Mapping
from typing import Final

import numpy as np

BYTES: Final = 1
FLOATS: Final = 2
INTS: Final = 3
KIND_NAMES: Final = {0: "no value", BYTES: "bytes_list", FLOATS: "float_list", INTS: "int64_list"}

#: Spans of equal size, equally far apart: start in the record, size, distance, number of spans.
Run = tuple[int, int, int, int]

#: Least number of steps of a FeatureList, or of single numbers, to compare them as one array.
_MANY = 4


class Malformed(Exception):
    """The bytes are no message of the expected type."""


class FoundValues:
    """The values of one feature of one record: their kind, and where they lie.

    ``steps`` is the number of steps where they come from feature_lists, else None, and ``widths``
    the numbers of values that steps were seen to have.
    """

    __slots__ = ("kind", "runs", "steps", "widths")

    def __init__(self) -> None:
        self.kind = 0
        self.runs: list[Run] = []
        self.steps: int | None = None
        self.widths: set[int] = set()


def walk(
    record: memoryview,
    wanted: Mapping[bytes, int],
    listed: Mapping[bytes, int],
    opaque: list[tuple[int, int]] | None = None,
) -> list[FoundValues | None]:
    """Return the found features by slot.  ``wanted``: the slot of each name to look for among the
    features, ``listed`` among the feature_lists (whose values take precedence).  ``opaque``
    collects
    (start, stop) of the values of other features, which are skipped unread."""
    found: list[FoundValues | None] = [None] * len(wanted)
    lists: dict[int, FoundValues] = {}
    try:
        position, size = 0, len(record)
        while position < size:
            tag = record[position]
            if tag == 0x0A or (tag == 0x12 and listed):
                start, position = span(record, position + 1, size)
                names = wanted if tag == 0x0A else listed
                read = _feature if tag == 0x0A else _feature_list
                for name, pieces in map_entries(record, start, position):
                    slot = names.get(name)
                    if slot is not None:
                        value = FoundValues()
                        if tag == 0x0A:
                            found[slot] = value
                        else:
                            lists[slot], value.steps = value, 0
                        for a, b in pieces:
                            read(record, a, b, value)
                    elif opaque is not None:
                        opaque += pieces
            else:
                position = _skip(record, position, size)
    except IndexError:
        raise Malformed("a field goes past the end of the record") from None
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
        if shift >= 70:
            raise Malformed(f"a number of more than 10 bytes at byte {position - 10}")


def span(record: memoryview, position: int, stop: int) -> tuple[int, int]:
    """Return start and end of the bytes of a field, whose length is at ``position``."""
    length = record[position]
    position += 1
    if length >= 0x80:
        length, position = _varint(record, position - 1)
    if position + length > stop:
        raise Malformed(f"a field of {length} bytes at byte {position} goes past byte {stop}")
    return position, position + length


def _skip(record: memoryview, position: int, stop: int) -> int:
    """Return the position after a skipped field."""
    at = position
    tag, position = _varint(record, position)
    if tag >> 3 == 0 or (tag < 0x80 and position > at + 1):
        raise Malformed(f"no field begins at byte {at}")
    wire = tag & 7
    if wire == 0:
        _, position = _varint(record, position)
    elif wire == 1:
        position += 8
    elif wire == 2:
        _, position = span(record, position, stop)
    elif wire == 5:
        position += 4
    else:
        raise Malformed(f"wire type {wire} at byte {at}")
    if position > stop:
        raise Malformed(f"the field at byte {at} goes past byte {stop}")
    return position


def map_entries(
    record: memoryview, position: int, stop: int
) -> list[tuple[bytes, list[tuple[int, int]]]]:
    """Yield the entries of a map: name and spans of the value (one, except from odd writers)."""
    entries = []
    while position < stop:
        if record[position] != 0x0A:
            position = _skip(record, position, stop)
            continue
        position, end = span(record, position + 1, stop)
        name, pieces = b"", []
        while position < end:
            tag = record[position]
            if tag == 0x0A:
                start, position = span(record, position + 1, end)
                name = record[start:position].tobytes()
            elif tag == 0x12:
                start, position = span(record, position + 1, end)
                pieces.append((start, position))
            else:
                position = _skip(record, position, end)
        entries.append((name, pieces))
    return entries


def _feature(record: memoryview, position: int, stop: int, found: FoundValues) -> None:
    while position < stop:
        tag = record[position]
        if tag == 0x0A or tag == 0x12 or tag == 0x1A:
            start, position = span(record, position + 1, stop)
            kind = tag >> 3
            if kind != found.kind:  # a oneof: the last kind set counts
                found.kind = kind
                found.runs = []
            _list(record, start, position, kind, found.runs)
        else:
            position = _skip(record, position, stop)


def _list(record: memoryview, position: int, stop: int, kind: int, runs: list[Run]) -> None:
    """Add the values of a BytesList, FloatList or Int64List."""
    while position < stop:
        tag = record[position]
        if tag == 0x0A:
            start, position = span(record, position + 1, stop)
            size = position - start
            if kind == FLOATS and size % 4:
                raise Malformed(f"packed floats of {size} bytes at byte {start}, no multiple of 4")
            if kind == INTS and size and record[position - 1] >= 0x80:
                raise Malformed(f"packed numbers end in the middle of one at byte {position}")
            if size or kind == BYTES:
                runs.append((start, size, 0, 1))
        elif tag == 0x0D and kind == FLOATS:
            start = position + 1
            count, rest = divmod(stop - position, 5)
            if rest or record[position:stop:5].tobytes() != b"\x0d" * count:
                count = 1
            position += 5 * count
            if position > stop:
                raise Malformed(f"a float at byte {start} goes past byte {stop}")
            runs.append((start, 4, 5, count))
        elif tag == 0x08 and kind == INTS:
            start = position + 1
            _, position = _varint(record, start)
            if position > stop:
                raise Malformed(f"the number at byte {start} goes past byte {stop}")
            runs.append((start, position - start, 0, 1))
        else:
            position = _skip(record, position, stop)


def _feature_list(record: memoryview, position: int, stop: int, found: FoundValues) -> None:
    while position < stop:
        if record[position] != 0x0A:
            position = _skip(record, position, stop)
            continue
        start, end = span(record, position + 1, stop)
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
        count = _alike(record, position, end - position, stop, step)
        if count > 1:
            offset, size, _, _ = step.runs[0]
            found.runs.append((offset, size, end - position, count))
        else:
            found.runs += step.runs
        found.steps = (found.steps or 0) + count
        position += count * (end - position)


def _width(record: memoryview, step: FoundValues) -> int:
    """Return the number of values of one step."""
    if step.kind == FLOATS:
        return sum(size // 4 * count for _, size, _, count in step.runs)
    if step.kind == INTS:
        return sum(
            sum(byte < 0x80 for byte in record[start : start + size])
            for start, size, _, _ in step.runs
        )
    return len(step.runs)


def _alike(record: memoryview, position: int, stride: int, stop: int, step: FoundValues) -> int:
    """Return how many steps from here on are written like this one, except for the floats."""
    count = (stop - position) // stride
    if count < _MANY or step.kind != FLOATS or len(step.runs) != 1 or step.runs[0][3] != 1:
        return 1
    first, size = step.runs[0][0] - position, step.runs[0][1]
    steps = np.frombuffer(record, np.uint8, count * stride, position).reshape(count, stride)
    same = (steps[:, :first] == steps[0, :first]).all(axis=1)
    same &= (steps[:, first + size :] == steps[0, first + size :]).all(axis=1)
    differs = np.flatnonzero(~same)
    return int(differs[0]) if differs.size else count


def varints(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values (int64) of varints back to back, and the index of the last byte of each.

    The last byte must end a number.  Malformed where one has more than 10 bytes.
    """
    ends = np.flatnonzero(raw < 0x80)
    if ends.size == raw.size:
        return raw.astype(np.int64), ends
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    sizes = ends - starts + 1
    longest = int(sizes.max())
    if longest > 10:
        raise Malformed("a number of more than 10 bytes")
    values = (raw[starts] & 0x7F).astype(np.uint64)
    for k in range(1, longest):
        rows = np.flatnonzero(sizes > k)
        values[rows] |= (raw[starts[rows] + k] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    return values.view(np.int64), ends
