"""numpy files: .npz with an array per column, .npy with one.  The first dimension counts examples.

    ragged    {column: offsets}: example i has the values from offset i up to offset i + 1 of its
              column; the offsets are an array of the same .npz

Arrays are mapped and not read, in .npz too unless they are compressed (``savez_compressed``);
those are read whole when the feed starts.  Checksums of .npz are verified for compressed arrays
only.
"""

from __future__ import annotations

import io
import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from math import prod

import numpy as np

from headrace_proto import dtypes
from headrace_proto.errors import DataError, FilesMissing, rewording
from headrace_proto.schema import Field

from ...files.manifest import DataFile
from ...files.mapped_files import mapped
from ...files.ranges import open_stream
from ..column_parts import files_that_serve, whole_part
from ..columns import Column, Ragged, Strings, field_of
from ..source import Opening, PartsReader

# ── Arrays of the .npy format, as views of their bytes.  Object arrays are refused.


#: Maximum size of a header; numpy writes about 100 bytes.
_MAX_HEADER = 1 << 16
_READ = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def npy_array(data: np.ndarray) -> np.ndarray:
    """Return the array in the bytes of a .npy file, as a view.  ValueError where there is none."""
    stream = io.BytesIO(data[:_MAX_HEADER].tobytes())
    version = np.lib.format.read_magic(stream)
    if version not in _READ:
        raise ValueError(f"version {version} of the format holds arrays of records only")
    unreadable = SyntaxError, TypeError, tokenize.TokenError
    try:
        with rewording(ValueError, "its header can not be read: ", *unreadable):
            shape, fortran, dtype = _READ[version](stream)
    except (RecursionError, MemoryError):  # of Python's parser
        raise ValueError("its header is nested too deeply") from None
    if min(shape, default=0) < 0:
        raise ValueError(f"it has the impossible shape {list(shape)}")
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which only unpickling could read")
    if not dtype.itemsize:
        raise ValueError(f"it holds {dtype}, values of no bytes")
    begin = stream.tell()
    size = prod(shape) * dtype.itemsize
    if begin + size > data.size:
        raise ValueError(f"it is cut off: {begin + size} bytes are wanted, {data.size} are there")
    flat = data[begin : begin + size].view(dtype) if size else np.empty(prod(shape), dtype)
    array: np.ndarray = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    return array


def array_column(array: np.ndarray) -> Column:
    """Return an array of examples as a column; text becomes bytes.  DataError for other dtypes."""
    if array.dtype.kind == "U":
        no_text = "it holds what is no text of Unicode: "
        with rewording(DataError, no_text, UnicodeError, SystemError):  # the latter of no character
            array = np.char.encode(array, "utf-8") if array.size else np.empty(array.shape, "S1")
    if array.dtype.kind == "S":
        array = np.ascontiguousarray(array)
        width = array.dtype.itemsize
        lengths = np.char.str_len(array).astype(np.int64).reshape(array.shape)
        starts = (np.arange(array.size) * width).reshape(array.shape)
        return Strings(array.reshape(-1).view(np.uint8), starts, lengths)
    with rewording(DataError, "", TypeError):
        dtypes.canonical(array.dtype.newbyteorder("="))
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


_LOCAL_HEADER = 30  # bytes before a member's name, in a zip file
#: Exceptions that zipfile raises for damaged files; the last two where their flags are damaged.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError)


class Npz(PartsReader):
    """Arrays of files whose headers have all places, so no index is cached."""

    def __init__(self, opening: Opening, ragged: Mapping[str, str] | None = None) -> None:
        def opened(file: DataFile) -> tuple[Mapping[str, Column], Mapping[str, Field]]:
            with rewording(DataError, f"{file.path}: ", DataError, but=(FilesMissing,)):
                data = mapped(file)
                columns = _columns(_arrays(file, data), ragged or {})
            return columns, {name: field_of(column) for name, column in columns.items()}

        schema, served = files_that_serve(opening, opened)
        parts = [whole_part(file.path, had, schema, opening.bad) for file, had, _ in served]
        super().__init__(schema.fields, parts)


def _arrays(file: DataFile, data: np.ndarray) -> dict[str, np.ndarray]:
    if data[:2].tobytes() != b"PK":
        name = os.path.basename(file.path).partition(".")[0]
        return {name: _parsed(name, data)}
    arrays = {}
    unsound = "it is no sound .npz file, or is cut off: "
    naming = rewording(DataError, unsound, *_DAMAGE, but=(FilesMissing,))
    with naming, open_stream(file) as stream, zipfile.ZipFile(stream) as archive:
        for entry in archive.infolist():
            if not entry.filename.endswith(".npy"):
                raise DataError(f"its member {entry.filename!r} is no .npy array")
            name = entry.filename.removesuffix(".npy")
            if name in arrays:
                raise DataError(f"two of its arrays are named {name!r}; rename one")
            arrays[name] = _parsed(name, _member(archive, entry, data))
    return arrays


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, data: np.ndarray) -> np.ndarray:
    """Return the bytes of a member: where they lie, or decompressed."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        return np.frombuffer(archive.read(entry), np.uint8)
    at = entry.header_offset
    lengths = data[at + 26 : at + _LOCAL_HEADER].view("<u2")
    if lengths.size != 2:
        raise EOFError("a header lies past the end")
    begin = at + _LOCAL_HEADER + int(lengths[0]) + int(lengths[1])
    return data[begin : begin + entry.file_size]


def _parsed(name: str, data: np.ndarray) -> np.ndarray:
    with rewording(DataError, f"array {name!r}: ", ValueError):
        array = npy_array(data)
    if not array.ndim:
        raise DataError(f"array {name!r}: it is one number; the first dimension counts examples")
    return array


def _columns(arrays: Mapping[str, np.ndarray], ragged: Mapping[str, str]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name in (*ragged, *ragged.values()):
        if name not in arrays:
            raise DataError(f"there is no array {name!r}; it has {', '.join(map(repr, arrays))}")
    for name, array in arrays.items():
        if name in ragged.values():
            continue
        with rewording(DataError, f"array {name!r}: ", DataError):
            column = array_column(array)
            if name in ragged:
                column = _ragged(column, arrays[ragged[name]])
        columns[name] = column
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"its arrays hold different numbers of examples: {lengths}; give those whose examples "
            "vary in length offsets by the option ragged"
        )
    return columns


def _ragged(column: Column, offsets: np.ndarray) -> Column:
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
        raise DataError(
            f"its offsets are {offsets.dtype}{list(offsets.shape)}; integers [n + 1] are wanted"
        )
    begins = offsets.astype(np.int64)
    if begins.min() < 0 or (begins[1:] < begins[:-1]).any() or begins[-1] > len(column):
        raise DataError(
            f"its offsets do not rise from 0 to at most {len(column)}, the number of its values"
        )
    assert not isinstance(column, Ragged)
    if isinstance(column, Strings) and column.starts.ndim > 1:
        raise DataError("ragged strings have one dimension")
    return Ragged.from_values(column, begins)
