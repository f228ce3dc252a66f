"""A source of a mix or of ``concat`` with stages of its own, which make one row of each example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_proto.schema import Field

from ...pipeline.declaration import Plain
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
        cls, opening: Opening, sources: Sequence[Plain], stages: Sequence[Plain]
    ) -> StreamSource:
        (reader,) = open_parts(opening, sources, "")
        declared = [DeclaredStage(**stage) for stage in stages]
        steps = RowStages(declared, reader.fields)
        if steps.fields is None:
            again = lambda: RowStages(declared, reader.fields)  # noqa: E731
            probe(reader, steps, BadRecords(skip=opening.bad.skip), again)
        kind = _Indexed if isinstance(reader, IndexedSource) else _Streamed
        return kind(reader, steps, opening.bad)


class _Streamed(StreamSource):
    def __init__(self, reader: StreamSource, steps: RowStages, bad: BadRecords) -> None:
        self._reader, self._steps, self._bad = reader, steps, bad
        self.fields = dict(steps.fields or {})
        self.ready, self.close = reader.ready, reader.close  # type: ignore[method-assign]
        self._count(reader)

    def _count(self, reader: StreamSource) -> None:
        self.streams = reader.streams

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        chunk, after = self._reader.read(stream, position, limit)
        return self._steps.apply(chunk, self._bad), after


class _Indexed(_Streamed, IndexedSource):
    _reader: IndexedSource

    def _count(self, reader: StreamSource) -> None:
        self.length = self._reader.length

    def take(self, rows: Rows) -> Chunk:
        return self._steps.apply(self._reader.take(rows), self._bad)
