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


def test_a_list_of_too_many_entries_is_refused():
    assert len(unpack(msgpack.packb([0] * limits.MAX_HEADER_ITEMS))) == limits.MAX_HEADER_ITEMS
    with pytest.raises(ProtocolError, match="max_array_len"):
        unpack(msgpack.packb([0] * (limits.MAX_HEADER_ITEMS + 1)))
    with pytest.raises(ProtocolError, match="max_map_len"):
        unpack(msgpack.packb({str(i): 0 for i in range(limits.MAX_HEADER_ITEMS + 1)}))
