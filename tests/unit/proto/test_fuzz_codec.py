"""No header, however broken, does more than raise one ProtocolError, and none costs much."""

import contextlib
import itertools
import random
import sys
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto import limits
from headrace_proto.errors import ProtocolError
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER

from .generated import REGISTRIES, atoms, plain, steady
from .mutation import UNSENDABLE, drawn, mutant

COLUMNS = [[0, 4096, [32, 32]], [4096, 300, [32]]]


def samples_of(chance, registry, each=4):
    """Return headers of every message of a registry."""
    found = []
    for kind in registry.kinds:
        of_kind = []
        while len(of_kind) < each:
            with contextlib.suppress(UNSENDABLE):
                header = registry.encode(drawn(chance, kind, range(8), COLUMNS))
                registry.decode(header)
                of_kind.append(header)
        found += of_kind
    return found


def decoded(registry, header):
    """The message, or None where it was refused; any other error is the test's."""
    try:
        return registry.decode(header)
    except ProtocolError as error:
        text = str(error)
    assert len(text) < 500
    return None


def check(registry, header):
    message = decoded(registry, header)
    if message is not None:
        again = registry.encode(message)
        assert registry.encode(registry.decode(again)) == again


@pytest.mark.parametrize("seed", range(2))
def test_mutants_of_every_message_are_messages_or_protocol_errors(seed):
    """50,000 rounds each."""
    chance = random.Random(seed)
    samples = {registry: samples_of(chance, registry) for registry in REGISTRIES}
    refused = 0
    for _ in range(25_000):
        for registry, headers in samples.items():
            header = mutant(chance, headers)
            message = decoded(registry, header)
            if message is None:
                refused += 1
            else:
                again = registry.encode(message)
                assert registry.encode(registry.decode(again)) == again
    assert 10_000 < refused < 45_000  # both outcomes are tried


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda r: r.name)
@steady
@given(
    op=st.integers(0, 12) | atoms,
    fields=st.lists(plain(2) | st.lists(st.lists(plain(2), max_size=13), max_size=2), max_size=13),
)
def test_plain_data_in_any_field_is_a_message_or_a_protocol_error(registry, op, fields):
    check(registry, msgpack.packb([op, *fields]))


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda r: r.name)
@steady
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protocol_error(registry, data):
    check(registry, data)
    check(registry, b"\x9c\x03" + data)


FULL = limits.MAX_HEADER_BYTES
#: Schema and properties may be anything, so what they cost is what decoding costs.
WELCOME = b"\x96\x01\x01\xa0"


def filled(unit: bytes, head: bytes = WELCOME + b"\x9f") -> bytes:
    """As many lists of 4,095 units as a header has room for."""
    part = b"\xdc\x0f\xff" + unit * 4095
    return (head + part * (FULL // len(part) + 1))[:FULL]


EXPENSIVE = {
    "lists that announce more than there is": b"\xdc\x10\x00" * (FULL // 3),
    "the same, few of them": b"\xdc\x10\x00" * 1000,
    "the same, fewer": b"\xdc\x01\xff" * 170,
    "maps that announce more than there is": b"\xde\x10\x00\xa0" * (FULL // 4),
    "empty maps": filled(b"\x80"),
    "empty maps, and the message whole": (
        WELCOME + b"\x9f" + (b"\xdc\x0f\xff" + b"\x80" * 4095) * 15 + msgpack.packb(1.0) + b"\1"
    ),
    "a megabyte of empty maps": b"\xdd\x00\x0f\xff\xff" + b"\x80" * 2**20,
    "small maps": filled(b"\x81\xa0\xc0"),
    "empty lists": filled(b"\x90"),
    "lists of one": filled(b"\x91\xc0"),
    "nothing": filled(b"\xc0"),
    "numbers": filled(b"\xcb" + b"\xff" * 8),
    "one-letter texts": filled(b"\xa1x"),
    "wide texts": b"\x92\x02\xda\xff\x00" + "🚰".encode() * 16_320,
    "deep lists": b"\x91" * FULL,
    "deep maps": b"\x81\xa0" * (FULL // 2),
    "deep keys": b"\x81" * FULL,
    "deep lists in a number": b"\x92\x06" + b"\x91" * 1000 + b"\xc0",
    "a text of 4 GB": b"\x92\x02\xdb\xff\xff\xff\xff",
    "bytes of 4 GB": b"\x92\x02\xc6\xff\xff\xff\xff",
    "an extension of 4 GB": b"\x92\x02\xc9\xff\xff\xff\xff\x05",
    "a list of 4 billion": b"\x92\x02\xdd\xff\xff\xff\xff",
    "a map of 4 billion": b"\x92\x02\xdf\xff\xff\xff\xff",
    "counts that are none": b"\x96\x03\x01\x01" + b"\xdc\x10\x00" + b"\x01" * 4095 + b"\xc0",
    "deliveries that are none": b"\x93\x03\x01" + b"\xdc\x10\x00" + b"\x9c\x01" * 4096,
}


@pytest.mark.parametrize("header", EXPENSIVE.values(), ids=EXPENSIVE)
@pytest.mark.parametrize("registry", [FROM_TRAINER, FROM_SERVER], ids=lambda r: r.name)
def test_no_header_takes_much_time_or_memory(registry, header):
    """Lines of Python are counted, which no other program changes.  Most take less than 1,000."""
    lines, before = itertools.count(), sys.gettrace()

    def count(*event):
        next(lines)
        return count

    sys.settrace(count)
    try:
        decoded(registry, header)
    finally:
        sys.settrace(before)
    tracemalloc.start()
    try:
        decoded(registry, header)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert next(lines) < 8 * FULL
    assert peak < 16e6
