"""``select``: some of the columns, in an order."""

from __future__ import annotations

from headrace_proto.errors import DataError

from ..chunk import BadRecords, Chunk
from ..stage import Fields, Stage


class Select(Stage):
    """The named columns, in their order."""

    keeps_count = repeatable = True

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def fields_after(self, before: Fields | None) -> Fields | None:
        if before is None:
            return None
        for name in self._names:
            if name not in before:
                raise DataError(
                    f"select: there is no column {name!r}, only {', '.join(before)}; select names "
                    "columns that the source, or the map before it, gives"
                )
        return {name: before[name] for name in self._names}

    def apply(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        return chunk.with_columns({name: chunk.columns[name] for name in self._names})
