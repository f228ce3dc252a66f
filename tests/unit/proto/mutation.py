"""Messages by chance, and broken headers made from whole ones: half by structure, half by bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgpack

from headrace_proto import checks
from headrace_proto.errors import ProtocolError

#: Errors of messages that can not be sent: they are too large, or their columns are none.
UNSENDABLE = (ProtocolError, ValueError, OverflowError, TypeError, struct.error)

#: What a peer may put in the place of anything.
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 255, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -0.0, 1.5, 1e308, float("inf"), -float("inf"), float("nan")),
    *("", "x", "x" * 300, "\0", "水", b"", b"\0", b"x" * 300, b"\xff\xfe"),
    *([], [[]], {}, {"": {}}, [None] * 40, {"k": [1]}, [[1, 2, [3]]], [[[[[[[[[1]]]]]]]]]),
    *({b"k": 1}, {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {}}}}}}}}}),
    *(msgpack.ExtType(5, b""), msgpack.ExtType(1, b"abcd"), msgpack.Timestamp(1, 2)),
)
#: First bytes of every kind of length, and text that is none.
TAGS = (
    *(b"\xc1", b"\xc4\xff", b"\xc6\xff\xff\xff\xff", b"\xc7\x00\xff", b"\xc9\xff\xff\xff\xff\x01"),
    *(b"\xca\x7f\xc0\x00\x00", b"\xcf\xff", b"\xd6\xff\x00\x00\x00\x01", b"\xdc\x10\x00" * 40),
    *(b"\xdd\x7f\xff\xff\xff", b"\xde\x0f\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\x00\x01\x00\x00"),
    *(b"\xa1\xff", b"\xa3\xed\xa0\x80", b"\x91" * 60, b"\x91" * 1100, b"\x81\xa0" * 60),
)


#: What a number in a packed message may be.
NUMBERS = (0, 1, 2, 5, 255, 2**16 - 1, 2**31, 2**32 - 1, 2**62 - 1, 2**62, 2**63, 2**64 - 1)


def mutant(chance: random.Random, samples: list[bytes]) -> bytes:
    """One broken header, or one that came through whole."""
    header = chance.choice(samples)
    if chance.random() < 0.5:
        if header[0] < 0x80:
            return _renumbered(chance, header)
        value = msgpack.unpackb(header)
        for _ in range(chance.randint(1, 2)):
            value = _changed(chance, value)
        return msgpack.packb(value)
    data = bytearray(header)
    for _ in range(chance.randint(1, 2)):
        _scratch(chance, data, samples)
    return bytes(data)


def _changed(chance: random.Random, value: Any) -> Any:
    """The value with one part of it replaced, removed, repeated or moved."""
    if not isinstance(value, list) or not value or chance.random() < 0.05:
        return chance.choice(NASTY)
    value = list(value)
    at = chance.randrange(len(value))
    how = chance.random()
    if how < 0.4:
        value[at] = chance.choice(NASTY)
    elif how < 0.7:
        value[at] = _changed(chance, value[at])
    elif how < 0.8:
        del value[at]
    elif how < 0.9:
        value.insert(at, chance.choice(NASTY))
    else:
        other = chance.randrange(len(value))
        value[at], value[other] = value[other], value[at]
    return value


def _renumbered(chance: random.Random, header: bytes) -> bytes:
    """A packed header with another number, of any width, at one or two places."""
    data = bytearray(header)
    for _ in range(chance.randint(1, 2)):
        width = chance.choice((1, 2, 8))
        at = chance.randrange(len(data) - width + 1) if len(data) > width else 0
        number = chance.choice(NUMBERS) % 256**width
        data[at : at + width] = number.to_bytes(width, "little")
    return bytes(data)


def _scratch(chance: random.Random, data: bytearray, samples: list[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    how = chance.random()
    if how < 0.4 and at < len(data):
        data[at] ^= 1 << chance.randrange(8)
    elif how < 0.6:
        data[at:at] = chance.choice(TAGS)
    elif how < 0.75:
        del data[at : at + chance.randint(1, 9)]
    elif how < 0.9:
        data[at : at + 1] = bytes([chance.randrange(256)])
    else:
        other = chance.choice(samples)
        data[at:] = other[chance.randrange(len(other)) :]


def drawn(chance: random.Random, kind: type, known: Sequence[int], columns: Any) -> Any:
    """Return a message or record of a class with any fields, which may be none that can be sent.

    Most of its numbers are ``known`` ones, and some of its plain data are these ``columns``.
    """

    def value(hint: Any, check: Any = None) -> Any:
        if get_origin(hint) is Annotated:
            return value(*get_args(hint)[:2])
        if check in (get_args(checks.Plain)[1], get_args(checks.Columns)[1]):
            return chance.choice((columns, [], [number()], NASTY[chance.randrange(20)]))
        if hint is bool:
            return chance.random() < 0.5
        if check in (get_args(checks.RowCount)[1], get_args(checks.World)[1]):
            return chance.choice((0, 1, 2, 40, 65_536, number()))
        if hint is int:
            signed = check in (get_args(checks.Signed)[1], get_args(checks.Rank)[1])
            return chance.randrange(-2, 4) if signed else number()
        if hint is float:
            return chance.choice((0.0, 0.5, 1.0, 1e8))
        if hint is str:
            return chance.choice(("", "x", "plain", "lanes", "../x", "y" * 300))
        if hint is bytes:
            return chance.randbytes(chance.choice((0, 1, 16, 64, 100)))
        if getattr(hint, "__annotations__", None):  # a record, or a named tuple
            return drawn(chance, hint, known, columns)
        origin, members = get_origin(hint), get_args(hint)
        if origin not in (tuple, Sequence):
            return {"x": number()}
        if origin is tuple and members[-1] is not ...:
            return tuple(map(value, members))
        many = chance.choice((0, 1, 2, 3, 6) if chance.random() < 0.95 else (1000,))
        return tuple([value(members[0]) for _ in range(many)])

    def number() -> int:
        if chance.random() < 0.6:
            return chance.choice(known)
        if chance.random() < 0.02:
            return chance.choice((2**62, 2**63 - 1, 2**63, 2**64 - 1))  # of no message
        return chance.choice((2**31, 2**32 + 1, 2**62 - 1, chance.randrange(2**62)))

    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: value(hint) for name, hint in hints.items()})
