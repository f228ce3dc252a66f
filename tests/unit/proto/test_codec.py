"""The codec: versions that differ, limits, and refusals with their reason."""

import msgpack
import pytest
from hypothesis import given

from headrace_proto import limits
from headrace_proto.checks import Count, Text
from headrace_proto.codec import Registry, message, pack, unpack
from headrace_proto.errors import ProtocolError

from .generated import plain, steady

OLD = Registry("old")
NEW = Registry("new")


@message(OLD, 1)
class Ask:
    what: Text
    count: Count = 1


@pytest.mark.parametrize("op", [0, -1, 2**63, True, 1.0, "1", None, [1], {"a": 1}, b"1"])
def test_an_unknown_op_is_an_error(op):
    with pytest.raises(ProtocolError, match="has no op"):
        OLD.decode(pack([op, "x"]))


def test_a_field_without_default_may_not_be_missing():
    with pytest.raises(ProtocolError, match="Ask lacks its field 'what'"):
        OLD.decode(pack([1]))


@pytest.mark.parametrize("header", [b"", b"\x90", b"\x80", b"\x01", b"\xc0", pack({"op": 1})])
def test_a_message_that_is_no_list_with_an_op_is_an_error(header):
    with pytest.raises(ProtocolError, match=r"not valid msgpack|a list that starts with its op"):
        OLD.decode(header)


@steady
@given(plain(limits.MAX_HEADER_DEPTH - 5))
def test_plain_data_comes_out_as_it_went_in(value):
    assert unpack(pack(value)) == value


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}], ids=["lists", "maps"])
def test_nesting_is_bounded_for_data_alone(wrap):
    value = wrap(None)  # one level
    for _ in range(limits.MAX_HEADER_DEPTH - 1):
        value = wrap(value)
    assert unpack(pack(value)) == value
    with pytest.raises(ProtocolError, match=f"nested deeper than {limits.MAX_HEADER_DEPTH}"):
        unpack(pack(wrap(value)))


def _nested(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"


@pytest.mark.parametrize("levels", [limits.MAX_HEADER_DEPTH + 1, 500, 990, 1010, 5000, 60_000])
@pytest.mark.parametrize(
    "before",
    [
        b"\x92\x01",
        b"\x94\x01\xa1x\x01",
        b"\x93\x03\x90",
        b"\x92\x03",
        b"\x91",
        b"\x95\x01\xa1x\x01\xa0",
    ],
    ids=[
        "a text",
        "a later field",
        "plain data",
        "a list of records",
        "the op",
        "plain with default",
    ],
)
def test_nesting_is_bounded_in_every_field(before, levels):
    """Also deeper than the interpreter's own limit: no RecursionError, not from repr either."""
    with pytest.raises(ProtocolError, match=r"nested deeper|StackError"):
        NEW.decode(before + _nested(levels))


def test_a_header_that_is_too_long_is_not_looked_at():
    with pytest.raises(ProtocolError, match="header has 65537 bytes; the limit is 65536"):
        OLD.decode(b"\xc1" * (limits.MAX_HEADER_BYTES + 1))


def test_a_text_may_have_the_longest_length_in_any_script():
    for character in "a", "é", "水", "🚰":
        asked = Ask(character * (limits.MAX_HEADER_STRING - 1))
        if len(asked.what.encode()) < limits.MAX_HEADER_BYTES - 10:
            assert OLD.decode(OLD.encode(asked)) == asked
    with pytest.raises(ProtocolError, match=r"Ask\.what: .* is not a text"):
        OLD.decode(pack([1, "a" * (limits.MAX_HEADER_STRING + 1)]))


def test_text_that_utf8_can_not_carry_is_sent_in_a_readable_form():
    """A file name with bytes that are no UTF-8 stands in the text of an error."""
    name = b"caf\xe9.tfrecord".decode("utf-8", "surrogateescape")
    assert OLD.decode(OLD.encode(Ask(name))).what == "caf\\udce9.tfrecord"


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (b"\xa2\xff\xfe", "UnicodeDecodeError"),
        (b"\xa3\xed\xa0\x80", "UnicodeDecodeError"),  # a surrogate
        (b"\xc7\x00\x05", "extension type 5"),
        (b"\xd6\xff\x00\x00\x00\x00", "max_ext_len"),  # a timestamp
        (b"\xd4\x01\x00", "max_ext_len"),
        (b"\xc1", "FormatError"),
        (b"\xdd\xff\xff\xff\xff", "max_array_len"),
        (b"\xdf\xff\xff\xff\xff", "max_map_len"),
        (b"\xdb\xff\xff\xff\xff", "incomplete input"),
        (b"\xc6\xff\xff\xff\xff", "incomplete input"),
        (b"\x81\x01\x02", "not allowed for map key"),
        (b"\x81\x91\x01\x02", "not allowed for map key|unhashable"),
        (b"\x81\xc4\x01k\x02", "the map key b'k', which is not a text"),
        (b"\x91\x81\xc4\x01k\x90", "the map key b'k', which is not a text"),
    ],
)
def test_data_that_is_not_plain_is_refused_at_any_depth(wire, why):
    for header in (wire, b"\x94\x03\x90\xc0" + wire):  # alone, and in a field that is ignored
        with pytest.raises(ProtocolError, match=why):
            unpack(header)


def test_a_list_of_too_many_entries_is_refused():
    assert len(unpack(msgpack.packb([0] * limits.MAX_HEADER_ITEMS))) == limits.MAX_HEADER_ITEMS
    with pytest.raises(ProtocolError, match="max_array_len"):
        unpack(msgpack.packb([0] * (limits.MAX_HEADER_ITEMS + 1)))
    with pytest.raises(ProtocolError, match="max_map_len"):
        unpack(msgpack.packb({str(i): 0 for i in range(limits.MAX_HEADER_ITEMS + 1)}))
