"""Messages to frames and back.

A message is a frozen dataclass; frame 0 is msgpack ``[op, field, field, …]`` in the order of the
class, further frames are payload.  Fields that a later version added at the end are ignored;
fields that an earlier one did not know take their default; an unknown op is an error.

Decoding trusts nothing: lengths are bounded before memory is taken, every field has a check, and
whatever is wrong comes out as one ProtocolError that names it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

import msgpack

from . import limits
from .errors import ProtocolError

__all__ = ["Registry", "pack", "unpack"]

M = TypeVar("M")
Check = Callable[[Any], Any]

_MISSING = dataclasses.MISSING
_Spec = tuple[tuple[str, Check, Any], ...]


def pack(value: Any) -> bytes:
    """Plain data as msgpack."""
    return msgpack.packb(value, use_bin_type=True)  # type: ignore[no-any-return]


def unpack(data: Any, what: str = "header") -> Any:
    """Plain data from msgpack, within the limits; ProtocolError for anything else."""
    size = len(data)
    if size > limits.MAX_HEADER_BYTES:
        raise ProtocolError(f"{what} has {size} bytes; the limit is {limits.MAX_HEADER_BYTES}")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_array_len=limits.MAX_HEADER_ITEMS,
            max_map_len=limits.MAX_HEADER_ITEMS,
            max_str_len=limits.MAX_HEADER_STRING,
            max_bin_len=limits.MAX_HEADER_STRING,
            max_ext_len=0,
        )
    except Exception as error:  # msgpack raises seven kinds, depending on what is wrong
        raise ProtocolError(
            f"{what} is not valid msgpack: {type(error).__name__}: {error}"
        ) from None


def _spec_of(kind: type) -> _Spec:
    hints = get_type_hints(kind, include_extras=True)
    spec = []
    for field in dataclasses.fields(kind):
        checks = [a for a in get_args(hints[field.name])[1:] if callable(a)]
        if not checks:
            raise TypeError(f"{kind.__name__}.{field.name} has no check")
        default = field.default
        if field.default_factory is not _MISSING:
            default = field.default_factory()
        spec.append((field.name, checks[0], default))
    return tuple(spec)


def record_check(kind: type[M]) -> Check:
    """A check for a nested record: a list with the fields of a dataclass, decoded to it."""
    spec = _spec_of(kind)

    def check(value: Any) -> M:
        if not isinstance(value, list):
            raise ProtocolError(f"a {kind.__name__} is a list of its fields")
        return kind(*_checked(kind, spec, value))

    return check


def _checked(kind: type, spec: _Spec, values: Sequence[Any]) -> list[Any]:
    out = []
    for i, (name, check, default) in enumerate(spec):
        if i < len(values):
            try:
                out.append(check(values[i]))
            except ProtocolError as error:
                raise ProtocolError(f"{kind.__name__}.{name}: {error}") from None
        elif default is not _MISSING:
            out.append(default)
        else:
            raise ProtocolError(f"{kind.__name__} lacks its field {name!r}")
    return out


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_plain(getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


class Registry:
    """The messages that one end may send."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._by_op: dict[int, tuple[type, _Spec]] = {}
        self._ops: dict[type, tuple[int, tuple[str, ...]]] = {}

    def message(self, op: int) -> Callable[[type[M]], type[M]]:
        """Class decorator that gives a frozen dataclass its number."""

        def register(kind: type[M]) -> type[M]:
            if op in self._by_op:
                raise ValueError(f"op {op} of {self.name} is taken")
            spec = _spec_of(kind)
            self._by_op[op] = (kind, spec)
            self._ops[kind] = (op, tuple(name for name, _, _ in spec))
            return kind

        return register

    @property
    def kinds(self) -> tuple[type, ...]:
        return tuple(self._ops)

    def encode(self, message: Any) -> bytes:
        """Frame 0 of a message."""
        op, names = self._ops[type(message)]
        header = pack([op, *(_plain(getattr(message, name)) for name in names)])
        if len(header) > limits.MAX_HEADER_BYTES:
            raise ProtocolError(
                f"{type(message).__name__} needs a header of {len(header)} bytes; "
                f"the limit is {limits.MAX_HEADER_BYTES}"
            )
        return header

    def decode(self, header: Any) -> Any:
        """The message of a frame 0; ProtocolError says what is wrong with it."""
        values = unpack(header)
        if not isinstance(values, list) or not values:
            raise ProtocolError("a header is a list that starts with its op")
        op = values[0]
        known = self._by_op.get(op) if type(op) is int else None
        if known is None:
            raise ProtocolError(f"{self.name} has no op {op!r:.40}")
        kind, spec = known
        return kind(*_checked(kind, spec, values[1:]))
