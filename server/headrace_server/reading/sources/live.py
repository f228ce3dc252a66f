"""A log that producers push to: sequences that have ended and whole examples, as they ended.

    partition of the log = stream = partition of the feed      one worker has all three
    position   of the log, from which on the next ends are looked for
    ordinal    position of the end

The server keeps logs, so only a feed that is served reads one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from headrace_proto import dtypes
from headrace_proto.errors import DataError
from headrace_proto.log_messages import entries_of
from headrace_proto.schema import Field

from ..chunk import ORDINAL_BITS, Chunk
from ..columns import Column, Strings, column_of
from ..source import GrowingFeed, LogFeed, Opening, Source, StreamSource

_Parts = dict[str, tuple[list[int], list[np.ndarray], list[memoryview]]]


class Live(Source):
    """The sequences of a log."""

    forward = True

    @classmethod
    def open(cls, opening: Opening, name: str, **bounds: Any) -> StreamSource:
        if opening.logs is None:
            raise DataError(
                f"log {name!r} lives in a server: serve the pipeline, and push to it by "
                "headrace.produce; to look at a pipeline without a server read examples of a file"
            )
        fields = {key: feature.field for key, feature in (opening.features or {}).items()}
        return LogReader(name, fields, *opening.logs(name))


class LogReader(StreamSource):
    """A stream for each partition of the log."""

    bound = True

    def __init__(
        self, name: str, fields: Mapping[str, Field], streams: int, log: Mapping[int, LogFeed]
    ) -> None:
        self.fields, self.streams, self.name, self._log = fields, streams, name, log
        self._of_steps = {key: one for key, one in fields.items() if one.ragged_dims}
        self._of_context = {key: one for key, one in fields.items() if key not in self._of_steps}

    def ready(self, stream: int, position: bytes, limit: int) -> int:
        return self._log[stream].ready(int.from_bytes(position), limit)

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        found, after = self._log[stream].read(int.from_bytes(position), limit)
        parts: _Parts = {name: ([], [], []) for name in self.fields}
        for one in found:
            entries = dict.fromkeys(self._of_steps, 0)
            fields = {**self._of_context, **(self._of_steps if one.whole else {})}  # as they lie
            _enter(parts, entries, fields, one.context)
            for piece in one.steps:
                _enter(parts, entries, self._of_steps, piece)
            for name, steps in entries.items():
                parts[name][0].append(steps)
        columns = {
            name: _column(field, *parts[name], len(found)) for name, field in self.fields.items()
        }
        ordinals = np.array([one.position for one in found], np.int64)
        where = f"log {self.name!r}, partition {stream}"
        return Chunk.of(columns, ordinals, where), None if after is None else after.to_bytes(8)

    def release(self, stream: int, position: bytes) -> None:
        self._log[stream].release(int.from_bytes(position))

    def growing(self, stream: int) -> GrowingFeed:
        """Return a partition of which sequences are cut before they end."""
        return cast(GrowingFeed, self._log[stream])

    def cut(self, stream: int, ranges: Sequence[tuple[int, int, int]]) -> tuple[Chunk, list[bytes]]:
        """Return some steps of sequences as a chunk, [first, after) of each, and the keys."""
        feed, keys = self.growing(stream), list[bytes]()
        parts: _Parts = {name: ([], [], []) for name in self.fields}
        for of, first, after in ranges:
            key, context, records = feed.steps(of, first, after)
            keys.append(key)
            _enter(parts, {}, self._of_context, context)
            for record in records:
                within = first - record.first, after - record.first
                _enter(parts, {}, self._of_steps, record.columns, within)
            for name in self._of_steps:
                parts[name][0].append(after - first)
        columns = {
            name: _column(field, *parts[name], len(ranges)) for name, field in self.fields.items()
        }
        ordinals = self.ordinals(stream, [of for of, _, _ in ranges])
        return Chunk.of(columns, ordinals, f"log {self.name!r}, partition {stream}"), keys

    def contexts(self, stream: int, of: Sequence[int]) -> Chunk:
        """Return the context of sequences as a chunk without their steps."""
        parts: _Parts = {name: ([], [], []) for name in self._of_context}
        for context in map(self.growing(stream).context, of):
            _enter(parts, {}, self._of_context, context)
        columns = {n: _column(field, *parts[n], len(of)) for n, field in self._of_context.items()}
        where = f"log {self.name!r}, partition {stream}"
        return Chunk.of(columns, self.ordinals(stream, of), where)

    def ordinals(self, stream: int, of: Sequence[int]) -> np.ndarray:
        """Return the ordinals of sequences whose segments are cut: positions of their openings."""
        return np.array(of, np.int64) | stream << ORDINAL_BITS


def _enter(
    parts: _Parts,
    entries: dict[str, int],
    fields: Mapping[str, Field],
    data: memoryview,
    within: tuple[int, int] | None = None,
) -> None:
    """Add the bytes of columns to those of earlier examples, and their steps to ``entries``.

    ``within``: only these of the steps.
    """
    for name, (count, lengths, values) in zip(fields, entries_of(fields, data), strict=True):
        if name in entries:
            entries[name] += count
        if within is not None:
            first, after = max(within[0], 0), min(within[1], count)
            if len(lengths):
                each = len(lengths) // count
                before = int(lengths[: first * each].sum(dtype=np.int64))
                lengths = lengths[first * each : after * each]
                values = values[before : before + int(lengths.sum(dtype=np.int64))]
            else:
                width = len(values) // max(1, count)
                values = values[first * width : after * width]
        parts[name][1].append(lengths)
        parts[name][2].append(values)


def _column(
    field: Field, steps: list[int], lengths: list[np.ndarray], values: list[memoryview], rows: int
) -> Column:
    """Return a column of these bytes, which lie one after the other."""
    data = b"".join(values)
    extents = np.array(steps, np.int64).reshape(rows, field.ragged_dims)
    flat: Any
    if field.dtype == dtypes.BYTES:
        sizes = np.concatenate([np.empty(0, "<u4"), *lengths]).astype(np.int64)
        flat = Strings(np.frombuffer(data, np.uint8), np.cumsum(sizes) - sizes, sizes)
    else:
        flat = np.frombuffer(data, dtypes.numpy_dtype(field.dtype))
    return column_of(flat, field, extents)
