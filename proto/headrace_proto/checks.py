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

Check = Callable[[Any], Any]


def _check(what: str, fits: Callable[[Any], bool], made: Check = lambda value: value) -> Check:
    """Return a check that a value ``fits``; the field gets what is ``made`` of it."""

    def checked(value: Any) -> Any:
        if fits(value):
            return made(value)
        raise ProtocolError(f"{value!r:.40} is not {what}")

    return checked


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64


def list_of(check: Check) -> Check:
    """Return a check for a list whose members pass ``check``."""
    return _check("a list", lambda v: type(v) is list, lambda v: tuple([check(one) for one in v]))


check_faults = list_of(
    _check(
        "a fault of a commit, [token, code, text]",
        lambda v: type(v) is list and [type(one) for one in v] == [int, str, str],
    )
)
check_text = _check("a text", lambda v: type(v) is str and len(v) <= limits.MAX_HEADER_STRING)
check_number = _check("a number", lambda v: type(v) in (int, float), float)

_count = _check("a count", _is_count)
_signed = _check("an integer of 64 bits", lambda v: type(v) is int and -(2**63) <= v < 2**63)
_counts = _check("a list of counts", lambda v: type(v) is list and all(map(_is_count, v)), tuple)
_flag = _check("true or false", lambda v: type(v) is bool)
_blob = _check("a string of bytes", lambda v: type(v) is bytes)
_seconds = _check(
    "a duration in seconds", lambda v: type(v) in (int, float) and 0 <= v < 1e9, float
)
_map = _check("a map", lambda v: type(v) is dict)
_plain = _check("plain data", lambda v: True)  # codec.unpack has checked it

Count = Annotated[int, _count]  #: 0 … 2⁶⁴-1
Signed = Annotated[int, _signed]  #: −2⁶³ … 2⁶³-1
Counts = Annotated[tuple[int, ...], _counts]
Flag = Annotated[bool, _flag]
Text = Annotated[str, check_text]
Blob = Annotated[bytes, _blob]
Seconds = Annotated[float, _seconds]
Map = Annotated[dict[str, Any], _map]  #: of plain data
Plain = Annotated[Any, _plain]  #: nested lists, maps, numbers, strings
