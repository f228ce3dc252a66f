"""The state before the first segment of a sequence, as plain data.

    zeros((2, 256), "float32")             zeros: of numbers, False, or empty strings
    np.ones(4, "float32"), [0.5], b"a"     a constant, the same for every example
    "column"                               each example brings its own
        ─► {"name", "kind", "dtype", "shape", "value"}

A state has a fixed shape that is not empty, and any dtype.  The dtype and shape of one that is
brought are those of its column, and None where only reading will show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from headrace_proto import dtypes, limits
from headrace_proto.errors import rewording

from .argument_checks import MAX_ELEMENTS, check_kind, checked_dtype, checked_name, checked_shape
from .examples import as_array

_SOURCES = "zeros(shape, dtype), a constant array or a column's name"


@dataclass(frozen=True, slots=True)
class Zeros:
    """An initial state of zeros, made by ``zeros``."""

    shape: tuple[int, ...]
    dtype: str

    def __repr__(self) -> str:
        return f"zeros({self.shape!r}, {self.dtype!r})"


def zeros(shape: Iterable[int], dtype: Any = "float32") -> Zeros:
    """Return an initial state of zeros; of dtype "bytes" of empty strings.

    ``shape`` is that of one row: a batch has ``[batch_size, *shape]``.
    """
    name, dims = checked_dtype("dtype", dtype), checked_shape("shape", shape)
    _check_dims("shape", dims)
    if prod(dims) > MAX_ELEMENTS:
        raise ValueError(f"shape={dims} has {prod(dims)} elements; the most is {MAX_ELEMENTS}")
    return Zeros(dims, name)


def _check_dims(what: str, dims: tuple[int, ...]) -> None:
    if len(dims) >= limits.MAX_RANK:  # one more is that of the rows
        raise ValueError(f"{what} has {len(dims)} dimensions; {limits.MAX_RANK - 1} can be")
    if 0 in dims:
        raise ValueError(f"{what} is {list(dims)}, which is empty; every dimension is 1 or more")


def block_name(argument: str, prefix: str, name: str) -> str:
    """Return a name, after it was seen that a batch can carry it as ``prefix:name``."""
    if ":" in name:
        raise ValueError(f"{argument}={name!r:.80} holds a colon, which stands between its parts")
    most = limits.MAX_NAME - len(prefix) - 1
    if len(name) > most:
        raise ValueError(
            f"{argument}={name!r:.80} has {len(name)} characters; in a batch of segments a name "
            f"of {prefix} has at most {most}"
        )
    return name


def checked_states(argument: str, value: Any) -> list[dict[str, Any]]:
    """Return initial states as plain data, sorted by name; none is allowed here."""
    check_kind(argument, value, Mapping, f"a dict of name to {_SOURCES}")
    names = [
        block_name(f"a name in {argument}", "state", checked_name(f"a name in {argument}", name))
        for name in value
    ]
    return [_state(f"{argument}[{name!r}]", name, value[name]) for name in sorted(names)]


def _state(argument: str, name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Zeros):
        return _plain(name, "zeros", value.dtype, value.shape, None)
    if isinstance(value, str):
        return _plain(name, "column", None, None, checked_name(argument, value))
    if not hasattr(value, "__array__"):
        numbers = (bool, int, float, complex, bytes, bytearray, list, tuple)
        check_kind(argument, value, numbers, _SOURCES)
    with rewording(ValueError, f"{argument}: ", ValueError):
        array = as_array(value)
    _check_dims(f"{argument}: the shape", array.shape)
    dtype = dtypes.name_of(array.dtype)
    data = array.reshape(-1).tolist() if dtype == dtypes.BYTES else array.tobytes()
    return _plain(name, "constant", dtype, array.shape, data)


def _plain(
    name: str, kind: str, dtype: str | None, shape: tuple[int, ...] | None, value: Any
) -> dict[str, Any]:
    dims = None if shape is None else list(shape)
    return {"name": name, "kind": kind, "dtype": dtype, "shape": dims, "value": value}
