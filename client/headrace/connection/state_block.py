"""The states that a trainer saves: their values are checked, and copied to one block of bytes.

    tensor of the feed's framework ──► itself ──┐
    list, __array__, __dlpack__ ─────► numpy ───┴──► described: dtype, shape ──► host array

A value's own dtype and shape are checked before any of its bytes is copied.  dtypes are equal or
wrong; only lists, which have none, are cast, and only where no number changes its meaning.

    numbers only:   where each lies is known before any is saved: written straight into the block
    with strings:   known when the last is saved: the others wait as a copy

The block is a state buffer of the session, which the owner maps, too, or else memory of a pool,
which is used again when the socket and the session have released it.

    StateBuffer   take ──► written ──► named by the Save ──► answered ──► free again

A save keeps its buffer until it is answered, so it can be sent again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace_proto import limits
from headrace_proto.dtypes import BYTES, NUMPY_OF, numpy_dtype
from headrace_proto.errors import LimitExceeded, kind_of, near
from headrace_proto.layout import ColumnPlace, arrange, array_at
from headrace_proto.segment_layout import State
from headrace_proto.state_buffers import PROOF_BYTES, mapped

from ..framework import NUMPY, Framework
from ..machine.requests import StatesPart
from .batch_memory import BufferPool

#: Maximum bytes of states, and rows, in one message of a flush.
_PART_BYTES = 16 * 1024**2
_PART_ROWS = 1000
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


def host(state: State, value: Any, face: Framework) -> np.ndarray:
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


def strings_of(state: State, value: Any, framework: Framework) -> np.ndarray:
    """Return kept strings as an object array; frameworks without strings keep lists."""
    if framework.owns(value):
        return host(state, value, framework)
    return np.array(value, object).reshape(len(value), *state.dims)


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


_Plan = tuple[dict[str, ColumnPlace], list[list[Any]], int]


class StateBuffer:
    """One buffer, which is free again when this object is gone."""

    __slots__ = ("array", "number", "owner")

    def __init__(self, owner: FreeBuffers, number: int, array: np.ndarray) -> None:
        self.owner = owner
        self.number = number
        self.array = array  # its bytes; keep none of its views beyond this object

    def __bytes__(self) -> bytes:
        return bytes(self.array)

    def __del__(self) -> None:
        if not hasattr(self, "array"):  # Ctrl-C came while it was made
            return
        self.owner.free.appendleft(self.number)  # to the front: likely still cached


class FreeBuffers:
    """The buffers in the file of one session.  Several threads may take some."""

    def __init__(self, session_file: str, each: int, proof: bytes) -> None:
        """``each``: bytes of a buffer, as the owner has announced; 0: there is none.

        ``proof``: the first bytes of the file.  Another session's file may take its name when the
        owner has died.
        """
        self._path, self._each, self._proof = session_file, each, proof
        self._arrays: Sequence[np.ndarray] | None = None  # None until the first is taken
        self.free: deque[int] = deque()  # their numbers
        self._lock = threading.RLock()  # of the map; a handler of a signal may save amid it

    def take(self, nbytes: int) -> StateBuffer | None:
        """Return a buffer for ``nbytes``; None where none is free, or where that is too much.

        Call it only once the owner has sent a batch by reference: then the file has its length.
        """
        if nbytes > self._each:
            return None
        arrays = self._arrays
        if arrays is None:
            arrays = self._map()
        try:
            number = self.free.popleft()
        except IndexError:
            return None
        return StateBuffer(self, number, arrays[number])

    def _map(self) -> Sequence[np.ndarray]:
        """Map the file; no buffers where it can not be written, or is not this session's."""
        with self._lock:
            arrays: Sequence[np.ndarray] = ()
            with contextlib.suppress(OSError, ValueError):  # ValueError: it was cut short meanwhile
                file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if os.pread(file, PROOF_BYTES, 0) == self._proof:
                        arrays = mapped(file, self._each, writable=True)
                finally:
                    os.close(file)
            if self._arrays is None:
                self._arrays = arrays
                self.free.extend(range(len(arrays)))
            return self._arrays


class BlockMaker:
    """Makes blocks of one feed's states."""

    def __init__(self, states: Mapping[str, State]) -> None:
        self.states = states
        self.numeric = all(state.dtype != BYTES for state in states.values())
        self.pool = BufferPool()
        #: Of numbers: slots, their description and the block's size, by the number of rows.
        self.plans: dict[int, _Plan] = {}

    def plan(self, rows: int) -> _Plan:
        plan = self.plans[rows] = self._plan(rows, {})
        return plan

    def block(self, rows: int, values: Mapping[str, Any]) -> tuple[list[list[Any]], np.ndarray]:
        """Write arrays, and flat lists of strings, to a block; return it and its description."""
        data = {
            name: sum(map(len, value))
            for name, value in values.items()
            if self.states[name].dtype == BYTES
        }
        slots, columns, nbytes = self._plan(rows, data)
        block = self.pool.buffer(nbytes)
        for name, slot in slots.items():
            if slot.dtype == BYTES:
                _put_strings(block, slot, values[name])
            else:
                np.copyto(array_at(block, slot), values[name])
        return columns, block

    def parts(
        self, values: Mapping[str, Any], rows: Sequence[int], framework: Framework
    ) -> Iterator[StatesPart]:
        """Yield some rows of kept states in messages of bounded size."""
        whole = {
            name: (strings_of if state.dtype == BYTES else host)(state, values[name], framework)
            for name, state in self.states.items()
        }
        numbers = sum(state.row_bytes for state in self.states.values())
        texts = [name for name, state in self.states.items() if state.dtype == BYTES]
        part: list[int] = []
        filled = 0
        for row in rows:
            size = numbers + sum(
                sum(map(len, strings_in(self.states[name], whole[name][row : row + 1])))
                for name in texts
            )
            if size > limits.MAX_UPLOAD_BYTES:
                raise LimitExceeded(
                    f"the states {', '.join(self.states)} of row {row} take {size} bytes; a "
                    f"message of a trainer holds {limits.MAX_UPLOAD_BYTES}"
                )
            if part and (filled + size > _PART_BYTES or len(part) == _PART_ROWS):
                yield self._part(part, whole)
                part, filled = [], 0
            part.append(row)
            filled += size
        if part:
            yield self._part(part, whole)

    def _part(self, rows: list[int], whole: Mapping[str, np.ndarray]) -> StatesPart:
        some = {
            name: strings_in(state, whole[name][rows])
            if state.dtype == BYTES
            else whole[name][rows]
            for name, state in self.states.items()
        }
        return tuple(rows), *self.block(len(rows), some)

    def _plan(self, rows: int, string_bytes: Mapping[str, int]) -> _Plan:
        slots, nbytes = arrange(
            [
                (state.dtype, (rows, *state.dims), string_bytes.get(name, 0))
                for name, state in self.states.items()
            ]
        )
        if nbytes > limits.MAX_UPLOAD_BYTES:
            raise LimitExceeded(
                f"the states {', '.join(self.states)} of {rows} rows take {nbytes} bytes; a "
                f"message of a trainer holds {limits.MAX_UPLOAD_BYTES}: use smaller batches, or "
                "let states stay with the trainer (order='lanes', state_placement='trainer')"
            )
        columns = [[slot.offset, slot.nbytes, list(slot.shape)] for slot in slots]
        return dict(zip(self.states, slots, strict=True)), columns, nbytes


class Upload:
    """The states of one batch while they are saved one by one."""

    __slots__ = ("_array", "_block", "_columns", "_maker", "_rows", "_slots")

    def __init__(self, maker: BlockMaker, rows: int, buffers: FreeBuffers | None = None) -> None:
        """``buffers``: state buffers of the session, for states without strings."""
        self._maker, self._rows = maker, rows
        if maker.numeric:
            self._slots, self._columns, nbytes = maker.plans.get(rows) or maker.plan(rows)
            self._block = buffer = None if buffers is None else buffers.take(nbytes)
            self._array = maker.pool.buffer(nbytes) if buffer is None else buffer.array

    def put(self, name: str, value: Any) -> Any:
        """Copy an array, which the trainer may change afterwards.

        Return what waits for the other states: all do where some are flat lists of strings.
        """
        if self._maker.numeric:
            slot = self._slots[name]
            there = np.ndarray(slot.shape, NUMPY_OF[slot.dtype], self._array, slot.offset)
            there[...] = value
            return None
        return value if self._maker.states[name].dtype == BYTES else np.array(value)

    def finish(self, values: Mapping[str, Any]) -> tuple[list[Any], np.ndarray | StateBuffer]:
        """Return description and block, once all states were put."""
        if self._maker.numeric:
            return self._columns, self._block or self._array
        return self._maker.block(self._rows, values)


def _put_strings(block: np.ndarray, slot: ColumnPlace, strings: list[bytes]) -> None:
    ends = np.ndarray((len(strings) + 1,), np.int64, block, slot.offset)
    ends[0] = 0
    np.cumsum([len(value) for value in strings], out=ends[1:])
    data = np.frombuffer(b"".join(strings), np.uint8)
    start = slot.offset + 8 * (len(strings) + 1)
    block[start : start + data.nbytes] = data
