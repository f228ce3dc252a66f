"""The codec gives back what was sent; what it refuses is in refusals."""

from hypothesis import given

from headrace_proto import limits
from headrace_proto.checks import Count, Text
from headrace_proto.codec import Registry, message, pack, unpack

from .generated import plain, steady

OLD = Registry("old")


@message(OLD, 1)
class Ask:
    what: Text
    count: Count = 1


@steady
@given(plain(limits.MAX_HEADER_DEPTH - 5))
def test_plain_data_comes_out_as_it_went_in(value):
    assert unpack(pack(value)) == value


def test_a_text_may_have_the_longest_length_in_any_script():
    for character in "a", "é", "水", "🚰":
        asked = Ask(character * (limits.MAX_HEADER_STRING - 1))
        if len(asked.what.encode()) < limits.MAX_HEADER_BYTES - 10:
            assert OLD.decode(OLD.encode(asked)) == asked


def test_text_that_utf8_can_not_carry_is_sent_in_a_readable_form():
    """A file name with bytes that are no UTF-8 stands in the text of an error."""
    name = b"caf\xe9.tfrecord".decode("utf-8", "surrogateescape")
    assert OLD.decode(OLD.encode(Ask(name))).what == "caf\\udce9.tfrecord"
