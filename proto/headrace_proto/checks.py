"""Checked field types of messages: ``Annotated`` aliases whose second part is the check.

A check takes what ``codec.unpack`` gave (plain data, of bounded size and nesting) and returns the
field's value or raises ProtocolError.  It converts nothing that could change its meaning: a bool
is no number, and a number is no text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from . import limits
from .errors import ProtocolError


def _count(value: Any) -> int:
    if type(value) is int and 0 <= value < 2**64:
        return value
    raise ProtocolError(f"{value!r:.40} is not a count")


def _signed(value: Any) -> int:
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    raise ProtocolError(f"{value!r:.40} is not an integer of 64 bits")


def _counts(value: Any) -> tuple[int, ...]:
    if type(value) is list:
        for v in value:
            if type(v) is not int or not 0 <= v < 2**64:
                break
        else:
            return tuple(value)
    raise ProtocolError(f"{value!r:.40} is not a list of counts")


def _flag(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise ProtocolError(f"{value!r:.40} is not true or false")


def check_text(value: Any) -> str:
    if type(value) is str and len(value) <= limits.MAX_HEADER_STRING:
        return value
    raise ProtocolError(f"{value!r:.40} is not a text")


def _blob(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    raise ProtocolError(f"{value!r:.40} is not a string of bytes")


def _seconds(value: Any) -> float:
    if type(value) in (int, float) and 0 <= value < 1e9:
        return float(value)
    raise ProtocolError(f"{value!r:.40} is not a duration in seconds")


def check_number(value: Any) -> float:
    if type(value) in (int, float):
        return float(value)
    raise ProtocolError(f"{value!r:.40} is not a number")


def _plain(value: Any) -> Any:
    return value  # codec.unpack has checked that it is plain data


def list_of(check: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a check for a list whose members pass ``check``."""

    def checked(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise ProtocolError(f"{value!r:.40} is not a list")
        return tuple([check(v) for v in value])

    return checked


Count = Annotated[int, _count]  #: 0 … 2⁶⁴-1
Signed = Annotated[int, _signed]  #: −2⁶³ … 2⁶³-1
Counts = Annotated[tuple[int, ...], _counts]
Flag = Annotated[bool, _flag]
Text = Annotated[str, check_text]
Blob = Annotated[bytes, _blob]
Seconds = Annotated[float, _seconds]
Plain = Annotated[Any, _plain]  #: nested lists, maps, numbers, strings
