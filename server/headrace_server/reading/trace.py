"""The origin of the rows of batches, by reference: a recorder gets it beside each batch.

    chunk that was read ─► ChunkTrace ─┐
    rows of it in a batch ─────────────┴─► Trace ─► recorder        nothing is copied here

A ChunkTrace says how its chunk is read again, so a batch can be made again from its Trace alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace_proto.record import record

from ..core.plan import Draft, Part, Read
from ..core.slots import Segments
from .chunk import Chunk, Origin

#: Columns of a batch as they lie in its block: by name the shape and the bytes.
States = Mapping[str, tuple[tuple[int, ...], bytes]]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTrace:
    """A chunk: how it was read, what the stages remembered before it, and its rows."""

    read: Read
    stages: Any
    ordinals: np.ndarray
    origin: Origin
    keys: Sequence[bytes] = ()


@record
class Trace:
    """The rows of one batch: parts of chunks in order, or segments of examples."""

    sources: Mapping[int, ChunkTrace]  # by number of the chunk: at least those of the rows
    parts: Sequence[Part] = ()
    segments: Segments | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    states: States | None = None

    def of_chunks(self) -> Iterable[int]:
        """Return the numbers of the chunks from which the rows come."""
        if self.segments is not None:
            return self.segments.of_chunks()
        return {part.chunk for part in self.parts}


#: A call with the number of a batch, its rows, and its trace.
_Record = Callable[[int, int, Trace], None]


class NoTracing:
    """Notes nothing: batches have no trace."""

    states = False  # whether the states that go out are recorded

    def read(self, read: Read, stages: Any, chunk: Chunk, keys: Sequence[bytes] = ()) -> None:
        """Note a chunk that was read, perhaps once more."""

    def forget(self, chunk: int) -> None:
        """Forget a chunk that no batch to come needs."""

    def begin(self, batch: Draft | Segments) -> None:
        """Note the chunks of a batch, which may be forgotten before it has a place."""

    def expect(self, number: int, written: Any, meta: Mapping[str, Any], batch: Segments) -> None:
        """Note a batch that will probably be made next, as ``made``; it uses idle time."""

    def made(
        self,
        number: int,
        written: Any,
        meta: Mapping[str, Any],
        parts: Sequence[Part] = (),
        segments: Segments | None = None,
        states: States | None = None,
    ) -> None:
        """Note that the batch that was begun last is ``written`` to its block.

        It has the parts, or the segments and states, of its Trace.
        """


NO_TRACING = NoTracing()


class Tracing(NoTracing):
    """Records from which chunks of one partition each batch is made."""

    def __init__(
        self,
        noted: _Record,
        expected: _Record = lambda number, rows, trace: None,
        states: bool = False,
    ) -> None:
        """``noted`` gets the number of each batch, its rows, and its trace.

        ``expected`` gets those of a batch that will probably be made next.
        """
        self._noted = noted
        self._expected = expected
        self._ahead = Trace({})  # of the batch that was expected last
        self.states = states
        self._sources: dict[int, ChunkTrace] = {}
        self._used: dict[int, ChunkTrace] = {}

    def read(self, read: Read, stages: Any, chunk: Chunk, keys: Sequence[bytes] = ()) -> None:
        self._sources[read.chunk] = ChunkTrace(read, stages, chunk.ordinals, chunk.origin, keys)

    def forget(self, chunk: int) -> None:
        self._sources.pop(chunk, None)

    def begin(self, batch: Draft | Segments) -> None:
        if batch is not self._ahead.segments:
            self._used = self._sources_of(batch)

    def expect(self, number: int, written: Any, meta: Mapping[str, Any], batch: Segments) -> None:
        if not self.states:  # else they are still unknown
            self._ahead = Trace(self._sources_of(batch), (), batch, meta)
            self._expected(number, written.rows, self._ahead)

    def _sources_of(self, batch: Draft | Segments) -> dict[int, ChunkTrace]:
        return {chunk: self._sources[chunk] for chunk in batch.of_chunks()}

    def made(
        self,
        number: int,
        written: Any,
        meta: Mapping[str, Any],
        parts: Sequence[Part] = (),
        segments: Segments | None = None,
        states: States | None = None,
    ) -> None:
        trace = self._ahead
        if segments is None or segments is not trace.segments:
            trace = Trace(self._used, parts, segments, meta, states)
        self._noted(number, written.rows, trace)
