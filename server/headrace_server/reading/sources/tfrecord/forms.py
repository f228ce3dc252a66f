"""The form of one record, by which others are read many at a time.

    record   header payload header payload … payload

A payload is the values of a wanted feature (packed numbers, or one string), or a whole feature
that is not wanted.  A header is all that stands before it: tags, names, and the lengths of the
messages that begin there.  Each length shows after which payload its message ends.

Records of one form differ in payloads and in the values of lengths alone.  So one header after
the other is compared in all records at once, in each from its own position.  Records without a
form (an empty list, numbers that are not packed, a name that comes twice) are walked one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ...columns import ranges, window
from .values import WantedFeature
from .walk import BYTES, FLOATS, INTS, MAPS, fields_in

#: Slots, and where the values of records lie: starts and sizes [rows, spans].
Spans = list[tuple[int, np.ndarray, np.ndarray]]
#: Maximum number of payloads of a form.  With more of them a walk is no slower.
_MOST_PAYLOADS = 256
#: Maximum bytes of a length: those of 256 MB, so that sums of wrong ones stay far below 2**63.
_MOST_LENGTH = 4
_KINDS: Final = (0x0A, 0x12, 0x1A)


class Unusual(Exception):
    """A record has no form."""


class _Length(NamedTuple):
    """A length in a header: its first byte there, its size, and the payload that ends with it."""

    at: int
    size: int
    ends: int


@dataclass(frozen=True, slots=True, eq=False)
class _Header:
    """A header, and what follows it: a payload of a slot (-1: not wanted).

    ``masks`` are the bits of its bytes that records of one form have in common, and ``content``
    their values, both [bytes, 1].  The last length is that of the payload.  ``steps``: the payload
    is a feature_list of floats.
    """

    content: np.ndarray
    masks: np.ndarray
    lengths: tuple[_Length, ...]
    slot: int
    steps: bool


class Form:
    """The form of a sound record.  Unusual where it has none."""

    def __init__(self, record: np.ndarray, wants: Sequence[WantedFeature]) -> None:
        self._record, self._wants = record.data, wants
        self._slots = {want.name.encode(): i for i, want in enumerate(wants)}
        self._lengths: list[tuple[int, int, int]] = []  # of a message: its first byte, begin, end
        self._payloads: list[tuple[int, int, int, bool]] = []  # begin, end, slot, steps
        self.slots: dict[int, bool] = {}  # whether the values are steps of floats
        for tag, first, last in self._messages(0, record.size, MAPS):
            for _, begin, end in self._messages(first, last, (0x0A,)):
                self._entry(begin, end, listed=tag == 0x12)
        self._headers = self._built(record)

    # Learning

    def _messages(self, at: int, stop: int, tags: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield fields as ``fields_in`` does; all must have one of these tags."""
        for tag, begin, end in fields_in(self._record, at, stop):
            if tag not in tags:
                raise Unusual
            self._lengths.append((at + 1, begin, end))
            yield tag, begin, end
            at = end

    def _entry(self, begin: int, end: int, listed: bool) -> None:
        fields = list(fields_in(self._record, begin, end))
        if [tag for tag, _, _ in fields] != [0x0A, 0x12]:
            raise Unusual
        (_, name, name_end), (_, begin, end) = fields
        self._lengths.append((name_end + 1, begin, end))
        slot = self._slots.get(self._record[name:name_end].tobytes(), -1)
        if slot < 0 or (listed and not self._wants[slot].sequence):
            self._payloads.append((begin, end, -1, False))
            return
        kind = self._wants[slot].kind
        if slot in self.slots or (listed and kind == INTS):
            raise Unusual
        self.slots[slot] = listed and kind == FLOATS
        if self.slots[slot]:
            self._payloads.append((begin, end, slot, True))
            return
        steps = self._messages(begin, end, (0x0A,)) if listed else [(0, begin, end)]
        for _, begin, end in steps:
            self._feature(begin, end, slot)

    def _feature(self, begin: int, end: int, slot: int) -> None:
        want = self._wants[slot]
        lists = list(self._messages(begin, end, _KINDS))
        if [tag >> 3 for tag, _, _ in lists] != [want.kind]:
            raise Unusual
        _, begin, end = lists[0]
        values = list(self._messages(begin, end, (0x0A,)))
        if not values or (want.kind != BYTES and len(values) > 1):
            raise Unusual
        self._payloads += [(begin, end, slot, False) for _, begin, end in values]

    def _built(self, record: np.ndarray) -> list[_Header]:
        ends = {end: i for i, (_, end, _, _) in enumerate(self._payloads)}
        if not ends or len(ends) > _MOST_PAYLOADS or max(ends) != record.size:
            raise Unusual
        masks = np.full(record.size, 0xFF, np.uint8)
        for at, begin, end in self._lengths:
            if end not in ends or begin - at > _MOST_LENGTH:  # of an empty message, say
                raise Unusual
            masks[at:begin] = 0x80  # the bits that show how long it is
        headers, start, lengths = [], 0, deque(self._lengths)
        for begin, end, slot, steps in self._payloads:
            inside = []
            while lengths and lengths[0][0] < begin:
                at, after, message_end = lengths.popleft()
                inside.append(_Length(at - start, after - at, ends[message_end]))
            bits = masks[start:begin, None]
            content = record[start:begin, None] & bits
            headers.append(_Header(content, bits, tuple(inside), slot, steps))
            start = end
        return headers

    # Use

    def match(
        self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[np.ndarray, Spans]:
        """Return a mask of the records of this form, and the places of the wanted values.

        The places of other records are arbitrary.
        """
        good = np.ones(starts.size, bool)
        spans: dict[int, tuple[list[np.ndarray], list[np.ndarray]]]
        spans = {slot: ([], []) for slot in self.slots}
        message_ends: list[list[np.ndarray]] = [[] for _ in self._headers]
        at = starts
        for i, header in enumerate(self._headers):
            read = len(header.masks)
            if (most := data.size - read) < 0 or not good.any():
                return np.zeros(starts.size, bool), []
            if int(at.max()) > most:
                good &= at <= most
                at = np.minimum(at, most)
            found = window(data, read)[at].view(np.uint8).reshape(-1, read).T.copy()
            good &= ((found & header.masks) == header.content).all(axis=0)
            for length in header.lengths:
                size = np.zeros(at.size, np.int64)
                for k in range(length.size):
                    size |= (found[length.at + k] & 0x7F).astype(np.int64) << 7 * k
                message_ends[length.ends].append(at + (length.at + length.size) + size)
            at = at + read
            *others, end = message_ends[i]
            for other in others:
                good &= other == end
            if header.slot >= 0:
                begins, sizes = spans[header.slot]
                begins.append(at)
                sizes.append(end - at)
                good &= end <= stops
                self._check(header, data, begins[-1], sizes[-1], good)
            at = end
        good &= at == stops
        return good, [
            (slot, np.stack(begins, axis=1), np.stack(sizes, axis=1))
            for slot, (begins, sizes) in spans.items()
        ]

    def _check(
        self,
        header: _Header,
        data: np.ndarray,
        begin: np.ndarray,
        sizes: np.ndarray,
        good: np.ndarray,
    ) -> None:
        """Strike out the payloads that do not hold whole numbers."""
        want = self._wants[header.slot]
        if header.steps:
            head = np.frombuffer(want.head, np.uint8)
            good &= sizes % want.stride == 0
            rows = np.flatnonzero(good)
            counts = sizes[rows] // want.stride
            at = np.repeat(begin[rows], counts)
            at += ranges(np.zeros_like(counts), counts) * want.stride
            found = window(data, head.size)[at].view(np.uint8).reshape(-1, head.size)
            good[np.repeat(rows, counts)[(found != head).any(axis=1)]] = False
        elif want.kind == INTS:  # the last byte ends a number
            good &= (data[np.minimum(begin + sizes - 1, data.size - 1)] < 0x80) | (sizes == 0)
        elif want.kind == FLOATS:
            good &= sizes & 3 == 0
