"""A feed of segments has the layout of its schema, or raises ProtocolError."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import ProtocolError
from headrace_proto.layout import arrange
from headrace_proto.messages import Given
from headrace_proto.schema import Field
from headrace_proto.segment_layout import SegmentLayout
from tests.footprint import entries

UNROLL = 2


def properties(state=("lstm", "float32", [3]), placement="server", order="arrival"):
    return {
        "shape": "sequences",
        "num_unroll": UNROLL,
        "batch_size": 4,
        "order": order,
        "placement": placement,
        "states": [[*state]],
    }


def schema_of(told):
    """Return the wire schema of a feed of such properties, with one sequence and one context."""
    schema = {"@key": Field(BYTES, (None,))}
    for name in ("sequence", "sequence_count", "length", "total_length"):
        schema["@" + name] = Field("int32", (None,))
    schema["@insertion_index"] = Field("int64", (None,))
    if told["order"] == "lanes":
        schema["@lane"] = Field("int32", (None,))
    schema["sequences:x"] = Field("float32", (None, UNROLL))
    schema["context:y"] = Field("int64", (None,))
    if told["placement"] == "trainer":
        schema["@starts"] = schema["@state_of"] = Field("int32", (None,))
    for name, dtype, dims in told["states"]:
        schema["state:" + name] = Field(dtype, (None, *dims))
    return schema


def given_of(told, token, rows=2):
    """Return a batch, whose strings have two bytes each; no states are there yet at a trainer."""
    wanted = []
    for name, field in schema_of(told).items():
        length = 0 if told["placement"] == "trainer" and name[:6] in ("@state", "state:") else rows
        strings = field.dtype == BYTES
        shape = (length,) if strings else (length, *field.shape[1:])
        wanted.append((field.dtype, shape, 2 * length if strings else 0))
    slots, nbytes = arrange(wanted)
    places = [[slot.offset, slot.nbytes, list(slot.shape)] for slot in slots]
    return Given(0, token, 0, token, 0, token, 0, rows, nbytes, columns=places, frame=1)


SERVER = properties()
TRAINER = properties(placement="trainer", order="lanes")


def layout_of(told):
    return SegmentLayout(schema_of(told), told)


@pytest.mark.parametrize("told", [SERVER, TRAINER, properties(("tag", "bytes", []))])
def test_a_batch_that_is_as_promised_is_believed(told):
    given = given_of(told, 1, rows=3)
    slots = layout_of(told).slots.of(given)
    assert [[*slot.shape] for slot in slots.values()] == [shape for _, _, shape in given.columns]
    assert [[slot.offset, slot.nbytes] for slot in slots.values()] == [
        column[:2] for column in given.columns
    ]


def test_a_batch_whose_list_of_columns_is_known_is_not_looked_at_again():
    layout = layout_of(SERVER)
    first = given_of(SERVER, 1)
    second = given_of(SERVER, 2)
    other = given_of(SERVER, 3, rows=3)
    slots = layout.slots.of(first)
    assert layout.slots.of(second) == slots != layout.slots.of(other)
    assert layout.slots.of(second._replace(columns=first.columns)) is slots
    smaller = first._replace(nbytes=64)
    with pytest.raises(ProtocolError, match=r"does not lie in its block"):
        layout.slots.of(smaller)
    with pytest.raises(ProtocolError, match="of a batch of 1 rows has 2"):
        layout.slots.of(first._replace(rows=1))
    kept = []
    for number in range(200):
        layout.slots.of(given_of(SERVER, number))
        kept.append(entries(layout))
    assert max(kept[100:]) <= max(kept[:100]) and layout.slots.of(first) == slots


counts = st.integers(0, 4) | st.sampled_from([64, 2**31, 2**63, 2**64 - 1])


@given(at=st.integers(0, 8), column=st.tuples(counts, counts, st.lists(counts, max_size=3)))
def test_no_description_is_worse_than_a_protocol_error(at, column):
    given = given_of(SERVER, 1)
    columns = [*given.columns]
    assume(list(column) != columns[at])
    columns[at] = list(column)
    with pytest.raises(ProtocolError):
        layout_of(SERVER).slots.of(given._replace(columns=columns))
