"""Parquet files, a row group at a time.

Rows are read by whole row groups, of which the last two are kept decoded.  Reading in order costs
each group once; **rows taken at random cost a whole group for each group that they lie in**, so
shuffle such files by a window, write small groups, or convert them to Arrow IPC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]

from headrace_proto.errors import DataError, FilesMissing
from headrace_proto.schema import Field
from headrace_server.files.manifest import DataFile, is_remote, open_map, open_stream
from headrace_server.reading.reader import IndexedReader, Opening

from .arrow import fields_of_schema
from .arrow_columns import DecodedColumn
from .column_parts import ColumnPart, StoredColumn, files_that_serve, origin_in
from .parts_reader import PartsReader

_KEPT_GROUPS = 2


def open_reader(opening: Opening) -> IndexedReader:
    """The footer gives the place of everything, so nothing needs the cache."""

    def opened(file: DataFile) -> tuple[Any, Mapping[str, Field]]:
        content = _open(file)
        return content, fields_of_schema(file.path, content.schema_arrow, opening.source.features)

    schema, served = files_that_serve(opening, opened)
    load = lru_cache(_KEPT_GROUPS)(_load)
    parts: list[ColumnPart] = []
    for file, content, fields in served:
        first = 0
        wanted = tuple(name for name in fields if name in schema.fields)
        for number in range(content.num_row_groups):
            rows = content.metadata.row_group(number).num_rows
            columns = partial(load, file, content, number, wanted)
            parts.append(
                ColumnPart(rows, columns, schema, origin_in(file.path, first), opening.bad)
            )
            first += rows
    return PartsReader(schema.fields, parts)


def _open(file: DataFile) -> Any:
    try:
        data = open_stream(file) if is_remote(file.path) else pa.BufferReader(open_map(file))
        return pq.ParquetFile(data, page_checksum_verification=True)
    except FilesMissing:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file.path}: it is no Parquet file, or it is cut off at byte {file.size}: {error}"
        ) from None


def _load(
    file: DataFile, opened: Any, number: int, names: Sequence[str]
) -> Mapping[str, StoredColumn]:
    try:
        table = opened.read_row_group(number, columns=list(names), use_threads=False)
        return {name: DecodedColumn(table.column(name)) for name in names}
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file.path}, row group {number}: it is damaged: {error}") from None
