"""One Arrow IPC file while it is written, with checksums of its columns.

    [n, *shape]              fixed_size_list of … of numbers | binary
    dimensions that vary     list

``sources/arrow_columns`` reads such columns back without a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ..files.durable_file import writing
from .chunk import Chunk
from .flat_columns import ColumnSum, Flat, flattened

#: Bytes of a record batch: large, so that few reads cross from one to the next.
_BATCH_BYTES: Final = 1 << 26
_BATCH_ROWS: Final = 65_536
_MOST_OFFSET: Final = 2**31 - 1
#: Advice in the error of a full disk.
_REMEDY: Final = "make room there and run the conversion again: it goes on after the parts it has"


class ArrowPart:
    """A file at ``path`` until ``finish`` has completed it, or ``drop`` removed it; ``file`` is
    the name that it is to have."""

    def __init__(self, file: Path, fields: Mapping[str, Field]) -> None:
        self.file, self.path = file, file.with_name(f"{file.name}.part")
        self.rows = self.nbytes = 0
        self.sums = {name: ColumnSum() for name in fields}
        self._fields = fields
        self._schema = arrow_schema(fields)
        self._gathered: list[Any] = []
        self._weight = 0  # bytes of gathered rows
        with writing(self.path, remedy=_REMEDY):
            self._sink = pa.OSFile(str(self.path), "wb")
            self._out = pa.ipc.new_file(self._sink, self._schema)

    def add(self, chunk: Chunk) -> int:
        """Append rows; return their bytes."""
        if not len(chunk):
            return 0
        arrays, weight = [], 0
        for name, field in self._fields.items():
            flat = flattened(chunk.columns[name])
            self.sums[name].add(flat)
            weight += flat.nbytes
            arrays.append(arrow_array(name, field, flat))
        self._gathered.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._weight += weight
        self.rows += len(chunk)
        self.nbytes += weight
        if sum(map(len, self._gathered)) >= _BATCH_ROWS or self._weight >= _BATCH_BYTES:
            self._flush()
        return weight

    def _flush(self) -> None:
        if self._gathered:
            table = pa.Table.from_batches(self._gathered).combine_chunks()
            with writing(self.path, table.nbytes, _REMEDY):
                self._out.write_table(table)
        self._gathered.clear()
        self._weight = 0

    def finish(self) -> None:
        """Write the rest of the file, and close it."""
        self._flush()
        with writing(self.path, remedy=_REMEDY):
            self._out.close()
            self._sink.close()

    def drop(self) -> None:
        """Remove the file."""
        if not self._sink.closed:
            with contextlib.suppress(OSError), self._sink:
                self._out.close()  # it writes, and the disk may be full
        self.path.unlink(missing_ok=True)

    def noted(self) -> dict[str, Any]:
        """Return the entry of the file in the notes, as plain data."""
        sums = {name: total.text for name, total in self.sums.items()}
        return {"name": self.file.name, "rows": self.rows, "bytes": self.nbytes, "sums": sums}


def arrow_schema(fields: Mapping[str, Field]) -> Any:
    """Return the Arrow schema of an example; DataError names a column without an Arrow type."""
    return pa.schema([pa.field(name, _type(name, field)) for name, field in fields.items()])


def _type(name: str, field: Field) -> Any:
    try:
        kind = (
            pa.binary() if field.dtype == BYTES else pa.from_numpy_dtype(numpy_dtype(field.dtype))
        )
    except (pa.ArrowException, TypeError):
        raise DataError(
            f"column {name!r} is {field}, and Arrow files have no {field.dtype}: map it to a type "
            "that they have, or leave it out by select"
        ) from None
    for extent in reversed(field.shape):
        kind = pa.list_(kind, -1 if extent is None else extent)
    return kind


def arrow_array(name: str, field: Field, flat: Flat) -> Any:
    """Return the rows of a column."""
    if flat.lengths is None:
        array = pa.array(flat.values)
    else:
        offsets = _offsets(name, flat.lengths)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(flat.values))]
        array = pa.Array.from_buffers(pa.binary(), len(flat.lengths), buffers)
    for depth in range(len(field.shape) - 1, -1, -1):
        per_row = np.prod(flat.shapes[:, :depth], axis=1, dtype=np.int64)
        extent = field.shape[depth]
        buffers = [None]
        if extent is None:
            buffers.append(pa.py_buffer(_offsets(name, np.repeat(flat.shapes[:, depth], per_row))))
        kind = pa.list_(array.type, -1 if extent is None else extent)
        array = pa.Array.from_buffers(kind, int(per_row.sum()), buffers, children=[array])
    return array


def _offsets(name: str, lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _MOST_OFFSET:
        raise DataError(
            f"column {name!r}: {len(lengths)} rows have {offsets[-1]} elements; Arrow lists hold "
            f"{_MOST_OFFSET}"
        )
    return offsets.astype(np.int32)
