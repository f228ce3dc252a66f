"""A packed message comes out as it went in, and a broken one is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto import limits
from headrace_proto.errors import ProtocolError
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Answer,
    Get,
    Give,
    Given,
    Save,
    Step,
)

from .generated import columns, counts, rows, steady

COLUMNS = [[0, 64, [16]], [64, 8, []], [128, 24, [3, 1, 8]]]
ITEM = Given(
    request=1,
    token=2**40,
    partition=0,
    number=5,
    turn_epoch=2,
    turn_index=9,
    epoch=2,
    rows=32,
    nbytes=192,
    columns=COLUMNS,
    place=b"\1\0\xff",
    bucket=3,
    empty=4,
    offset=4096,
    segment="slab-0-0-1",
)
INLINE = ITEM._replace(
    place=b"", bucket=-1, segment="", offset=0, frame=1, copy_out=True, live=False
)
GETS = Get(7, 0), Get(8, 3, 2)
SAVES = Save(300, 1, COLUMNS), Save(301)
STEP = Step(3, (1, 2), (limits.MAX_COUNT,), (300,), (5,), GETS, SAVES)
GIVE = Give(3, (ITEM, INLINE), (1,), (2, 3), [[300, "state", "no"]])
ANSWER = Answer(3, (1,), (2,), [[300, "state", "no"]])
WHOLE = [(FROM_TRAINER, STEP), (FROM_SERVER, GIVE), (FROM_SERVER, ANSWER)]
NAMES = ["Step", "Give", "Answer"]

_frames = st.integers(0, 2**16 - 1)
_saves = st.builds(Save, counts, _frames, columns)
_gets = st.builds(Get, counts, counts, counts)
_signed = st.integers(-1, limits.MAX_COUNT)
_items = st.builds(
    Given,
    *[counts] * 7,
    rows,
    counts,
    columns,
    st.binary(max_size=300),
    _signed,
    rows,
    counts,
    _frames,
    st.booleans(),
    st.booleans(),
    st.text(max_size=60),
)
_tokens = st.lists(counts, max_size=9).map(tuple)
_faults = st.lists(st.tuples(counts, st.text(), st.text()).map(list), max_size=3).map(tuple)
_listed = (st.lists(_gets, max_size=9).map(tuple), st.lists(_saves, max_size=9).map(tuple))
MESSAGES = [
    (FROM_TRAINER, st.builds(Step, counts, *[_tokens] * 4, *_listed)),
    (FROM_SERVER, st.builds(Give, counts, st.lists(_items).map(tuple), _tokens, _tokens, _faults)),
    (FROM_SERVER, st.builds(Answer, counts, _tokens, _tokens, _faults)),
]


@pytest.mark.parametrize(("registry", "messages"), MESSAGES)
@steady
@given(data=st.data())
def test_a_message_comes_out_as_it_went_in(registry, messages, data):
    message = data.draw(messages)
    header = registry.encode(message)
    for frame in (header, memoryview(header), memoryview(bytearray(header))):
        assert registry.decode(frame) == message


NO_ROOM = {
    "a negative number": (FROM_TRAINER, Step(1, (-1,))),
    "a number that is none": (FROM_TRAINER, Step(1, ("1",))),
    "a number beyond all": (FROM_TRAINER, Step(1, (2**64,))),
    "a place beyond all": (FROM_TRAINER, Step(1, saves=(Save(1, 0, [[2**64, 1, []]]),))),
    "a frame beyond all": (FROM_TRAINER, Step(1, saves=(Save(1, 2**16),))),
    "a long name": (FROM_SERVER, Give(1, (ITEM._replace(segment="s" * 256),))),
    "too many tokens": (FROM_TRAINER, Step(1, tuple(range(9000)))),
}


@pytest.mark.parametrize(("registry", "message"), NO_ROOM.values(), ids=NO_ROOM)
def test_a_message_that_does_not_fit_is_not_sent(registry, message):
    with pytest.raises(ProtocolError, match=r"does not fit its layout|needs a header of"):
        registry.encode(message)


@pytest.mark.parametrize(("registry", "message"), WHOLE, ids=NAMES)
def test_no_part_of_a_message_is_a_message(registry, message):
    header = registry.encode(message)
    for size in range(len(header)):
        with pytest.raises(ProtocolError):
            registry.decode(header[:size])
    for more in (b"\0", bytes(8), header):
        with pytest.raises(ProtocolError):
            registry.decode(header + more)


def given_head(copy_out=0, named=0, columns=0, place=0):
    """The fixed part of a packed Given."""
    return struct.pack("<9Qq2QHBBHIB", *[0] * 13, copy_out, 0, columns, place, named)


WRONG = {
    "another layout": (b"\x02\x03" + bytes(40), "begins with 0x0203"),
    "another op": (b"\x01\x05" + bytes(40), "begins with 0x0105"),
    "too many tokens": (
        struct.pack("<BB4HQ", 1, 4, 4097, 0, 0, 0, 7) + bytes(4097 * 8),
        "4097 packed numbers; the limit is 4096",
    ),
    "a fault that is no list": (
        struct.pack("<BB4HQ", 1, 4, 0, 0, 0, 1, 7) + b"\x07",
        "7 is not a list",
    ),
    "a fault of numbers": (
        struct.pack("<BB4HQ", 1, 4, 0, 0, 0, 5, 7) + b"\x91\x93\x01\x02\x03",
        "is not a fault of a commit",
    ),
    "deep faults": (
        struct.pack("<BB4HQ", 1, 4, 0, 0, 0, 9, 7) + b"\x91" * 8 + b"\xc0",
        "faults is nested deeper than 7",
    ),
    "a flag that is none": (
        struct.pack("<BB4HQ", 1, 3, 0, 0, 1, 0, 7) + given_head(copy_out=2),
        "copy_out: 2 is not true or false",
    ),
    "a rank beyond all": (
        struct.pack("<BB4HQ", 1, 3, 0, 0, 1, 0, 7)
        + given_head(columns=24)
        + struct.pack("<3Q", limits.MAX_COUNT, 0, 0),
        "column 1 does not fit the 3 numbers",
    ),
    "a place beyond all": (
        struct.pack("<BB4HQ", 1, 3, 0, 0, 1, 0, 7) + given_head(columns=24) + b"\xff" * 24,
        "a packed list of columns has 18446744073709551615; the most is 4611686018427387903",
    ),
    "a session beyond all": (
        struct.pack("<BB4HQ", 1, 4, 0, 0, 0, 0, 2**62),
        "a packed list of answers has 4611686018427387904",
    ),
    "a header that is too long": (
        b"\x01\x03" + bytes(limits.MAX_HEADER_BYTES),
        "a header has 65538 bytes; the limit is 65536",
    ),
}


@pytest.mark.parametrize(("header", "why"), WRONG.values(), ids=WRONG)
def test_a_packed_message_that_is_wrong_is_refused_with_the_reason(header, why):
    with pytest.raises(ProtocolError, match=why):
        FROM_SERVER.decode(header)


def test_columns_are_packed_correctly_after_any_others():
    def packed(columns):
        return FROM_TRAINER.encode(Step(1, saves=(Save(1, 1, columns),)))

    one, other = [[0, 8, [1]]], [[64, 8, [1]]]
    first = packed(one)
    assert packed(one) == packed([[0, 8, [1]]]) == first != packed(other)
    for number in range(1000):
        packed([[64 * number, 8, [1]]])
    assert packed(one) == first
