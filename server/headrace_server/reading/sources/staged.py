"""A source of a mix or of ``concat`` with stages of its own, which make one row of each example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from headrace_proto.schema import Field

from ...pipeline.declaration import Options
from ...pipeline.declaration import Source as Declared
from ...pipeline.declaration import Stage as DeclaredStage
from ..chunk import BadRecords, Chunk
from ..columns import Rows
from ..intake import probe
from ..source import IndexedSource, Opening, Source, StreamSource
from ..stages import RowStages
from .concat import open_parts


class Staged(Source):
    """Another source, each chunk of which goes through the stages when it is read."""

    @classmethod
    def declared(cls, source: Declared) -> Mapping[str, Field] | None:
        known = source.parts[0].fields
        for stage in source.options["stages"]:
            known = DeclaredStage(**stage).made().fields_after(known)
        return known

    @classmethod
    def open(
        cls, opening: Opening, sources: Sequence[Declared], stages: Sequence[Options]
    ) -> StreamSource:
        (reader,) = open_parts(opening, sources, "")
        declared = [DeclaredStage(**stage) for stage in stages]
        steps = RowStages(declared, reader.fields)
        if steps.fields is None:
            again = partial(RowStages, declared, reader.fields)
            probe(reader, steps, BadRecords(skip=opening.bad.skip), again)
        if isinstance(reader, IndexedSource):
            return _Indexed(reader, steps, opening.bad)
        return _Streamed(reader, steps, opening.bad)


class _Streamed(StreamSource):
    def __init__(self, reader: StreamSource, steps: RowStages, bad: BadRecords) -> None:
        self._reader, self._steps, self._bad = reader, steps, bad
        self.fields = dict(steps.fields or {})
        self.streams = reader.streams
        self.ready, self.close = reader.ready, reader.close  # type: ignore[method-assign]
        self.expect_stream = reader.expect_stream  # type: ignore[method-assign]
        self.bound, self.release = reader.bound, reader.release  # type: ignore[method-assign]

    def by_number(self) -> IndexedSource | None:
        reader = self._reader.by_number()
        return None if reader is None else _Indexed(reader, self._steps, self._bad)

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        chunk, after = self._reader.read(stream, position, limit)
        return self._steps.apply(chunk, self._bad), after


class _Indexed(_Streamed, IndexedSource):
    _reader: IndexedSource
    streams = 0  # those of its reader

    def __init__(self, reader: IndexedSource, steps: RowStages, bad: BadRecords) -> None:
        super().__init__(reader, steps, bad)
        self.length, self.far, self.expect = reader.length, reader.far, reader.expect  # type: ignore[method-assign]
        self.blocks, self.hold = reader.blocks, reader.hold  # type: ignore[method-assign]

    def by_number(self) -> IndexedSource:
        return self

    def take(self, rows: Rows) -> Chunk:
        return self._steps.apply(self._reader.take(rows), self._bad)
