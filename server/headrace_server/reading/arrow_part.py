"""One Arrow IPC file about to be written, with the checksums of what goes into it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

from headrace_proto.schema import Field

from ..files.durable_file import writing
from .arrow_arrays import arrow_array, arrow_schema
from .chunk import Chunk
from .flat import ColumnSum, flattened

__all__ = ["ArrowPart"]

#: A record batch is large, so that few reads cross from one to the next.
_BATCH_BYTES: Final = 1 << 26
_BATCH_ROWS: Final = 65_536
#: Advice in the error of a full disk.
_REMEDY: Final = "make room there and run the conversion again: it goes on after the parts it has"


class ArrowPart:
    """Written at ``path``; ``file`` is the name that it is to have.  A context manager: after it
    the file is complete, or gone where an error left it."""

    def __init__(self, file: Path, fields: Mapping[str, Field]) -> None:
        self.file, self.path = file, file.with_name(f"{file.name}.part")
        self.rows = self.nbytes = 0
        self.sums = {name: ColumnSum() for name in fields}
        self._fields = fields
        self._schema = arrow_schema(fields)
        self._gathered: list[Any] = []
        self._rows = self._weight = 0  # of what is gathered

    def __enter__(self) -> ArrowPart:
        with writing(self.path, remedy=_REMEDY):
            self._out = pa.ipc.new_file(str(self.path), self._schema)
        return self

    def add(self, chunk: Chunk) -> int:
        """Append rows; their weight in bytes."""
        if not len(chunk):
            return 0
        arrays, weight = [], 0
        for name, field in self._fields.items():
            flat = flattened(chunk.columns[name])
            self.sums[name].add(flat)
            weight += flat.nbytes
            arrays.append(arrow_array(name, field, flat))
        self._gathered.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows += len(chunk)
        self._weight += weight
        self.rows += len(chunk)
        self.nbytes += weight
        if self._rows >= _BATCH_ROWS or self._weight >= _BATCH_BYTES:
            self._flush()
        return weight

    def _flush(self) -> None:
        if self._gathered:
            table = pa.Table.from_batches(self._gathered).combine_chunks()
            with writing(self.path, table.nbytes, _REMEDY):
                self._out.write_table(table)
        self._gathered.clear()
        self._rows = self._weight = 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        whole = False
        try:
            if kind is None:
                self._flush()
                with writing(self.path, remedy=_REMEDY):
                    self._out.close()
                whole = True
        finally:
            if not whole:
                with contextlib.suppress(OSError):  # it writes, and the disk may be full
                    self._out.close()
                self.path.unlink(missing_ok=True)

    def noted(self) -> dict[str, Any]:
        """What is to be remembered of the file, as plain data."""
        sums = {name: total.text for name, total in self.sums.items()}
        return {"name": self.file.name, "rows": self.rows, "bytes": self.nbytes, "sums": sums}
