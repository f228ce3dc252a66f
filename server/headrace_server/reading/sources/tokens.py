"""Files of tokens, one after the other: cut into windows, or into lanes.

    tokens   t0 t1 t2 t3 t4 t5 t6 t7 t8 t9

    window=3, shift=1   tokens  t0 t1 t2 │ t3 t4 t5 │ t6 t7 t8      an example of a fixed shape
                        targets t1 t2 t3 │ t4 t5 t6 │ t7 t8 t9
    window=3, stride=2  tokens  t0 t1 t2 │ t2 t3 t4 │ t4 t5 t6
    lanes=2, shift=1    tokens  t0 t1 t2 t3 │ t4 t5 t6 t7           an example as long as it can be
                        targets t1 t2 t3 t4 │ t5 t6 t7 t8           key     0:0 │ 0:1

Each file is cut by itself, and its last tokens are left out where they fill no window, or no step
of every lane.  Files are mapped: an example is a view of them, and only the assembler copies it.
"""

from __future__ import annotations

import numpy as np

from headrace_proto import dtypes
from headrace_proto.errors import DataError, rewording
from headrace_proto.schema import Field

from ...files.manifest import DataFile
from ...files.mapped_files import mapped
from ..column_parts import whole_part
from ..columns import Column, Ragged, Strings
from ..example_rows import Schema
from ..source import Opening, PartsReader
from .npz import npy_array


class Tokens(PartsReader):
    """Mapped files.  All features are declared, except the dtype of .npy files."""

    def __init__(
        self,
        opening: Opening,
        dtype: str | None,
        window: int | None,
        lanes: int | None,
        shift: int,
        stride: int | None = None,
    ) -> None:
        files = opening.files
        arrays = [_tokens(file, dtype) for file in files]
        first = arrays[0].dtype
        for file, array in zip(files, arrays, strict=True):
            if array.dtype != first:
                raise DataError(f"{file.path} holds {array.dtype}, and {files[0].path} {first}")
        name = dtypes.name_of(first)
        fields = {"tokens": Field(name, (window,))}
        if shift:
            fields["targets"] = Field(name, (window,))
        if window is None:
            fields = {"key": Field(dtypes.BYTES), **fields}
        if not any(len(array) - shift >= (window or lanes or 0) for array in arrays):
            wanted = f"window={window}" if lanes is None else f"lanes={lanes}"
            raise DataError(
                f"{files[0].path} has {len(arrays[0])} tokens: too few for {wanted} and "
                f"shift={shift}"
            )
        schema, parts = Schema(fields), []
        for number, (file, array) in enumerate(zip(files, arrays, strict=True)):
            columns = (
                _windows(array, window, stride or window, shift)
                if window is not None
                else _lanes(number, array, lanes or 1, shift)
            )
            parts.append(whole_part(file.path, columns, schema, opening.bad))
        super().__init__(fields, parts)


def _tokens(file: DataFile, dtype: str | None) -> np.ndarray:
    """Return the tokens of a file, as a view of it."""
    data = mapped(file)
    if not file.path.endswith(".npy"):
        assert dtype is not None  # it is declared where a file needs it
        item = np.dtype(dtype).itemsize
        if data.size % item:
            raise DataError(
                f"{file.path} has {data.size} bytes, which are no whole number of {dtype}"
            )
        return data.view(dtype)
    with rewording(DataError, f"{file.path}: ", ValueError):
        array = npy_array(data)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.dtype.isnative:
        raise DataError(
            f"{file.path} holds {array.dtype} of shape {list(array.shape)}; tokens are integers [n]"
        )
    if dtype is not None and array.dtype != np.dtype(dtype):
        raise DataError(f"{file.path} holds {array.dtype}, and dtype={dtype} was declared")
    return array


def _windows(tokens: np.ndarray, window: int, stride: int, shift: int) -> dict[str, Column]:
    """Return the windows of one file."""
    count = max(0, (len(tokens) - shift - window) // stride + 1)

    def cut(first: int) -> np.ndarray:
        if stride == window or not count:
            return tokens[first : first + count * window].reshape(-1, window)
        views = np.lib.stride_tricks.sliding_window_view(tokens[first:], window)
        every: np.ndarray = views[: (count - 1) * stride + 1 : stride]
        return every

    return {"tokens": cut(0), **({"targets": cut(shift)} if shift else {})}


def _lanes(number: int, tokens: np.ndarray, lanes: int, shift: int) -> dict[str, Column]:
    """Return the lanes of one file."""
    steps = max(0, len(tokens) - shift) // lanes
    every = np.arange(lanes if steps else 0)
    keys = np.array([b"%d:%d" % (number, lane) for lane in every.tolist()], object)
    columns: dict[str, Column] = {"key": Strings.from_objects(keys)}
    extents, raw = np.full((len(every), 1), steps, np.int64), tokens.view(np.uint8)
    for name, by in {"tokens": 0, **({"targets": shift} if shift else {})}.items():
        starts = (every * steps + by) * tokens.dtype.itemsize
        columns[name] = Ragged(raw, tokens.dtype, starts, extents)
    return columns
