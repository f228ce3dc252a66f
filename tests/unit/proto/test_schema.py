"""Schemas survive the wire, and invalid ones are refused."""

from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.codec import pack, unpack
from headrace_proto.dtypes import DTYPES
from headrace_proto.errors import ProtocolError
from headrace_proto.schema import Field, schema_from_wire, schema_to_wire

from .generated import plain, steady

fields = st.builds(
    Field,
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.none() | st.integers(0, 2**63 - 1), max_size=8).map(tuple),
)
schemas = st.dictionaries(st.text(min_size=1, max_size=20), fields, max_size=8)


@steady
@given(schemas)
def test_a_schema_comes_out_as_it_went_in_and_in_its_order(schema):
    back = schema_from_wire(unpack(pack(schema_to_wire(schema))))
    assert list(back.items()) == list(schema.items())


@steady
@given(st.lists(st.lists(plain(1) | st.sampled_from(["x", "int8", [], [3]]), max_size=4)))
def test_a_peer_can_cause_nothing_but_a_protocol_error(wire):
    try:
        schema = schema_from_wire(wire)
    except ProtocolError:
        return
    assert schema_from_wire(schema_to_wire(schema)) == schema
