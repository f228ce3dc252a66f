"""The layout or template of one record, by which others are read many at a time.

    layout      records of the same length and the same bytes but for the values
    template    records of the same features in the same order, of any lengths

A layout comes from one walked record: where the wanted values lie, and all other bytes (tags,
lengths, names).  A record of the same length with the same other bytes has the same layout,
so comparing these bytes, eight at a time for all rows at once, replaces the walk.

    Features LEN { entry LEN { name  Feature LEN { kind LEN { values LEN payload } } } … }

A template is the sequence of names and kinds of one record.  All records are read in parallel, each
from its own position: a tag and a length at a time, for all of them as one array.  A record that
differs from the template is left to the walker of single records.  Only the usual form has a
template: every feature holds one packed list of numbers, or one string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace_server.reading.buffer_ranges import ranges

from .example_columns import spans_of
from .example_wire import FLOATS, INTS, Malformed, Run, fields_in, map_entries

#: Slots, and where the values of records lie: starts [rows, spans], and sizes alike or [spans].
Spans = list[tuple[int, np.ndarray, np.ndarray]]

#: Words of 8 bytes compared per row.  With more than that a walk is no slower.
_MAX_WORDS = 128
_TAG: Final = np.uint64(0xFF)
_MORE: Final = np.uint64(0x80)
_ONE: Final = np.uint64(1)
_BYTE: Final = np.uint64(8)
#: The highest bits of the first 4 bytes: a length below 256 MB ends at one of them.
_TOPS: Final = np.uint64(0x80808080)
_SEVENS: Final = tuple(
    (np.uint64(0x7F << (8 * k)), np.uint64(k), np.uint64(0x80 << (8 * k))) for k in range(4)
)


@dataclass(frozen=True, slots=True, eq=False)
class RecordLayout:
    """``spans``: the slots that it has, with starts in the record and sizes."""

    words: tuple[tuple[int, np.uint64, np.uint64], ...]  # offset, mask and masked content
    spans: Spans

    def match(
        self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[np.ndarray, Spans]:
        """Return a mask of the records of this length that match, and the places of values."""
        data_words = np.ndarray((data.size - 7,), "<u8", data, 0, (1,))
        differs = np.zeros(starts.size, np.uint64)
        for offset, mask, word in self.words:
            differs |= (data_words[starts + offset] ^ word) & mask
        at = starts[:, None]
        return differs == 0, [(slot, at + begins, sizes) for slot, begins, sizes in self.spans]


def learn_layout(
    record: np.ndarray,
    kinds: Sequence[int],
    found: Sequence[Sequence[Run] | None],
    opaque: Sequence[tuple[int, int]],
) -> RecordLayout | None:
    """Return the layout of a walked record (uint8); None where no other could share it.

    ``opaque``: (start, stop) of unwanted bytes, which may differ.
    """
    mask = np.full(record.size, 0xFF, np.uint8)
    for start, stop in opaque:
        mask[start:stop] = 0
    spans = [(slot, *spans_of(runs)) for slot, runs in enumerate(found) if runs is not None]
    for slot, *values in spans:
        mask[ranges(*values)] = 0
        listed = zip(*(v.tolist() for v in values), strict=True)
        for start, size in listed if kinds[slot] == INTS else ():
            # How long a single number is belongs to the layout; in packed ones the number of them
            # is counted row by row, and only where the last one ends belongs to it.
            single = np.count_nonzero(record[start : start + size] < 0x80) == 1
            mask[start if single else start + size - 1 : start + size] = 0x80
    words: list[tuple[int, np.uint64, np.uint64]] = []
    covered = 0
    for at in np.flatnonzero(mask).tolist():
        if at < covered:
            continue
        offset = min(at, record.size - 8)
        covered = offset + 8
        if len(words) == _MAX_WORDS:
            return None
        content = record[offset:covered].view("<u8")[0]
        words.append((offset, mask[offset:covered].view("<u8")[0], content))
    return RecordLayout(tuple(words), spans)


@dataclass(frozen=True, slots=True)
class _Entry:
    name: bytes  # preceded by its tag and length
    slot: int  # -1: not wanted
    kind: int


@dataclass(frozen=True, slots=True)
class Template:
    entries: tuple[_Entry, ...]

    @property
    def slots(self) -> frozenset[int]:
        return frozenset(entry.slot for entry in self.entries if entry.slot >= 0)

    def match(
        self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[np.ndarray, Spans]:
        """Return a mask of the matching records, and the places of the wanted values.

        The places of records that do not match are arbitrary.
        """
        front = _Front(data, starts)
        front.expect(front.length(0x0A), stops)
        spans: Spans = []
        for entry in self.entries:
            if not front.good.any():
                break
            end = front.length(0x0A)
            front.literal(entry.name)
            front.expect(front.length(0x12), end)
            if entry.slot >= 0:
                front.expect(front.length(entry.kind << 3 | 2), end)
                front.expect(front.length(0x0A), end)
                sizes = end - front.position
                spans.append((entry.slot, front.position[:, None], sizes[:, None]))
                if entry.kind == INTS:  # the last byte ends a number
                    last = data[np.clip(end - 1, 0, data.size - 1)]
                    front.good &= (sizes == 0) | (last < 0x80)
                elif entry.kind == FLOATS:
                    front.good &= sizes % 4 == 0
            front.position = end
        front.expect(front.position, stops)
        return front.good, spans


class _Front:
    """The position in each record; ``good``: the records that have matched so far."""

    def __init__(self, data: np.ndarray, starts: np.ndarray) -> None:
        self.words = np.ndarray((data.size - 7,), "<u8", data, 0, (1,))
        self.last = data.size - 8
        self.position = starts
        self.good = np.ones(starts.size, bool)

    def _next(self) -> np.ndarray:
        """Return the next 8 bytes of each; records at the very end of the buffer are not good."""
        if int(self.position.max()) > self.last:
            self.good &= self.position <= self.last
            self.position = np.minimum(self.position, self.last)
        words: np.ndarray = self.words[self.position]
        return words

    def length(self, tag: int) -> np.ndarray:
        """Read a tag and a length; return the position where the field ends."""
        word = self._next()
        self.good &= (word & _TAG) == tag
        word >>= _BYTE
        if not (word & _MORE).any():
            start = self.position + 2
            value = word & _TAG
        else:
            tops = ~word & _TOPS
            self.good &= tops != 0
            top = tops & (~tops + _ONE)  # the lowest: the last byte of the length
            size = np.full(word.size, 2, np.int64)
            value = np.zeros(word.size, np.uint64)
            within = (top << _ONE) - _ONE
            word &= within
            for bits, shift, last in _SEVENS:
                value |= (word & bits) >> shift
                size += top > last
            start = self.position + size
        self.position = start
        end: np.ndarray = start + value.view(np.int64)
        return end

    def literal(self, text: bytes) -> None:
        """Match these bytes."""
        for k in range(0, len(text), 8):
            piece = text[k : k + 8]
            mask = np.uint64((1 << (8 * len(piece))) - 1)
            self.good &= (self._next() & mask) == np.uint64(int.from_bytes(piece, "little"))
            self.position = self.position + len(piece)

    def expect(self, position: np.ndarray, wanted: np.ndarray) -> None:
        self.good &= position == wanted


def learn_template(
    data: np.ndarray,
    bounds: tuple[int, int],
    wanted: Mapping[bytes, int],
    kinds: Sequence[int],
) -> Template | None:
    """Return the template of the record between two bytes; None where it is not of the usual form.

    ``wanted`` gives the slots by name, ``kinds`` the kinds wanted in them.
    """
    start, stop = bounds
    record = data.data[start:stop]
    entries: list[_Entry] = []
    try:
        _, *features = next(fields_in(record, 0, len(record)))
        for name, _ in map_entries(record, *features):
            slot = wanted.get(name, -1)
            entries.append(_Entry(bytes([0x0A, len(name)]) + name, slot, kinds[slot]))
    except (IndexError, StopIteration, ValueError, Malformed):  # a name of more than 255 bytes
        return None
    slots = [entry.slot for entry in entries if entry.slot >= 0]
    template = Template(tuple(entries))
    usual, _ = template.match(data, np.array([start]), np.array([stop]))
    return template if usual.all() and len(slots) == len(set(slots)) else None
