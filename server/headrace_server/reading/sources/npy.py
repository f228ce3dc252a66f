"""Arrays of the .npy format, as views of their bytes.  Object arrays are refused."""

from __future__ import annotations

import io
import tokenize
from math import prod

import numpy as np

from headrace_proto import dtypes
from headrace_proto.errors import DataError, rewording
from headrace_server.reading.columns import Column, Strings

#: Maximum size of a header; numpy writes about 100 bytes.
_MAX_HEADER = 1 << 16
_READ = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


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
