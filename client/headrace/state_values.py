"""Checks the values that a trainer saves as states.

    tensor of the feed's framework ──► itself ──┐
    list, __array__, __dlpack__ ─────► numpy ───┴──► described: dtype, shape ──► host array

A value's own dtype and shape are checked before any of its bytes is copied.  dtypes are equal or
wrong; only lists, which have none, are cast, and only where no number changes its meaning.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.errors import kind_of, near
from headrace_proto.segment_layout import State

from .framework import NUMPY, Framework

#: A list may be cast to a kind on its right: bool, integer, float, complex.
_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}


def unknown_state(name: object, known: Collection[str]) -> KeyError:
    """Return the error of a name that is no state of the feed, or of a value in its place."""
    listed, given = list(known) or "none", f"{' '.join(repr(name).split()):.80}"
    if not isinstance(name, str):
        return KeyError(f"{given} ({kind_of(name)}) is not a state of this feed; it has {listed}")
    return KeyError(f"{given} is not a state of this feed; it has {listed}{near(name, known)}")


def presented(state: State, value: Any, rows: int, own: Framework) -> tuple[Framework, Any]:
    """Return a value with the framework that reads it; ValueError if it does not fit the state."""
    face = own if own.owns(value) else NUMPY
    if not face.owns(value):
        array = _from_plain(state, value)
        if array.dtype == object and not array.ndim and type(value) is not bytes:
            got = "None" if value is None else kind_of(value)
            raise ValueError(
                f"state {state.name!r}: got {got}, wanted {state.dtype} of {rows} rows"
            )
        value = array
    dtype, shape = face.described(value)
    wanted = (rows, *state.dims)
    if dtype != state.dtype or shape != wanted:
        raise ValueError(
            f"state {state.name!r}: got {dtype}{list(shape)}, wanted {state.dtype}{list(wanted)}: "
            f"the batch has {rows} rows{face.narrowed(state.dtype)}"
        )
    return face, value


def host(state: State, face: Framework, value: Any) -> np.ndarray:
    """Return a checked value as a numpy array; ValueError where it can not be read here."""
    try:
        return face.state_in(value, state.dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"state {state.name!r} can not be read: {error}") from error


def strings_in(state: State, array: np.ndarray) -> list[bytes]:
    """Return the byte strings of an array, flat; ValueError for anything else in it."""
    flat: list[Any] = array.ravel().tolist()
    for at, value in enumerate(flat):
        if type(value) is not bytes:
            raise ValueError(
                f"state {state.name!r}: element {at} is {value!r:.40} of type "
                f"{type(value).__name__}, wanted bytes"
            )
    return flat


def _from_plain(state: State, value: Any) -> np.ndarray:
    try:
        if hasattr(value, "__array__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if state.dtype == BYTES:
            return np.array(value, object)
        return _cast(np.asarray(value), state.dtype)
    except (TypeError, ValueError, RuntimeError, BufferError, FloatingPointError) as error:
        raise ValueError(
            f"state {state.name!r}: {type(value).__name__} is no array: {error}"
        ) from error


def _cast(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return the numbers of a list in a dtype that can hold them; else unchanged."""
    wanted = numpy_dtype(dtype)
    have, want = _KINDS.get(array.dtype.kind), _KINDS.get(wanted.kind)
    if have is None or want is None or have > want:
        return array
    with np.errstate(over="raise"):
        cast = array.astype(wanted)
    if want == 1 and not (cast == array).all():
        raise ValueError(f"it has numbers that {dtype} does not hold")
    return cast
