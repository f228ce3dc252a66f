"""An address is checked before ZeroMQ makes something else of it."""

import pytest

from headrace_proto.address import check_address, check_addresses


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:5557",
        "tcp://*:0",
        "tcp://feeder.example:65535",
        "ipc:///a",
    ],
)
def test_an_address_is_given_back(address):
    assert check_address("bind", address) == address


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("tcp://a:1", ["tcp://a:1"]),
        ("tcp://a:1, tcp://b:2", ["tcp://a:1", "tcp://b:2"]),
        (["tcp://a:1", "ipc:///b"], ["tcp://a:1", "ipc:///b"]),
        ("s-{0..2}.s:5557", [f"tcp://s-{i}.s:5557" for i in range(3)]),
        ("tcp://s-{9..10}:5557,tcp://t:1", ["tcp://s-9:5557", "tcp://s-10:5557", "tcp://t:1"]),
        (["tcp://10.0.0.{7..7}:1"], ["tcp://10.0.0.7:1"]),
    ],
)
def test_addresses_of_several_servers_may_be_a_list_a_text_or_a_range(given, addresses):
    assert check_addresses("address", given) == addresses
