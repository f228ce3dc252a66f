"""An address is checked before ZeroMQ makes something else of it."""

from __future__ import annotations

import pytest

from headrace_proto.address import check_address


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:5557",
        "tcp://*:0",
        "tcp://feeder.example:65535",
        "tcp://[::1]:*",
        "ipc:///a",
    ],
)
def test_an_address_is_given_back(address: str):
    assert check_address("bind", address) == address


@pytest.mark.parametrize(
    "address",
    [
        *("", "127.0.0.1:5557", "tcp://", "tcp://host", "tcp://:5557", "tcp://host:5557/x"),
        *("ipc://", "udp://host:1", "tcp://host:55x", "tcp://host:-1", " tcp://host:1"),
        "tcp://host:1\n",
    ],
)
def test_what_is_none_is_refused_with_an_example(address: str):
    with pytest.raises(ValueError) as caught:
        check_address("bind", address)
    assert str(caught.value) == f"bind={address!r} is not like tcp://127.0.0.1:5557"


def test_a_port_that_zeromq_would_take_modulo_65536_is_refused_with_the_limit():
    with pytest.raises(ValueError, match="address='tcp://h:65536': a port lies in 0 … 65535"):
        check_address("address", "tcp://h:65536")


def test_anything_but_a_string_is_a_type_error_that_names_the_argument():
    with pytest.raises(TypeError, match="address=5557 is not a string"):
        check_address("address", 5557)
