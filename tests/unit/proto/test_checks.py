"""Each check takes exactly what its field may hold."""

from typing import get_args

import pytest
from hypothesis import given

from headrace_proto import checks, limits
from headrace_proto.errors import ProtocolError

from .generated import atoms, steady

INF = float("inf")
NAN = float("nan")
LONG = limits.MAX_HEADER_STRING

TAKES = {
    "Count": [0, 1, 2**64 - 1],
    "Signed": [0, -(2**63), 2**63 - 1],
    "Counts": [[], [0], [1, 2**64 - 1]],
    "Flag": [True, False],
    "Text": ["", "x", "水" * LONG],
    "Blob": [b"", b"\0\xff"],
    "Seconds": [0, 0.0, 1, 999_999_999.9],
    "Plain": [None, True, 1, 1.5, "x", b"x", [1, [2]], {"a": {"b": []}}],
}
REFUSES = {
    "Count": [-1, 2**64, True, 1.0, "1", b"1", None, [1], {}, NAN],
    "Signed": [-(2**63) - 1, 2**63, False, 1.0, "1", None, [1]],
    "Counts": [[-1], [2**64], [True], [1.0], ["1"], [[1]], [None], 1, None, {}, "12", b"12"],
    "Flag": [0, 1, None, "true", [], 1.0],
    "Text": [b"x", 1, None, ["x"], "x" * (LONG + 1)],
    "Blob": ["x", 1, None, [b"x"]],
    "Seconds": [-1, -0.001, 1e9, INF, -INF, NAN, True, "1", None, [1.0]],
}


def check_of(name):
    return get_args(getattr(checks, name))[1]


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in TAKES.items() for v in vs])
def test_a_check_returns_what_the_field_may_hold(name, value):
    got = check_of(name)(value)
    assert got == (tuple(value) if name == "Counts" else value)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in REFUSES.items() for v in vs])
def test_a_check_refuses_what_the_field_may_not_hold(name, value):
    with pytest.raises(ProtocolError, match="is not"):
        check_of(name)(value)


@pytest.mark.parametrize("name", sorted(TAKES))
def test_a_check_raises_nothing_but_a_protocol_error(name):
    check = check_of(name)

    @steady
    @given(atoms)
    def tried(value):
        try:
            check(value)
        except ProtocolError:
            return

    tried()
