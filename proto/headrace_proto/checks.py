"""Checked field types of messages: ``Annotated`` aliases whose second part is the check.

A check takes what ``codec.unpack`` gave (plain data, of bounded size and nesting) and returns the
field's value or raises ProtocolError.  It converts nothing that could change its meaning: a bool
is no number, and a number is no text.  Every number has bounds, which its alias names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from . import limits
from .errors import ProtocolError

Check = Callable[[Any], Any]

#: Magnitude of a proportion or a weight: the sum of as many as a message has is finite.
LARGEST = 1e100


def _check(what: str, fits: Callable[[Any], bool], made: Check = lambda value: value) -> Check:
    """Return a check that a value ``fits``; the field gets what is ``made`` of it."""

    def checked(value: Any) -> Any:
        if fits(value):
            return made(value)
        raise ProtocolError(f"{value!r:.40} is not {what}")

    return checked


def number_within(what: str, least: int, most: int) -> Check:
    """Return a check for an integer of these bounds."""
    return _check(f"{what} from {least} to {most}", lambda v: type(v) is int and least <= v <= most)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= limits.MAX_COUNT


def _is_column(value: Any) -> bool:
    if type(value) is not list or len(value) != 3:
        return False
    offset, nbytes, shape = value
    return (
        _is_count(offset)
        and _is_count(nbytes)
        and type(shape) is list
        and all(map(_is_count, shape))
    )


def _is_plain(value: Any) -> bool:
    """Return whether all integers in it have 64 bits with a sign; ``codec.unpack`` checks the rest.

    A worker may store such a number, and numpy may get it.
    """
    kind = type(value)
    if kind is int:
        return -(2**63) <= value < 2**63  # type: ignore[no-any-return]
    if kind is list:
        return all(map(_is_plain, value))
    return kind is not dict or all(map(_is_plain, value.values()))


def list_of(check: Check) -> Check:
    """Return a check for a list whose members pass ``check``."""
    return _check("a list", lambda v: type(v) is list, lambda v: tuple([check(one) for one in v]))


check_faults = list_of(
    _check(
        "a fault of a commit, [token, code, text]",
        lambda v: (
            type(v) is list and [type(one) for one in v] == [int, str, str] and _is_count(v[0])
        ),
    )
)
check_text = _check("a text", lambda v: type(v) is str and len(v) <= limits.MAX_HEADER_STRING)
check_number = _check(
    f"a number from {-LARGEST:g} to {LARGEST:g}",
    lambda v: type(v) in (int, float) and -LARGEST <= v <= LARGEST,
    float,
)

_count = number_within("a count", 0, limits.MAX_COUNT)
_signed = number_within("a count, or -1,", -1, limits.MAX_COUNT)
_counts = _check("a list of counts", lambda v: type(v) is list and all(map(_is_count, v)), tuple)
_rank = number_within("a rank, or -1,", -1, limits.MAX_WORLD - 1)
_world = number_within("a number of ranks", 0, limits.MAX_WORLD)
_rows = number_within("a number of rows", 0, limits.MAX_ROWS)
_flag = _check("true or false", lambda v: type(v) is bool)
_blob = _check("a string of bytes", lambda v: type(v) is bytes)
_seconds = _check(
    "a duration in seconds", lambda v: type(v) in (int, float) and 0 <= v < 1e9, float
)
_map = _check("a map", lambda v: type(v) is dict and _is_plain(v))
_plain = _check("plain data with integers of 64 bits", _is_plain)
_columns = _check(
    "a list of columns, [offset, nbytes, shape]",
    lambda v: type(v) is list and all(map(_is_column, v)),
)

Count = Annotated[int, _count]  #: 0 … 2⁶²-1
Signed = Annotated[int, _signed]  #: −1 … 2⁶²-1
Rank = Annotated[int, _rank]  #: −1 … 65,535
World = Annotated[int, _world]  #: 0 … 65,536
RowCount = Annotated[int, _rows]  #: 0 … 2²⁰
Counts = Annotated[Sequence[int], _counts]
Flag = Annotated[bool, _flag]
Text = Annotated[str, check_text]
Blob = Annotated[bytes, _blob]
Seconds = Annotated[float, _seconds]
Map = Annotated[dict[str, Any], _map]  #: of plain data
Plain = Annotated[Any, _plain]  #: nested lists, maps, numbers, strings
#: The place of each column in a block: its offset, its bytes, its shape.
Columns = Annotated[Sequence[tuple[int, int, Sequence[int]]], _columns]
