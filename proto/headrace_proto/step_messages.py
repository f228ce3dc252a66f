"""The messages of each training step, and their packed layouts.

    Step   layout op │ counts │ session │ tokens … gets … │ token frame sizes columns … │ …
    Give   layout op │ counts │ session │ tokens … │ faults │ batch columns place name │ …

msgpack and a check per field would cost more than all other handling of such a message.  Its
numbers lie at fixed places, little-endian, and only its rare part (``faults``) is msgpack.

Unpacking trusts nothing.  Each count and each size is compared with the bytes that are there before
it is used, no byte may be left over, and the values have the ranges of their types.  Every fault is
a ProtocolError.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

from . import limits
from .checks import Blob, Columns, Count, Counts, Flag, Plain, RowCount, Signed, Text, check_faults
from .codec import LAYOUT, Registry, pack, unpack
from .errors import ProtocolError

#: The messages that each side may send; the others are in ``messages.py``.
FROM_TRAINER, FROM_SERVER = Registry("trainer"), Registry("server")


class Save(NamedTuple):
    """The commit of a batch with states.  They are one block, in order."""

    token: Count
    frame: Count = 0  # of this message, or a state buffer; 0: no states, or the trainer keeps them
    columns: Columns = ()  # one for each state


class Get(NamedTuple):
    """A request for one batch of a partition, of this epoch or an earlier one."""

    request: Count  # numbers grow within a session
    partition: Count
    epoch: Count = 0


class Step(NamedTuple):
    """A trainer commits, frees memory, returns batches, and asks for others."""

    session: Count
    commits: Counts = ()  # tokens of batches without states
    released: Counts = ()
    returned: Counts = ()
    withdrawn: Counts = ()  # requests
    gets: Sequence[Get] = ()
    saves: Sequence[Save] = ()


class Given(NamedTuple):
    """One batch under a lease: a block in a segment, or frame ``frame`` of this message."""

    request: Count
    token: Count
    partition: Count
    number: Count
    turn_epoch: Count  # its turn: the epoch, or 0 where batches cross epochs …
    turn_index: Count  # … and its number in it
    epoch: Count  # of its first row
    rows: RowCount
    nbytes: Count
    bucket: Signed = -1  # where the feed has buckets or classes
    offset: Count = 0  # in the segment
    frame: Count = 0
    copy_out: Flag = False  # memory is short: copy and release at once
    live: Flag = True  # whether lanes of this trainer go on after it
    columns: Columns = ()  # one for each field of the schema: offset, nbytes, shape
    place: Blob = b""  # what is in it, for its owner's next life
    segment: Text = ""  # "" = inline


class Give(NamedTuple):
    """Batches for a trainer, and the answers to its commits."""

    session: Count
    items: Sequence[Given] = ()
    committed: Counts = ()
    stale: Counts = ()
    faults: Plain = ()  # [token, code, text]: commits refused for a reason of their own


#: Committed and stale tokens, and faults.
Answers = Sequence[Any]
#: First byte, op, how many commits, released, returned, withdrawn, gets and saves follow; session.
_STEP = struct.Struct("<BBHHHHHHQ")
#: Token and frame of a save, bytes of its columns.
_SAVE = struct.Struct("<QHH")
#: First byte, op, how many committed, stale and batches follow, bytes of the faults; session.
_GIVE = struct.Struct("<BBHHHHQ")
#: The numbers of a batch, in the order of its fields; bytes of the columns, of the place, of the
#: segment's name.
_GIVEN = struct.Struct("<QQQQQQQQQqQH??HIB")
#: Makes a message of the tuple of its fields, in half the time of its constructor.
made = tuple.__new__
_get_of = partial(made, Get)
#: Maximum nesting within a field of a message.
_IN_MESSAGE = limits.MAX_HEADER_DEPTH - 1
_MOST_COUNT = limits.MAX_COUNT
#: Maximum size of a description of columns that is remembered; 64 of them take at most 5 MB.
_REMEMBERED_BYTES = 8192


def _short(what: str, data: bytes) -> ProtocolError:
    return ProtocolError(f"a packed {what} does not fit the {len(data)} bytes that came")


def _bounded(what: str, numbers: Sequence[int], most: int = limits.MAX_COUNT) -> None:
    """Check what the layout alone does not bound."""
    if (largest := max(numbers)) > most:
        raise ProtocolError(f"{what} has {largest}; the most is {most}")


# Columns, as numbers of 8 bytes: rank, offset, nbytes and the dimensions of each


#: Lists of columns that were packed, by identity: most batches of a feed have one of a few.
_packed_before: dict[int, tuple[Any, bytes]] = {}
_MOST_PACKED = 64


def pack_columns(columns: Any) -> bytes:
    """Pack the description of a block's columns, a list that nobody changes afterwards."""
    known = _packed_before.get(id(columns))
    if known is None or known[0] is not columns:
        known = columns, _packed(columns)
        if len(known[1]) <= _REMEMBERED_BYTES:
            if len(_packed_before) >= _MOST_PACKED:
                _packed_before.clear()
            _packed_before[id(columns)] = known
    return known[1]


def _packed(columns: Any) -> bytes:
    numbers: list[int] = []
    for offset, nbytes, shape in columns:
        numbers += len(shape), offset, nbytes
        numbers += shape
    return array("Q", numbers).tobytes()


def _columns_of(packed: bytes) -> list[Any]:
    if len(packed) % 8:
        raise ProtocolError(f"packed columns have {len(packed)} bytes, not a multiple of 8")
    numbers = array("Q", packed).tolist()
    _bounded("a packed list of columns", numbers or (0,))
    columns, at, size = [], 0, len(numbers)
    while at + 3 <= size:
        end = at + 3 + numbers[at]
        columns.append([numbers[at + 1], numbers[at + 2], numbers[at + 3 : end]])
        at = end
    if at != size:
        raise ProtocolError(f"column {len(columns)} does not fit the {size} numbers of its block")
    return columns


#: Most batches of a feed have one layout: they share one list of columns, which nobody changes.
_known_columns = lru_cache(64)(_columns_of)


# Messages


def _pack_step(message: Step) -> bytes:
    session, commits, released, returned, withdrawn, gets, saves = message
    numbers = [*commits, *released, *returned, *withdrawn, *chain.from_iterable(gets)]
    layout = f"{_STEP.format}{len(numbers)}Q"
    head = struct.pack(layout, LAYOUT, 3, *map(len, message[1:]), session, *numbers)
    for token, frame, columns in saves:
        packed = pack_columns(columns) if columns else b""
        head += _SAVE.pack(token, frame, len(packed)) + packed
    return head


def _unpack_step(data: bytes) -> Step:
    size = len(data)
    try:
        _, _, commits, released, returned, withdrawn, gets, saves, session = _STEP.unpack_from(data)
        numbers, at = _numbers(data, _STEP.size, commits + released + returned + withdrawn, gets)
        listed = []
        for _ in range(saves):
            token, frame, length = _SAVE.unpack_from(data, at)
            if token > limits.MAX_COUNT:
                _bounded("Save.token", (token,))
            start = at + _SAVE.size
            at = start + length
            if at > size:
                raise _short("Save", data)
            unpack_columns = _known_columns if length <= _REMEMBERED_BYTES else _columns_of
            listed.append(made(Save, (token, frame, unpack_columns(data[start:at]))))
    except struct.error:
        raise _short("Step", data) from None
    if at != size:
        raise _short("Step", data)
    if max(session, *numbers, 0) > limits.MAX_COUNT:
        _bounded("a packed Step", (session, *numbers))
    released += commits
    returned += released
    withdrawn += returned
    asked = numbers[withdrawn:]
    return made(
        Step,
        (
            session,
            numbers[:commits],
            numbers[commits:released],
            numbers[released:returned],
            numbers[returned:withdrawn],
            tuple(map(_get_of, zip(asked[::3], asked[1::3], asked[2::3], strict=True))),
            tuple(listed),
        ),
    )


def _numbers(data: bytes, at: int, tokens: int, gets: int = 0) -> tuple[tuple[int, ...], int]:
    """Unpack tokens, and three numbers of each request; return them and where they end."""
    total = tokens + 3 * gets
    if not total:
        return (), at
    if total > limits.MAX_HEADER_ITEMS:
        raise ProtocolError(f"{total} packed numbers; the limit is {limits.MAX_HEADER_ITEMS}")
    end = at + 8 * total
    if end > len(data):
        raise _short(f"list of {total} numbers", data)
    return struct.unpack_from(f"<{total}Q", data, at), end


def _pack_give(message: Give) -> bytes:
    session, items, *answers = message
    return pack_give(session, answers, [_pack_given(item) for item in items])


def pack_give(session: int, answers: Answers, items: Sequence[bytes]) -> bytes:
    """Pack a Give whose batches are packed."""
    committed, stale, faults = answers
    tokens = (*committed, *stale)
    odd = pack(faults) if faults else b""
    head = _GIVE.pack(LAYOUT, 3, len(committed), len(stale), len(items), len(odd), session)
    return b"".join((head, struct.pack(f"<{len(tokens)}Q", *tokens), odd, *items))


def _pack_given(item: Given) -> bytes:
    *numbers, columns, place, segment = item
    return pack_given(numbers, pack_columns(columns), place, segment.encode())


def pack_given(numbers: Sequence[int], columns: bytes, place: bytes, segment: bytes) -> bytes:
    """Pack a batch: its numbers, from ``request`` to ``live``, and what is packed already."""
    sizes = len(columns), len(place), len(segment)
    return _GIVEN.pack(*numbers, *sizes) + columns + place + segment


def _unpack_give(data: bytes) -> Give:
    try:
        _, _, committed, stale, items, odd, session = _GIVE.unpack_from(data)
        tokens, at = _numbers(data, _GIVE.size, committed + stale)
        faults_at, at = at, at + odd
        given = []
        for _ in range(items):
            item, at = _unpack_given(data, at)
            given.append(item)
    except struct.error:
        raise _short("Give", data) from None
    if at != len(data):
        raise _short("Give", data)
    if max(session, *tokens, 0) > limits.MAX_COUNT:
        _bounded("a packed Give", (session, *tokens))
    faults: Any = ()
    if odd:
        faults = check_faults(unpack(data[faults_at : faults_at + odd], "faults", _IN_MESSAGE))
    return made(Give, (session, tuple(given), tokens[:committed], tokens[committed:], faults))


def _unpack_given(data: bytes, at: int) -> tuple[Given, int]:
    *numbers, size, placed, named = _GIVEN.unpack_from(data, at)
    at += _GIVEN.size
    place_at = at + size
    name_at = place_at + placed
    end = name_at + named
    if end > len(data):
        raise _short("Given", data)
    if max(numbers) > _MOST_COUNT or numbers[7] > limits.MAX_ROWS:
        _bounded("a packed Given", numbers)
        _bounded("Given.rows", numbers[7:8], limits.MAX_ROWS)
    unpack_columns = _known_columns if size <= _REMEMBERED_BYTES else _columns_of
    columns, segment = unpack_columns(data[at:place_at]), _known_names(data[name_at:end])
    return made(Given, (*numbers, columns, data[place_at:name_at], segment)), end


def _name_of(segment: bytes) -> str:
    try:
        return segment.decode()
    except UnicodeDecodeError:
        raise ProtocolError("Given.segment is not a text in UTF-8") from None


#: Batches lie in a few segments.
_known_names = lru_cache(64)(_name_of)


FROM_TRAINER.packed(3, Step, _pack_step, _unpack_step)
FROM_SERVER.packed(3, Give, _pack_give, _unpack_give)
