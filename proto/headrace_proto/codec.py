"""Messages to frames and back.

A message is a record; frame 0 is msgpack ``[op, field, field, …]`` in the order of the class,
further frames are payload.  Fields that a later version added at the end are ignored; fields that
an earlier one did not know take their default; an unknown op is an error.

Messages of each training step have a packed layout instead (``step_messages.py``).  Its first byte
is ``LAYOUT``, and no msgpack list begins with a byte below 0x80.

Decoding trusts nothing: lengths are bounded before memory is taken, nesting before anything walks
it, every field has a check, and any fault raises a ProtocolError that names it.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, dataclass_transform, get_args, get_type_hints

import msgpack

from . import limits
from .errors import ProtocolError
from .record import record

#: First byte of a packed message: the version of its layout.
LAYOUT = 1
_PACKED_BELOW = 0x80

M = TypeVar("M")
Check = Callable[[Any], Any]

#: Field, check, and whether it may be missing.
_Spec = tuple[tuple[str, Check, bool], ...]

_CONTAINERS = frozenset((list, dict))
_LIMITS = {
    "max_str_len": 4 * limits.MAX_HEADER_STRING,  # UTF-8 takes up to 4 bytes for a character
    "max_bin_len": limits.MAX_HEADER_STRING,
    "max_ext_len": 0,
}
#: Up to this size a false length costs less than a megabyte; larger headers are probed first.
_SMALL_BYTES = 512


def pack(value: Any) -> bytes:
    """Return plain data as msgpack; records in it become lists of their fields."""
    # The text of an error may have a file name that is no UTF-8; the error must get through.
    return msgpack.packb(  # type: ignore[no-any-return]
        value, use_bin_type=True, default=fields_of, unicode_errors="backslashreplace"
    )


def unpack(data: Any, what: str = "header", depth: int = limits.MAX_HEADER_DEPTH) -> Any:
    """Return plain data from msgpack, within the limits; ProtocolError for anything else.

    Plain data is None, bool, int, float, str, bytes, lists of it, and maps from str to it.
    """
    size = len(data)
    if size > limits.MAX_HEADER_BYTES:
        raise ProtocolError(f"{what} has {size} bytes; the limit is {limits.MAX_HEADER_BYTES}")
    # An entry takes a byte at least.  A greater length is false and would cost memory.
    items = min(size, limits.MAX_HEADER_ITEMS)
    try:
        if size > _SMALL_BYTES:
            # 1,000 nested lists that each announce 4,096 entries would have 33 MB allocated before
            # the missing entries are noticed.  Skipping makes no objects, and notices them too.
            probe = msgpack.Unpacker(
                max_buffer_size=size, max_array_len=items, max_map_len=items, **_LIMITS
            )
            probe.feed(data)
            probe.skip()
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_array_len=items,
            max_map_len=items,
            ext_hook=_refuse_ext,
            **_LIMITS,
        )
    except Exception as error:  # msgpack raises seven kinds, depending on what is wrong
        raise ProtocolError(
            f"{what} is not valid msgpack: {type(error).__name__}: {error}"
        ) from None
    if type(value) in _CONTAINERS and not _is_shallow(value, what, depth):
        raise ProtocolError(f"{what} is nested deeper than {depth}")
    return value


def _refuse_ext(code: int, data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code} is not plain data")


def _is_shallow(value: Any, what: str, depth: int) -> bool:
    """Return whether a list or a map is nested at most so deep; check that keys are texts."""
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise ProtocolError(f"{what} has the map key {key!r:.40}, which is not a text")
        value = value.values()
    inner = [one for one in value if one and type(one) in _CONTAINERS]
    return not inner or (depth > 1 and all(_is_shallow(one, what, depth - 1) for one in inner))


def _spec_of(kind: type) -> _Spec:
    hints = get_type_hints(kind, include_extras=True)
    spec = []
    for field in dataclasses.fields(kind):
        checks = [a for a in get_args(hints[field.name])[1:] if callable(a)]
        if not checks:
            raise TypeError(f"{kind.__name__}.{field.name} has no check")
        missing = dataclasses.MISSING
        free = field.default is not missing or field.default_factory is not missing
        spec.append((field.name, checks[0], free))
    return tuple(spec)


def record_check(kind: type[M]) -> Check:
    """Return a check for a nested record, which decodes a list of fields to a dataclass."""
    spec = _spec_of(kind)

    def check(value: Any) -> M:
        if not isinstance(value, list):
            raise ProtocolError(f"a {kind.__name__} is a list of its fields")
        return kind(*_checked(kind, spec, value))

    return check


def _checked(kind: type, spec: _Spec, values: Sequence[Any]) -> list[Any]:
    if len(values) < len(spec) and not spec[len(values)][2]:
        raise ProtocolError(f"{kind.__name__} lacks its field {spec[len(values)][0]!r}")
    out: list[Any] = []
    for (name, check, _), value in zip(spec, values, strict=False):
        try:
            out.append(check(value))
        except ProtocolError as error:
            raise ProtocolError(f"{kind.__name__}.{name}: {error}") from None
    return out  # the record has defaults for the others


def fields_of(value: Any) -> Sequence[Any]:
    """Return the fields of a record for msgpack, which does not know its type.

    TypeError for any other value.
    """
    values = getattr(type(value), "__record_values__", None)
    if values is None:
        raise TypeError(f"{type(value).__name__} is not plain data: {value!r:.80}")
    return values(value)  # type: ignore[no-any-return]


class Registry:
    """The messages that one end may send."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._by_op: dict[int, tuple[type, _Spec]] = {}
        self.kinds: dict[type, int] = {}  # the messages, each with its number on the wire
        self._packers: dict[type, Callable[[Any], bytes]] = {}
        # by the first bytes of the message
        self._unpackers: dict[bytes, Callable[[bytes], Any]] = {}

    def register(self, op: int, kind: type[M]) -> type[M]:
        """Register a record under its number."""
        if op in self._by_op:
            raise ValueError(f"op {op} of {self.name} is taken")
        self._by_op[op] = kind, _spec_of(kind)
        self.kinds[kind] = op
        return kind

    def packed(
        self, op: int, kind: type[M], packer: Callable[[M], bytes], unpacker: Callable[[bytes], M]
    ) -> None:
        """Register a message whose layout begins with ``LAYOUT`` and this number."""
        self.kinds[kind] = op
        self._packers[kind] = packer
        self._unpackers[bytes((LAYOUT, op))] = unpacker

    def encode(self, message: Any) -> bytes:
        """Return frame 0 of a message."""
        kind = type(message)
        packer = self._packers.get(kind)
        if packer is not None:
            try:
                header = packer(message)
            except (struct.error, OverflowError, TypeError, ValueError) as error:
                raise ProtocolError(f"{kind.__name__} does not fit its layout: {error}") from None
        else:
            header = pack([self.kinds[kind], *fields_of(message)])
        if len(header) > limits.MAX_HEADER_BYTES:
            raise ProtocolError(
                f"{kind.__name__} needs a header of {len(header)} bytes; "
                f"the limit is {limits.MAX_HEADER_BYTES}"
            )
        return header

    def decode(self, header: Any) -> Any:
        """Return the message of a frame 0; ProtocolError describes a fault."""
        if len(header) > limits.MAX_HEADER_BYTES:
            raise ProtocolError(
                f"a header has {len(header)} bytes; the limit is {limits.MAX_HEADER_BYTES}"
            )
        start = bytes(header[:2])
        if (unpacker := self._unpackers.get(start)) is not None:
            return unpacker(bytes(header))
        if self._unpackers and start and start[0] < _PACKED_BELOW:
            raise ProtocolError(
                f"{self.name} has no packed message that begins with 0x{start.hex()}"
            )
        values = unpack(header)
        if not isinstance(values, list) or not values:
            raise ProtocolError("a header is a list that starts with its op")
        op = values[0]
        known = self._by_op.get(op) if type(op) is int else None
        if known is None:
            raise ProtocolError(f"{self.name} has no op {op!r:.40}")
        kind, spec = known
        return kind(*_checked(kind, spec, values[1:]))


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def message(sent_by: Registry, op: int) -> Callable[[type[M]], type[M]]:
    """Make the class a record, and register it as a message of one end."""
    return lambda kind: sent_by.register(op, record(kind))
