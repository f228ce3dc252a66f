"""Files of tokens, one after the other: cut into windows, or into lanes.

    tokens   t0 t1 t2 t3 t4 t5 t6 t7 t8 t9

    window=3, shift=1   tokens  t0 t1 t2 │ t3 t4 t5 │ t6 t7 t8      an example of a fixed shape
                        targets t1 t2 t3 │ t4 t5 t6 │ t7 t8 t9
    lanes=2, shift=1    tokens  t0 t1 t2 t3 │ t4 t5 t6 t7           an example as long as it can be
                        targets t1 t2 t3 t4 │ t5 t6 t7 t8           key     0:0 │ 0:1

Each file is cut by itself, and its last tokens are left out where they fill no window, or no step
of every lane.  Files are mapped: an example is a view of them, and only the assembler copies it.
"""

from __future__ import annotations

import numpy as np

from headrace_proto import dtypes
from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.files.manifest import DataFile, open_map
from headrace_server.reading.chunk import Origin
from headrace_server.reading.columns import Column, Ragged, Strings
from headrace_server.reading.reader import IndexedReader, Opening

from .npy import npy_array
from .parts_reader import KeptRows, PartsReader, Rows, numbers_of


def open_reader(opening: Opening) -> IndexedReader:
    """The features of the source are known when it is declared, but for the dtype of .npy files."""
    source, files = opening.source, opening.files
    options = source.options
    arrays = [_tokens(file, options["dtype"]) for file in files]
    dtype = arrays[0].dtype
    for file, array in zip(files, arrays, strict=True):
        if array.dtype != dtype:
            raise DataError(f"{file.path} holds {array.dtype}, and {files[0].path} {dtype}")
    window, lanes, shift = options["window"], options["lanes"], options["shift"]
    name = dtypes.name_of(dtype)
    fields = {"tokens": Field(name, (window,))}
    if shift:
        fields["targets"] = Field(name, (window,))
    if window is None:
        fields = {"key": Field(dtypes.BYTES), **fields}
    if not any(len(array) - shift >= (window or lanes) for array in arrays):
        wanted = f"window={window}" if lanes is None else f"lanes={lanes}"
        raise DataError(
            f"{files[0].path} has {len(arrays[0])} tokens: too few for {wanted} and shift={shift}"
        )
    parts = [
        _Windows(file.path, array, window, shift)
        if lanes is None
        else _Lanes(file.path, number, array, lanes, shift)
        for number, (file, array) in enumerate(zip(files, arrays, strict=True))
    ]
    return PartsReader(fields, parts)


def _tokens(file: DataFile, dtype: str | None) -> np.ndarray:
    """The tokens of a file, as a view of it."""
    data = open_map(file)
    if not file.path.endswith(".npy"):
        assert dtype is not None  # it is declared where a file needs it
        item = np.dtype(dtype).itemsize
        if data.size % item:
            raise DataError(
                f"{file.path} has {data.size} bytes, which are no whole number of {dtype}"
            )
        return data.view(dtype)
    try:
        array = npy_array(data)
    except ValueError as error:
        raise DataError(f"{file.path}: {error}") from None
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.dtype.isnative:
        raise DataError(
            f"{file.path} holds {array.dtype} of shape {list(array.shape)}; tokens are integers [n]"
        )
    if dtype is not None and array.dtype != np.dtype(dtype):
        raise DataError(f"{file.path} holds {array.dtype}, and dtype={dtype} was declared")
    return array


class _Windows:
    """The windows of one file."""

    def __init__(self, name: str, tokens: np.ndarray, window: int, shift: int) -> None:
        self.rows = max(0, len(tokens) - shift) // window
        self._name = name
        stop = self.rows * window
        self._columns: dict[str, np.ndarray] = {"tokens": tokens[:stop].reshape(-1, window)}
        if shift:
            self._columns["targets"] = tokens[shift : stop + shift].reshape(-1, window)

    def read(self, rows: Rows) -> KeptRows:
        columns: dict[str, Column] = {name: column[rows] for name, column in self._columns.items()}
        return KeptRows(columns, Origin.single(self._name, numbers_of(rows)))

    def close(self) -> None:
        self._columns = {}


class _Lanes:
    """The lanes of one file."""

    def __init__(self, name: str, number: int, tokens: np.ndarray, lanes: int, shift: int) -> None:
        steps = max(0, len(tokens) - shift) // lanes
        self.rows = lanes if steps else 0
        self._name, self._number, self._steps, self._shift = name, number, steps, shift
        self._dtype = tokens.dtype
        self._raw = tokens.view(np.uint8)

    def read(self, rows: Rows) -> KeptRows:
        lanes = numbers_of(rows)
        keys = np.array([b"%d:%d" % (self._number, lane) for lane in lanes.tolist()], object)
        columns: dict[str, Column] = {
            "key": Strings.from_objects(keys),
            "tokens": self._from(lanes, 0),
        }
        if self._shift:
            columns["targets"] = self._from(lanes, self._shift)
        return KeptRows(columns, Origin.single(self._name, lanes))

    def _from(self, lanes: np.ndarray, shift: int) -> Ragged:
        extents = np.full((len(lanes), 1), self._steps, np.int64)
        starts = (lanes * self._steps + shift) * self._dtype.itemsize
        return Ragged(self._raw, self._dtype, starts, extents)

    def close(self) -> None:
        self._raw = np.empty(0, np.uint8)
