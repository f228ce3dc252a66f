"""A packed message comes out as it went in, and a broken one is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto import limits
from headrace_proto.errors import ProtocolError
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
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
    offset=4096,
    segment="slab-0-1",
)
INLINE = ITEM._replace(
    place=b"", bucket=-1, segment="", offset=0, frame=1, copy_out=True, live=False
)
GETS = Get(7, 0), Get(8, 3, 2)
SAVES = Save(300, 1, COLUMNS), Save(301)
STEP = Step(3, (1, 2), (limits.MAX_COUNT,), (300,), (5,), GETS, SAVES)
GIVE = Give(3, (ITEM, INLINE), (1,), (2, 3), [[300, "state", "no"]])
ANSWERS = Give(3, (), (1,), (2,), [[300, "state", "no"]])
WHOLE = [(FROM_TRAINER, STEP), (FROM_SERVER, GIVE), (FROM_SERVER, ANSWERS)]
NAMES = ["Step", "Give", "Give of answers"]

_frames = st.integers(0, 2**16 - 1)
_saves = st.builds(Save, counts, _frames, columns)
_gets = st.builds(Get, counts, counts, counts)
_signed = st.integers(-1, limits.MAX_COUNT)
_items = st.builds(
    Given,
    *[counts] * 7,
    rows,
    counts,
    _signed,
    counts,
    _frames,
    st.booleans(),
    st.booleans(),
    columns,
    st.binary(max_size=300),
    st.text(max_size=60),
)
_tokens = st.lists(counts, max_size=9).map(tuple)
_faults = st.lists(st.tuples(counts, st.text(), st.text()).map(list), max_size=3).map(tuple)
_listed = (st.lists(_gets, max_size=9).map(tuple), st.lists(_saves, max_size=9).map(tuple))
MESSAGES = [
    (FROM_TRAINER, st.builds(Step, counts, *[_tokens] * 4, *_listed)),
    (FROM_SERVER, st.builds(Give, counts, st.lists(_items).map(tuple), _tokens, _tokens, _faults)),
]


@pytest.mark.parametrize(("registry", "messages"), MESSAGES)
@steady
@given(data=st.data())
def test_a_message_comes_out_as_it_went_in(registry, messages, data):
    message = data.draw(messages)
    header = registry.encode(message)
    for frame in (header, memoryview(header), memoryview(bytearray(header))):
        assert registry.decode(frame) == message


@pytest.mark.parametrize(("registry", "message"), WHOLE, ids=NAMES)
def test_no_part_of_a_message_is_a_message(registry, message):
    header = registry.encode(message)
    for size in range(len(header)):
        with pytest.raises(ProtocolError):
            registry.decode(header[:size])
    for more in (b"\0", bytes(8), header):
        with pytest.raises(ProtocolError):
            registry.decode(header + more)


def test_columns_are_packed_correctly_after_any_others():
    def packed(columns):
        return FROM_TRAINER.encode(Step(1, saves=(Save(1, 1, columns),)))

    one, other = [[0, 8, [1]]], [[64, 8, [1]]]
    first = packed(one)
    assert packed(one) == packed([[0, 8, [1]]]) == first != packed(other)
    for number in range(1000):
        packed([[64 * number, 8, [1]]])
    assert packed(one) == first
