"""Parquet files, a row group at a time.

Rows are read by whole row groups, of which the last two are kept decoded.  Reading in order costs
each group once, and a thread decodes the next one meanwhile, of remote files the next 32 MiB;
**rows taken at random cost a whole group for each group that they lie in**, so shuffle such files
by blocks or a window, write small groups, or convert them to Arrow IPC.

    group_by="e"    e  0 0 0 │ 0 1 1 │ 1 1 2      three row groups
                       ───────   ─────────   ─    three examples
                       part 0    part 1   part 2  the examples that begin in a row group

An example of a grouped file is a list of its rows, so Arrow's columns of lists read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ...files.extras import require
from ...files.manifest import DataFile, is_remote
from ...files.mapped_files import mapped
from ...files.ranges import Range, RemoteFile
from ..column_parts import ColumnPart, Decoded, StoredColumn, files_that_serve, origin_in
from ..source import KEPT_BLOCKS, Opening, PartsReader
from .arrow.columns import decoded_column, fields_of_schema, naming

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]
    import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]
else:
    pa = require("pyarrow", "server", "read_parquet")
    pc = require("pyarrow.compute", "server", "read_parquet")
    pq = require("pyarrow.parquet", "server", "read_parquet")
_Columns = Mapping[str, StoredColumn]


@dataclass(frozen=True, eq=False)
class _File:
    """An open file, the rows of its groups, and the columns that it is read as."""

    file: DataFile
    content: pq.ParquetFile
    counts: list[int]
    schema: pa.Schema
    #: The rows in which examples begin, and the number of all rows; None where each is a row.
    starts: np.ndarray | None
    remote: tuple[RemoteFile, ...] = ()


@dataclass(frozen=True, eq=False)
class _Part:
    """Row groups that are read together.

    ``cuts`` are the rows in which their examples begin, and the end of the last one.
    """

    file: _File
    names: tuple[str, ...]
    groups: range
    cuts: np.ndarray | None


class Parquet(PartsReader):
    """Row groups of files; their footers, or the values of ``group_by``, have all places."""

    def __init__(self, opening: Opening, group_by: str | None = None) -> None:
        opened = partial(_opened, opening, group_by)
        schema, served = files_that_serve(opening, opened, lambda one: one.schema.names)
        last = lru_cache(1)(_table)  # the next part may begin in it
        self._decoded = Decoded(partial(_load, group_by, last), KEPT_BLOCKS, _ranges)
        parts: list[ColumnPart] = []
        for _, file, fields in served:
            names, first = tuple(name for name in fields if name in schema.fields), 0
            self._decoded.files += file.remote
            for groups, rows, cuts in _parts(file):
                part = _Part(file, names, groups, cuts)
                origin = origin_in(file.file.path, first)
                parts.append(self._decoded.part(part, rows, schema, origin, opening.bad))
                first += rows
        super().__init__(schema.fields, parts)

        self.hold = self._decoded.hold  # type: ignore[method-assign]

    def close(self) -> None:
        super().close()
        self._decoded.close()


def _opened(
    opening: Opening, group_by: str | None, file: DataFile
) -> tuple[_File, Mapping[str, Field]]:
    """Return an open file, and its fields."""
    fault = f"it is no Parquet file, or it is cut off at byte {file.size}"
    with naming(f"{file.path}: {fault}"):
        far = is_remote(file.path)
        data = RemoteFile(file) if far else pa.BufferReader(mapped(file))
        content = pq.ParquetFile(data, page_checksum_verification=True, pre_buffer=far)
        schema = content.schema_arrow
        if group_by is not None:
            schema = _of_lists(file.path, schema, group_by)
        fields = fields_of_schema(file.path, schema, opening.features)
    rows = [content.metadata.row_group(i).num_rows for i in range(content.num_row_groups)]
    if min(rows, default=0) < 0:
        raise DataError(f"{file.path}: its footer is damaged: a row group has {min(rows)} rows")
    remote = (data,) if far else ()
    opened = _File(file, content, rows, schema, None, remote)
    if group_by is None:
        return opened, fields
    starts = opening.cache.get(
        file,
        f"groups {group_by}",
        partial(_starts, opened, group_by),
        lambda stored: bool(stored[-1] == sum(rows)),
    )
    return replace(opened, starts=starts), fields


def _table(file: _File, number: int, names: tuple[str, ...]) -> pa.Table:
    with naming(f"{file.file.path}, row group {number}: it is damaged"):
        table = file.content.read_row_group(number, columns=list(names), use_threads=False)
        if table.num_rows != file.counts[number]:
            raise IndexError(f"it holds {table.num_rows} rows, not as many as its footer says")
    return table


def _ranges(part: _Part) -> list[Range]:
    """Return where the columns of a part lie."""
    file, found = part.file.file, []
    for number in part.groups:
        group = part.file.content.metadata.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.partition(".")[0] in part.names:
                start = column.dictionary_page_offset or column.data_page_offset
                stop = start + column.total_compressed_size
                if 0 <= start <= stop <= file.size:  # else the footer is damaged
                    found.append((file, start, stop))
    return found


def _load(group_by: str | None, table_of: Callable[..., pa.Table], part: _Part) -> _Columns:
    tables = [table_of(part.file, number, part.names) for number in part.groups]
    with naming(f"{part.file.file.path}, row group {part.groups[0]}: it is damaged"):
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        if part.cuts is None:
            return {name: decoded_column(table.column(name)) for name in part.names}
        return {
            name: decoded_column(_cut(table.column(name), part.cuts, name == group_by))
            for name in part.names
        }


# ── Examples of several rows ─────────────────────────────────────────────────────────────────────


def _of_lists(path: str, schema: pa.Schema, group_by: str) -> pa.Schema:
    """Return the schema of examples that are groups of rows."""
    if schema.names.count(group_by) != 1:
        known = ", ".join(map(repr, schema.names))
        raise DataError(f"{path}: group_by={group_by!r} is no column of it; it has {known}")
    if pa.types.is_nested(schema.field(group_by).type):
        raise DataError(f"{path}: group_by={group_by!r} is a column of lists; name one of values")
    return pa.schema(
        (one.name, one.type if one.name == group_by else pa.large_list(_decoded(one.type)))
        for one in schema
    )


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _starts(file: _File, group_by: str) -> np.ndarray:
    """Return the rows of a file in which an example begins, and the number of all rows."""
    starts, row, before = [], 0, None
    for number in range(len(file.counts)):
        values = _values(_table(file, number, (group_by,)).column(group_by))
        if values.null_count:
            raise DataError(f"{file.file.path}, row group {number}: group_by={group_by!r} is null")
        if not len(values):
            continue
        begins = np.ones(len(values), bool)
        begins[0] = before is None or values[0] != before
        begins[1:] = pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
        starts.append(row + np.flatnonzero(begins))
        row, before = row + len(values), values[-1]
    return np.concatenate([*starts, [row]]).astype(np.int64)


def _parts(file: _File) -> Iterator[tuple[range, int, np.ndarray | None]]:
    """Yield the row groups of each part, how many examples begin in the first, and their cuts."""
    if file.starts is None:
        for number, rows in enumerate(file.counts):
            yield range(number, number + 1), rows, None
        return
    ends = np.cumsum(file.counts)
    group = ends.searchsorted(file.starts[:-1], side="right")
    for number in np.unique(group).tolist():
        low, high = group.searchsorted([number, number + 1])
        cuts = file.starts[low : high + 1]
        stop = int(ends.searchsorted(cuts[-1])) + 1
        yield range(number, stop), len(cuts) - 1, cuts - (ends[number] - file.counts[number])


def _values(column: pa.ChunkedArray) -> pa.Array:
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _cut(column: pa.ChunkedArray, cuts: np.ndarray, single: bool) -> pa.Array:
    """Return a list of each example's values, or the first value alone."""
    values = _values(column)
    if single:
        return values.take(pa.array(cuts[:-1]))
    return pa.LargeListArray.from_arrays(pa.array(cuts), values)
