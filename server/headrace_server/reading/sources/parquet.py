"""Parquet files, a row group at a time.

Rows are read by whole row groups, of which the last two are kept decoded.  Reading in order costs
each group once; **rows taken at random cost a whole group for each group that they lie in**, so
shuffle such files by a window, write small groups, or convert them to Arrow IPC.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ...files.extras import require
from ...files.manifest import DataFile, is_remote, open_stream
from ...files.mapped_files import mapped
from ..column_parts import (
    ColumnPart,
    StoredColumn,
    files_that_serve,
    origin_in,
)
from ..source import Opening, PartsReader
from .arrow import decoded_column, fields_of_schema, naming

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]
else:
    pa = require("pyarrow", "server", "read_parquet")
    pq = require("pyarrow.parquet", "server", "read_parquet")
_KEPT_GROUPS = 2


class Parquet(PartsReader):
    """Row groups of files whose footers have all places, so no index is cached."""

    def __init__(self, opening: Opening) -> None:
        opened = partial(_opened, opening.features)
        schema, served = files_that_serve(opening, opened, lambda one: one[0].schema_arrow.names)
        load = lru_cache(_KEPT_GROUPS)(_load)
        parts: list[ColumnPart] = []
        for file, (content, counts), fields in served:
            first = 0
            wanted = tuple(name for name in fields if name in schema.fields)
            for number, rows in enumerate(counts):
                columns = partial(load, file, content, number, wanted)
                origin = origin_in(file.path, first)
                parts.append(ColumnPart(rows, columns, schema, origin, opening.bad))
                first += rows
        super().__init__(schema.fields, parts)


def _opened(
    wanted: Collection[str] | None, file: DataFile
) -> tuple[tuple[pq.ParquetFile, list[int]], Mapping[str, Field]]:
    """Return an open file and the rows of its groups, and its fields."""
    fault = f"it is no Parquet file, or it is cut off at byte {file.size}"
    with naming(f"{file.path}: {fault}"):
        data = open_stream(file) if is_remote(file.path) else pa.BufferReader(mapped(file))
        content = pq.ParquetFile(data, page_checksum_verification=True)
        fields = fields_of_schema(file.path, content.schema_arrow, wanted)
    rows = [content.metadata.row_group(i).num_rows for i in range(content.num_row_groups)]
    if min(rows, default=0) < 0:
        raise DataError(f"{file.path}: its footer is damaged: a row group has {min(rows)} rows")
    return (content, rows), fields


def _load(
    file: DataFile, opened: pq.ParquetFile, number: int, names: Sequence[str]
) -> Mapping[str, StoredColumn]:
    with naming(f"{file.path}, row group {number}: it is damaged"):
        table = opened.read_row_group(number, columns=list(names), use_threads=False)
        if table.num_rows != opened.metadata.row_group(number).num_rows:
            raise IndexError(f"it holds {table.num_rows} rows, not as many as its footer says")
        return {name: decoded_column(table.column(name)) for name in names}
